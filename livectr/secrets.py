"""Passwords: read from a file or the environment, and kept out of command lines, which every user can see."""

from __future__ import annotations

import re
from collections.abc import Sequence
from pathlib import Path
from urllib.parse import quote

from livectr.system.errors import ConfigError, reason_of

_ADDRESS = re.compile(r"(?P<scheme>[\w+]+://)(?:(?P<user>[^/@]*)@)?(?P<rest>.*)", re.DOTALL)


def read_password(path: str | Path) -> str:
    """First line of a file. Raises ConfigError when the file cannot be read or is empty."""
    try:
        lines = Path(path).read_text().splitlines()
    except (OSError, UnicodeDecodeError) as error:
        raise ConfigError(f"redis_password_file: {path} cannot be read ({reason_of(error)})") from None
    if not lines or not lines[0]:
        raise ConfigError(f"redis_password_file: {path} is empty; its first line is the password")
    return lines[0]


def with_password(url: str, password: str) -> str:
    """Add the password to a Redis URL of any form (`store.redis_url`) that has none."""
    if has_password(url):
        return url
    match = _ADDRESS.fullmatch(url)
    assert match, url  # settings check the scheme
    return f"{match['scheme']}{match['user'] or ''}:{quote(password, safe='')}@{match['rest']}"


def has_password(url: str) -> bool:
    """True when a Redis URL holds a password."""
    return bool(re.search(r"://[^/@]*:[^@]+@|[?&]password=", url))


def without_flags(arguments: Sequence[str], names: Sequence[str]) -> list[str]:
    """Command-line words without these flags and their values, as `--name value` and `--name=value`."""
    kept: list[str] = []
    words = iter(arguments)
    for word in words:
        if word in names:
            next(words, None)
        elif word.partition("=")[0] not in names:
            kept.append(word)
    return kept
