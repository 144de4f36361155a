"""How many examples of its item a run had learned before an example: which items are *cold*.

A function of the log alone: counted in the global training order, also within a batch, and kept in the
checkpoint, so that a resumed run goes on counting. Rank 0 counts, since it scores what it tells of.
"""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

import numpy as np
import numpy.typing as npt

I64 = npt.NDArray[np.int64]
U32 = npt.NDArray[np.uint32]

COLD = 20
"""An item is cold before it has so many examples. At a click rate of 5 % that is one click: until then the
embedding of its id knows next to nothing of it. (The paper of DICM gives no number.)"""
NOT_COUNTED = 2**32 - 1
"""Instead of a count, where a pipeline has no items table: nothing is cold."""
FRESH = 1 << 15
"""So many new items are kept apart, so that a batch with new ones does not move all the others."""


def is_cold(seen: U32) -> npt.NDArray[np.bool_]:
    """Whether the examples' items were cold."""
    return seen < COLD


class ItemCounts:
    """Item → examples so far, 16 bytes an item: two sorted arrays of keys, the second short."""

    def __init__(self) -> None:
        self._known = [_none(), _none()]
        self._fresh = [_none(), _none()]

    def __len__(self) -> int:
        return len(self._known[0]) + len(self._fresh[0])

    def seen(self, item: I64) -> U32:
        """uint32[B]: examples of each one's item before it, in this order; then they are counted."""
        keys, inverse, times = np.unique(item, return_inverse=True, return_counts=True)
        before = np.zeros(len(keys), np.int64)
        new = np.ones(len(keys), np.bool_)
        for held, counts in (self._known, self._fresh):
            at = np.searchsorted(held, keys)
            hit = at < len(held)
            hit[hit] = held[at[hit]] == keys[hit]
            before[hit] = counts[at[hit]]
            counts[at[hit]] += times[hit]
            new &= ~hit
        self._add(keys[new], times[new])
        # the number of each example among those of its item in the batch
        order = np.argsort(inverse, kind="stable")
        number = np.empty(len(item), np.int64)
        number[order] = np.arange(len(item)) - np.repeat(np.cumsum(times) - times, times)
        return np.asarray(np.minimum(before[inverse] + number, NOT_COUNTED - 1), np.uint32)

    def state(self) -> dict[str, npt.NDArray[Any]]:
        """items: int64[n], rising; counts: int64[n]."""
        self._merge()
        return {"items": self._known[0], "counts": self._known[1]}

    def load(self, state: Mapping[str, npt.NDArray[Any]]) -> None:
        """Go on from what `state` gave."""
        self._known = [state["items"].copy(), state["counts"].copy()]
        self._fresh = [_none(), _none()]

    def _add(self, keys: I64, counts: I64) -> None:
        at = np.searchsorted(self._fresh[0], keys)
        self._fresh = [
            np.insert(held, at, more) for held, more in zip(self._fresh, (keys, counts), strict=True)
        ]
        if len(self._fresh[0]) > FRESH:
            self._merge()

    def _merge(self) -> None:
        keys, counts = (np.concatenate(pair) for pair in zip(self._known, self._fresh, strict=True))
        order = np.argsort(keys, kind="stable")
        self._known, self._fresh = [keys[order], counts[order]], [_none(), _none()]


def _none() -> I64:
    return np.empty(0, np.int64)
