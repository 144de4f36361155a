"""Attributes that hide a column of the same name: where an expression is wanted, they are a mistake."""

from __future__ import annotations

from typing import Any

from livectr.system.errors import ConfigError


def hint(name: str = "name") -> str:
    """Advice for a column that is named like an attribute."""
    return f"for a column that is named like an attribute write stream[{name!r}]"


class HidingText(str):
    """Text of an attribute; `column` is how the hidden column is written."""

    column: str


class HidingNumber(int):
    """Number of an attribute; `column` is how the hidden column is written."""

    column: str


def mark(owner: object, name: str, column: str) -> None:
    """Mark an attribute of a frozen dataclass as one that hides a column; it stays the value that it is."""
    value = getattr(owner, name)
    if type(value) in (str, int):
        kind = HidingText if type(value) is str else HidingNumber
        hiding: Any = kind(value)
        hiding.column = column
        object.__setattr__(owner, name, hiding)


def refuse(value: object, where: str) -> None:
    """Raise ConfigError for an attribute that hides a column.

    Args:
        value: anything that was given as an expression.
        where: who wants an expression, for the message.
    """
    if isinstance(value, HidingText | HidingNumber):
        raise ConfigError(
            f"{where}: {value!r} is an attribute that hides the column of this name; write {value.column}"
        )
