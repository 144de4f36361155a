"""Least bytes of a batch of keys."""

from __future__ import annotations

import math

Field = list[list[int]]
"""Keys of each cell."""


def best_bytes(field: Field) -> int:
    """The format's own reckoning."""
    keys = [key for cell in field for key in cell]
    lengths = {len(cell) for cell in field}
    size = 0
    if len(lengths) > 1:
        width = 1 << max(0, math.ceil(math.log2(max(lengths).bit_length())))
        size += math.ceil(len(field) * width / 8)
    if not keys:
        return size
    span = (max(keys) - min(keys)).bit_length()
    width = span if span <= 56 else 64
    unique = len(set(keys))
    index = (unique - 1).bit_length()
    plain = math.ceil(len(keys) * width / 8)
    coded = math.ceil(unique * width / 8) + math.ceil(len(keys) * index / 8)
    return size + (8 if width < 64 else 0) + min(plain, coded)
