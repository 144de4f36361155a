"""Rows of a versioned table that are saved as changes: a base, and what came since.

A part has the versions that came since the part before, and the keys that left before them. Versions that no
look-up finds any more leave without a word: which these are follows from the horizon.
"""

from __future__ import annotations

from collections.abc import Sequence

import numpy as np
import numpy.typing as npt

from livectr.kernels.stream.versions import EMPTY, Entries

I64 = npt.NDArray[np.int64]


class DroppedKeys:
    """Keys that left memory, with the place in the sequence of versions at which they left.

    Attributes:
        first: place from which on all of them are known.
    """

    def __init__(self) -> None:
        self._parts: list[tuple[int, I64]] = []
        self.first = 0

    def add(self, place: int, keys: I64, *, most: int) -> None:
        """Note keys int64[m]; when they become more than `most`, all are given up."""
        self._parts.append((place, keys))
        if len(self) > most:
            self._parts, self.first = [], place + 1

    def since(self, place: int, share: tuple[int, int] = (0, 1)) -> I64:
        """Keys of a rank, of (rank, ranks), that left at a place or later: int64[m], rising."""
        keys = np.unique(np.concatenate([*(k for at, k in self._parts if at >= place), EMPTY.number]))
        return np.asarray(keys[keys % share[1] == share[0]])

    def __len__(self) -> int:
        return sum(len(keys) for _, keys in self._parts)


def rows_that_count(entries: Entries, left: Sequence[I64], horizon: int) -> npt.NDArray[np.bool_]:
    """Mark the versions that a table would hold: bool[v].

    Args:
        entries: v versions in the order of the parts; `number` is the key itself, `place` the part's number.
        left: of each part, the keys that left before its versions.
        horizon: time in ms; versions that end before it are not found by any look-up.
    """
    count = np.ones(len(entries.number), np.bool_)
    for number, keys in enumerate(left):
        if len(keys):
            count[np.isin(entries.number, keys) & (entries.place < number)] = False
    held = np.flatnonzero(count)
    held = held[np.lexsort((held, entries.time[held], entries.number[held]))]
    key, time = entries.number[held], entries.time[held]
    ended = (key[1:] == key[:-1]) & ((time[1:] <= horizon) | (time[1:] == time[:-1]))
    count[held[np.append(ended, False)]] = False
    return count
