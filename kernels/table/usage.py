"""When a table's rows were last used, how often, and which of them would be missed least (table/usage.cuh).

A table that is built with `track=True` keeps a stamp (uint32) for each row: the number last given to `now`
when the row took part in FieldTables.forward, find_or_insert or update, or was inserted. With `half_life` it
also keeps a count of uses, which halves whenever a multiple of `half_life` lies between two stamps: a use
adds 256, the count saturates at 2³² - 1, and 9 halvings forget a single use. A row that occurs many times in
one call is used once.

What is chosen depends on stamps, counts and keys alone, never on row numbers: a restored table chooses the
same.
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
    """The part of kernels.table.table.DynamicTable that keeps track of use; all raise RuntimeError if it
    does not.

    Costs 4 bytes a row, with counts 8. The choosing calls are a few passes over these columns (O(rows), no
    sorting, no allocation but for what is chosen): call them when a budget is passed, not in every step.
    """

    library: ctypes.CDLL
    handle: int
    name: str
    tracks = False
    half_life = 0
    _now = 0

    def track(self, half_life: int = 0) -> None:
        """Keep track from here on; half_life 0: no counts. Raises ValueError for a table that has rows."""
        if self.library.table_size(self.handle) or not 0 <= half_life <= LAST_STAMP:
            raise ValueError(
                f"table {self.name!r}: track an empty table, with a half-life of 0 or more stamps"
            )
        self.tracks, self.half_life = True, half_life
        self.library.table_track(self.handle, half_life)

    def now(self, stamp: int) -> None:
        """The stamp of what is used from here on; it never falls. Raises ValueError for one that does."""
        self._check()
        if not self._now <= stamp <= LAST_STAMP:
            raise ValueError(
                f"table {self.name!r}: a stamp is at least the one before, {self._now}, not {stamp}"
            )
        self._now = stamp
        self.library.table_now(self.handle, stamp)

    def oldest(self, count: int) -> Keys:
        """The `count` keys (or all, if there are fewer) with the least (stamp, key); in no promised order."""
        return self._lowest(self.library.table_oldest, count)

    def rarest(self, count: int) -> Keys:
        """The `count` keys (or all) with the least (count as of now, stamp, key); in no promised order."""
        if not self.half_life:
            raise RuntimeError(f"table {self.name!r} counts no uses: build it with track=True, half_life=...")
        return self._lowest(self.library.table_rarest, count)

    def older_than(self, stamp: int) -> Keys:
        """The keys whose stamp is below `stamp`; in no promised order."""
        self._check()
        stamp = min(max(stamp, 0), LAST_STAMP)
        keys = np.empty(checked(self.library.table_older_than(self.handle, stamp, None)), np.int64)
        checked(self.library.table_older_than(self.handle, stamp, address(keys)))
        return keys

    def usage(self, keys: npt.ArrayLike) -> tuple[Stamps, Stamps]:
        """uint32[n] stamps and uint32[n] counts (as of their stamps) of int64[n] keys; 0 where no row is."""
        self._check()
        keys = contiguous(keys, np.int64, (None,))
        stamps, counts = np.empty(len(keys), np.uint32), np.empty(len(keys), np.uint32)
        checked(
            self.library.table_usage(self.handle, address(keys), len(keys), address(stamps), address(counts))
        )
        return stamps, counts

    def set_usage(self, keys: npt.ArrayLike, stamps: npt.ArrayLike, counts: npt.ArrayLike) -> int:
        """Gives rows what `usage` told of them; keys without a row are passed over. Returns the rows set.

        Raises ValueError for a stamp that no `now` can have set.
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
