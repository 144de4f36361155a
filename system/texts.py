"""Texts of data: their encoding, and how messages show them. Nothing of them commands a terminal."""

from __future__ import annotations

import re

_UNSEEN = re.compile(r"[\x00-\x1f\x7f-\x9f\u200b-\u200f\u2028-\u202e\u2066-\u2069\ud800-\udfff]")
"""Control characters, marks of direction, and lone surrogates."""
_MARKS = {b"\xff\xfe\x00\x00": "UTF-32", b"\xff\xfe": "UTF-16", b"\xfe\xff": "UTF-16"}
SOME = 0.4
"""Share of zero bytes at even or odd places above which a text has two bytes a character."""


def wide_encoding(text: bytes) -> str:
    """Name of an encoding with two or four bytes a character, by a text's beginning; "" for another."""
    for mark, name in _MARKS.items():
        if text.startswith(mark):
            return name
    even, odd = text[::2], text[1::2]
    if len(odd) < 2:
        return ""
    if odd.count(0) > SOME * len(odd) and even.count(0) < SOME / 8 * len(even):
        return "UTF-16LE"
    if even.count(0) > SOME * len(even) and odd.count(0) < SOME / 8 * len(odd):
        return "UTF-16BE"
    return ""


def visible(text: str, longest: int | None = None) -> str:
    """Text with escapes in place of characters that control a terminal, cut to a length.

    Args:
        text: of a user's data.
        longest: characters of the result; None: all.
    """
    shown = _UNSEEN.sub(lambda found: found[0].encode("unicode_escape", "surrogatepass").decode(), text)
    return shown if longest is None or len(shown) <= longest else shown[: longest - 1] + "…"
