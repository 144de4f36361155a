"""Names of a file's columns: each is one, on one line."""

from __future__ import annotations

import re
from collections import Counter
from collections.abc import Iterable
from pathlib import Path

from livectr.system.errors import ConfigError
from livectr.system.texts import visible

_NO_IDS = (
    *("bid", "overbid", "paid", "unpaid", "prepaid", "repaid", "valid", "invalid", "void", "avoid", "grid"),
    *("raid", "said", "hybrid", "android", "fluid", "liquid", "solid", "rapid", "acid", "covid", "candid"),
)
"""Words that end in "id" and name no thing."""
_NO_ID = "|".join(form for word in _NO_IDS for form in (word, word.capitalize(), word.upper()))
ID_NAME = re.compile(
    rf"^(?!(.*[^A-Za-z]|.*[a-z](?=[A-Z]))?({_NO_ID})$).*("
    r"(^|_)(id|ids|uid|code|type|kind|category|cat|class|zip|zipcode|sku|version|group|segment|page|slot|"
    r"position|os|model|brand|hash)(_\d+)?$|(id|Id|ID)$|^[Cc]\d+$)"
)
USER_NAME = re.compile(
    r"^(user|users|uid|uuid|visitor|customer|member|device|session|client|cookie|person|account|viewer|reader|"
    r"subscriber|player|driver|ip|device_ip)(_?(id|key|hash|uuid|no|number|pseudo_id))?$",
    re.I,
)
ITEM_NAME = re.compile(
    r"^(ad|ads|item|product|article|creative|banner|movie|video|offer|news|doc|document|post|song|track|"
    r"listing|sku|asin|campaign|book|job|hotel)(_?(id|key|no|number|group))?$",
    re.I,
)

REQUEST_NAME = re.compile(
    r"^(request|req|display|impression|slate|page_?view|pv|query|search|auction)_?(id|uuid|key)$", re.I
)
"""Columns that name a request, of which a log has a row for each item that was shown."""


def names_something(column: str) -> bool:
    """True for a column whose values name something by its name: an id, a user, an item."""
    return any(pattern.search(column) for pattern in (ID_NAME, USER_NAME, ITEM_NAME))


INSIDE = "\0"
"""Between the names of a path: of an object, and of what is inside of it."""


def one_column(paths: dict[str, str], column: str, path: str) -> None:
    """Hold a column to the values of one path, over all rows and files of a log.

    Args:
        paths: column → path of its values.
        column: name of the column.
        path: of a row's values; its names are joined by INSIDE.

    Raises:
        ValueError: the column has values of another path already: b inside of a, and a_b.
    """
    if (known := paths.setdefault(column, path)) != path:
        first, other = (" inside of ".join(map(repr, one.split(INSIDE)[::-1])) for one in (known, path))
        raise ValueError(f"{first} and {other} both become the column {column!r}; rename one of them")


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
