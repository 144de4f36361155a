"""Words of a command line that give settings."""

from __future__ import annotations

from collections.abc import Mapping

from livectr.config.settings import SETTINGS


def settings_words(given: Mapping[str, object]) -> list[str]:
    """Flags of the settings that have one, and `--set` for the others."""
    flags, others = [], []
    for name, value in given.items():
        if SETTINGS[name].metadata["flag"]:
            flags.append(f"--{name.replace('_', '-')}={value}")
        else:
            others.append(f"{name}={value}")
    return [*flags, *(["--set", *others] if others else [])]
