"""Partial results of items at a version: what an ad's own features add to the model (DES's M_j), once.

An item's partial result depends on its look-up row, its embedding rows and the model's weights, all of which
change with versions only. So a store belongs to a version. The next version's store begins with the items
that were asked for most.
"""

from __future__ import annotations

import threading
import time

import numpy as np
import numpy.typing as npt
import pyarrow as pa

from livectr.kernels.keys.keys import MISSING, KeyNumbers
from livectr.kernels.runtime.arrays import address, aligned
from livectr.store.layout import F32, I64


class ItemPartials:
    """Partial results f32[S] of items at a version; thread-safe.

    A full store takes no more items.

    Args:
        size: S.
        max_bytes: bound on the memory of partial results.
        before: store of the previous version; None: the first version.

    Attributes:
        made_at: instant of time.monotonic() of the oldest partial result.
    """

    def __init__(self, size: int, max_bytes: int, before: ItemPartials | None = None) -> None:
        self._size = size
        self._most = max_bytes // (4 * size)
        self.values: F32 = aligned(self._most, size)
        self._first = address(self.values)
        self._numbers = KeyNumbers()
        self._uses: npt.NDArray[np.uint32] = np.zeros(self._most, np.uint32)
        self._items: list[pa.Array] = []
        self._lock = threading.Lock()
        self._before = before
        if before is not None:
            before._before = None  # nobody asks it any more, and a chain of stores would never end
        self.made_at = time.monotonic()

    def __len__(self) -> int:
        """Number of items."""
        return len(self._numbers)

    def find(self, keys: I64) -> I64:
        """Addresses i64[n] of the partial results of keys i64[n]; 0: not stored."""
        with self._lock:
            return self._numbers.places(keys, self._first, 4 * self._size, self._uses)

    def add(self, keys: I64, items: pa.Array, partials: F32, *, asked: bool = True) -> None:
        """Keep partial results f32[n, S] of distinct keys i64[n], as far as there is room.

        Args:
            keys: i64[n], distinct.
            items: values of the item column.
            partials: f32[n, S].
            asked: a request asked for them.
        """
        with self._lock:
            new = np.flatnonzero(self._numbers.find(np.ascontiguousarray(keys)) == MISSING)
            first = len(self._numbers)
            new = new[: self._most - first]
            if len(new):
                self.values[first : first + len(new)] = partials[new]
                self._uses[first : first + len(new)] = asked
                self._items.append(items.take(pa.array(new)))
                self._numbers.assign(keys[new])

    def wanted(self) -> pa.Array | None:
        """Items that were asked for at the version before, most first; a second call gives None."""
        before, self._before = self._before, None
        return None if before is None else before.used()

    def used(self) -> pa.Array | None:
        """Items that were asked for, most first; None: none."""
        with self._lock:
            items, uses = list(self._items), self._uses[: len(self._numbers)].copy()
        order = np.argsort(-uses.astype(np.int64), kind="stable")[: np.count_nonzero(uses)]
        return pa.concat_arrays(items).take(pa.array(order)) if len(order) else None
