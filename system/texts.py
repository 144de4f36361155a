"""Texts of data in messages: nothing of them reaches a terminal as a command."""

from __future__ import annotations

import re

_UNSEEN = re.compile(r"[\x00-\x1f\x7f-\x9f\u200b-\u200f\u2028-\u202e\u2066-\u2069\ud800-\udfff]")
"""Control characters, marks of direction, and lone surrogates."""


def visible(text: str, longest: int | None = None) -> str:
    """Text with escapes in place of characters that control a terminal, cut to a length.

    Args:
        text: of a user's data.
        longest: characters of the result; None: all.
    """
    shown = _UNSEEN.sub(lambda found: found[0].encode("unicode_escape", "surrogatepass").decode(), text)
    return shown if longest is None or len(shown) <= longest else shown[: longest - 1] + "…"
