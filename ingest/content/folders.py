"""Where the features of contents are, as settings say it; light, since the command line reads settings."""

from __future__ import annotations

from pathlib import Path

from livectr.kernels.errors import ConfigError


def content_folders(text: str | None) -> dict[str, Path]:
    """Content → folder of its features, of "images=DIR,texts=DIR2". Raises ConfigError."""
    folders: dict[str, Path] = {}
    for part in text.split(",") if text else ():
        name, _, folder = (word.strip() for word in part.partition("="))
        if not name or not folder or name in folders:
            raise ConfigError(f"content is {text!r}; name each content's folder once, images=DIR,texts=DIR2")
        folders[name] = Path(folder)
    return folders
