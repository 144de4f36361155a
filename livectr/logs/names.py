"""Names of a file's columns: each is one, on one line."""

from __future__ import annotations

from collections import Counter
from collections.abc import Iterable
from pathlib import Path

from livectr.system.errors import ConfigError
from livectr.system.texts import visible


def check_names(names: Iterable[str], path: Path) -> None:
    """Check the names of columns.

    Raises:
        ConfigError: a name is there twice, or has a character that no line of text shows.
    """
    every = list(names)
    if twice := sorted(name for name, count in Counter(every).items() if count > 1):
        raise ConfigError(
            f"{path} names {', '.join(visible(name, 40) for name in twice)} twice; rename one of them."
        )
    for number, name in enumerate(every, 1):
        if visible(name) != name:
            raise ConfigError(
                f'{path}: column {number} is named "{visible(name, 60)}"; rename it: a name is on one line, '
                "without control characters."
            )
