"""Partial results of items at a version: what an ad's own features add to the model (DES's M_j), once.

An item's partial result depends on its look-up row, its embedding rows and the model's weights, all of which
change with versions only. So a store belongs to a version. The next version's store begins with the items
that were asked for most.
"""

from __future__ import annotations

import threading
import time

import numpy as np
import pyarrow as pa

from livectr.kernels.request.partials import Partials
from livectr.store.layout import F32, I64


class ItemPartials:
    """Partial results f32[S] of items at a version; thread-safe.

    A full store takes no more items.

    Args:
        size: S.
        max_bytes: bound on the memory of partial results.
        before: store of the previous version; None: the first version.

    Attributes:
        partials: by key.
        made_at: instant of time.monotonic() of the oldest partial result.
    """

    def __init__(self, size: int, max_bytes: int, before: ItemPartials | None = None) -> None:
        self.partials = Partials(max_bytes // (4 * size), size)
        self._items: list[pa.Array] = []
        self._count = 0
        self._lock = threading.Lock()  # `partials` and `_items` have one order
        self._before = before
        if before is not None:
            before._before = None  # nobody asks it any more, and a chain of stores would never end
        self.made_at = time.monotonic()

    def __len__(self) -> int:
        """Number of items."""
        return self._count

    def add(self, keys: I64, items: pa.Array, partials: F32, *, asked: bool = True) -> None:
        """Keep partial results f32[n, S] of distinct keys i64[n], as far as there is room.

        Args:
            keys: i64[n], distinct.
            items: values of the item column.
            partials: f32[n, S].
            asked: a request asked for them.
        """
        with self._lock:
            taken = self.partials.add(keys, partials, int(asked))
            if len(taken):
                self._items.append(items.take(pa.array(taken)))
                self._count += len(taken)

    def wanted(self) -> pa.Array | None:
        """Items that were asked for at the version before, most first; a second call gives None."""
        before, self._before = self._before, None
        return None if before is None else before.used()

    def used(self) -> pa.Array | None:
        """Items that were asked for, most first; None: none."""
        with self._lock:
            items, uses = list(self._items), self.partials.uses(self._count)
        order = np.argsort(-uses.astype(np.int64), kind="stable")[: np.count_nonzero(uses)]
        return pa.concat_arrays(items).take(pa.array(order)) if len(order) else None
