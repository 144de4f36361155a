"""Folders of content features, from settings. The command line reads settings, so this imports little."""

from __future__ import annotations

from pathlib import Path

from livectr.system.errors import ConfigError


def content_folders(text: str | None) -> dict[str, Path]:
    """Parse "images=DIR,texts=DIR2" to content → folder of its features.

    Raises:
        ConfigError: the text has another form.
    """
    folders: dict[str, Path] = {}
    for part in text.split(",") if text else ():
        name, _, folder = (word.strip() for word in part.partition("="))
        if not name or not folder or name in folders:
            raise ConfigError(f"content is {text!r}; name each content's folder once, images=DIR,texts=DIR2")
        folders[name] = Path(folder)
    return folders
