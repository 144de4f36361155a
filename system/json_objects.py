"""JSON objects in which each key is there once.

JSON leaves open what a repeated key means: Python's reader takes its last value, others the first. So none is
taken. A hook is an `object_pairs_hook` of `json.loads`.
"""

from __future__ import annotations

from typing import Any, Final


class _Repeated:
    """Type of REPEATED."""

    def __repr__(self) -> str:
        return "a key that is there twice"


REPEATED: Final = _Repeated()
"""Value of a repeated key, where a hook marks it."""


def said(key: str) -> str:
    """Words on a repeated key."""
    return f"key `{key}` is there twice"


def refuse_repeated(pairs: list[tuple[str, Any]]) -> dict[str, Any]:
    """Hook: the object. Raises ValueError that names a repeated key."""
    found = dict(pairs)
    if len(found) < len(pairs):
        raise ValueError(said(_repeated(pairs)[0]))
    return found


def mark_repeated(pairs: list[tuple[str, Any]]) -> dict[str, Any]:
    """Hook: the object, with REPEATED as value of each repeated key."""
    found = dict(pairs)
    if len(found) < len(pairs):
        found |= dict.fromkeys(_repeated(pairs), REPEATED)
    return found


def _repeated(pairs: list[tuple[str, Any]]) -> list[str]:
    seen: set[str] = set()
    return [key for key, _ in pairs if key in seen or seen.add(key)]  # type: ignore[func-returns-value]
