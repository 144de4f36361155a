"""Counts of the examples of each item that a run has learned; an item with few of them is *cold*.

The counts are a function of the log alone. They follow the global training order, also within a batch, and a
checkpoint keeps them, so that a resumed run continues counting. Rank 0 counts, as it measures the quality.
"""

from __future__ import annotations

from typing import TYPE_CHECKING

import numpy as np
import numpy.typing as npt

from livectr.trainer.part import Arrays, Part

if TYPE_CHECKING:
    from livectr.trainer.setup import Setup

I64 = npt.NDArray[np.int64]
U32 = npt.NDArray[np.uint32]

COLD = 20
"""Examples up to which an item is cold. At a click rate of 5 % they have one click: until then the embedding
of the id has learned next to nothing. (The paper of DICM gives no number.)"""
NOT_COUNTED = 2**32 - 1
"""Count of every item if the pipeline has no items table: nothing is cold."""
FRESH = 1 << 15
"""New items that are kept apart, so that a batch with new items does not move all others."""


def is_cold(seen: U32) -> npt.NDArray[np.bool_]:
    """Tell which examples' items were cold, bool[B], by their counts uint32[B]."""
    return seen < COLD


class ItemCounts(Part):
    """Item → examples so far, 16 bytes an item, as two sorted arrays: all older items, and the newest."""

    kind = "items"

    def __init__(self) -> None:
        self._known = [_none(), _none()]
        self._fresh = [_none(), _none()]

    @staticmethod
    def of(setup: Setup) -> ItemCounts | None:
        """Counts of a run on rank 0; None without an items table, and on other ranks."""
        return ItemCounts() if setup.rank == 0 and setup.pipeline.items is not None else None

    def __len__(self) -> int:
        return len(self._known[0]) + len(self._fresh[0])

    def seen(self, item: I64) -> U32:
        """Look up and count the items int64[B] of a batch.

        Returns:
            uint32[B], examples of the same item before each example, in this order.
        """
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
        # the number of each example among the batch's examples of its item
        order = np.argsort(inverse, kind="stable")
        number = np.empty(len(item), np.int64)
        number[order] = np.arange(len(item)) - np.repeat(np.cumsum(times) - times, times)
        return np.asarray(np.minimum(before[inverse] + number, NOT_COUNTED - 1), np.uint32)

    def learned(self, item: I64) -> U32:
        """Look up the items int64[B] and count nothing: examples of each item so far, uint32[B]."""
        self._merge()
        known, counts = self._known
        at = np.searchsorted(known, item)
        hit = at < len(known)
        hit[hit] = known[at[hit]] == item[hit]
        found = np.zeros(len(item), np.int64)
        found[hit] = counts[at[hit]]
        return np.asarray(np.minimum(found, NOT_COUNTED - 1), np.uint32)

    def state(self) -> Arrays:
        """State for a checkpoint: items int64[n], rising, and counts int64[n]."""
        self._merge()
        return {"items": self._known[0], "counts": self._known[1]}

    def load(self, state: Arrays) -> None:
        """Resume counting from a `state`."""
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
