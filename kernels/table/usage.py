"""Usage of table rows: last use, frequency, and choice of rows to evict (LRU or LFU; table/usage.hpp).

A table that is built with `track=True` keeps a stamp (uint32) for each row: the number last given to `now`
when the row took part in FieldTables.forward, find_or_insert or update, or was inserted. With `half_life` it
also keeps a count of uses, which halves whenever a multiple of `half_life` lies between two stamps: a use
adds 256, the count saturates at 2³² - 1, and 9 halvings forget a single use. A row that occurs many times in
one call is used once.

The choice depends on stamps, counts and keys alone, never on row numbers: a restored table chooses the
same rows.
"""

from __future__ import annotations

import ctypes

import numpy as np
import numpy.typing as npt

from livectr.kernels.runtime.arrays import address, contiguous
from livectr.kernels.table.native import checked

Keys = npt.NDArray[np.int64]
Stamps = npt.NDArray[np.uint32]

LAST_STAMP = 0xFFFFFFFE


class Tracked:
    """Usage part of kernels.table.table.DynamicTable.

    All calls raise RuntimeError if the table does not track.

    Costs 4 bytes per row, with counts 8. The choosing calls are a few passes over these columns (O(rows), no
    sorting, no allocation except for the result): call them when a budget is exceeded, not in every step.
    """

    library: ctypes.CDLL
    handle: int
    name: str
    tracks = False
    half_life = 0
    _now = 0

    def track(self, half_life: int = 0) -> None:
        """Starts to track.

        Args:
            half_life: stamps after which counts halve; 0: no counts.

        Raises:
            ValueError: the table has rows.
        """
        if self.library.table_size(self.handle) or not 0 <= half_life <= LAST_STAMP:
            raise ValueError(
                f"table {self.name!r}: track an empty table, with a half-life of 0 or more stamps"
            )
        self.tracks, self.half_life = True, half_life
        self.library.table_track(self.handle, half_life)

    def now(self, stamp: int) -> None:
        """Sets the stamp of the following uses; it never falls. Raises ValueError for a lower stamp."""
        self._check()
        if not self._now <= stamp <= LAST_STAMP:
            raise ValueError(
                f"table {self.name!r}: a stamp is at least the one before, {self._now}, not {stamp}"
            )
        self._now = stamp
        self.library.table_now(self.handle, stamp)

    def oldest(self, count: int) -> Keys:
        """Least recently used keys: the `count` (or all) with the least (stamp, key), unordered."""
        return self._lowest(self.library.table_oldest, count)

    def rarest(self, count: int) -> Keys:
        """Least frequently used keys: the `count` (or all) with the least (count as of now, stamp, key).

        They are in no promised order.
        """
        if not self.half_life:
            raise RuntimeError(f"table {self.name!r} counts no uses: build it with track=True, half_life=...")
        return self._lowest(self.library.table_rarest, count)

    def older_than(self, stamp: int) -> Keys:
        """Keys whose stamp is below `stamp`, in no promised order."""
        self._check()
        stamp = min(max(stamp, 0), LAST_STAMP)
        keys = np.empty(checked(self.library.table_older_than(self.handle, stamp, None)), np.int64)
        checked(self.library.table_older_than(self.handle, stamp, address(keys)))
        return keys

    def usage(self, keys: npt.ArrayLike) -> tuple[Stamps, Stamps]:
        """Stamps uint32[n] and counts uint32[n] (as of their stamps) of keys int64[n]; 0 without a row."""
        self._check()
        keys = contiguous(keys, np.int64, (None,))
        stamps, counts = np.empty(len(keys), np.uint32), np.empty(len(keys), np.uint32)
        checked(
            self.library.table_usage(self.handle, address(keys), len(keys), address(stamps), address(counts))
        )
        return stamps, counts

    def set_usage(self, keys: npt.ArrayLike, stamps: npt.ArrayLike, counts: npt.ArrayLike) -> int:
        """Restores what `usage` returned; keys without a row are skipped. Returns the number of rows set.

        Raises:
            ValueError: a stamp that no `now` can have set.
        """
        self._check()
        keys = contiguous(keys, np.int64, (None,))
        stamps = contiguous(stamps, np.uint32, (len(keys),))
        counts = contiguous(counts, np.uint32, (len(keys),))
        if stamps.max(initial=0) > LAST_STAMP:
            raise ValueError(f"table {self.name!r}: a stamp is at most {LAST_STAMP}")
        return checked(
            self.library.table_set_usage(
                self.handle, address(keys), len(keys), address(stamps), address(counts)
            )
        )

    def _lowest(self, call: ctypes._NamedFuncPointer, count: int) -> Keys:
        self._check()
        keys = np.empty(min(max(count, 0), self.library.table_size(self.handle)), np.int64)
        checked(call(self.handle, len(keys), address(keys)))
        return keys

    def _check(self) -> None:
        if not self.tracks:
            raise RuntimeError(f"table {self.name!r} keeps no track of use: build it with track=True")
