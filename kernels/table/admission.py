"""Admission: a key enters a table after k batches have had it (count-min sketch, table/admission.hpp)."""

from __future__ import annotations

import ctypes

import numpy as np
import numpy.typing as npt

from livectr.kernels.runtime.arrays import address, contiguous
from livectr.kernels.table.native import checked

ROWS = 4
LEAST, MOST = 2, 127
"""Bounds of the sightings that admission may require: counts are bytes."""


class Admission:
    """Admission part of kernels.table.table.DynamicTable: filters the new keys of FieldTables.forward.

    A key that is not admitted is scored with its initial values and not stored, and its gradient is dropped.
    find_or_insert, update and assign admit every key.
    """

    library: ctypes.CDLL
    handle: int
    name: str
    _sketch_width = 0

    def admit_after(self, sightings: int, sketch_bytes: int) -> None:
        """Requires sightings: a new key enters with the batch that is its `sightings`-th.

        A key may enter too early, with a probability of at most (1 - exp(-1/2))⁴ = 2.4 % for 2 sightings
        and less for more. It enters too late only where its sightings were halved.

        Args:
            sightings: 2 to 127 batches.
            sketch_bytes: memory of the counts, rounded down to a power of two, at least 64. After every
                sketch_bytes / 16 sightings of keys that are not stored, all counts are halved, rounded down.

        Raises:
            ValueError: a number out of range.
        """
        if not LEAST <= sightings <= MOST:
            raise ValueError(f"table {self.name!r}: sightings are {LEAST} to {MOST}, not {sightings}")
        if sketch_bytes < 64:
            raise ValueError(f"table {self.name!r}: a sketch has at least 64 bytes, not {sketch_bytes}")
        width = 1 << (sketch_bytes // ROWS).bit_length() - 1
        checked(self.library.table_admit(self.handle, sightings, width))
        self._sketch_width = width

    @property
    def admits_all(self) -> bool:
        """True if every new key enters."""
        return not self._sketch_width

    def admission_counts(self) -> tuple[int, int]:
        """Counts since the table was made: keys that entered, and sightings of keys that were refused."""
        _, admitted, refused = self._numbers()
        return admitted, refused

    def sketch(self) -> tuple[npt.NDArray[np.uint8], int]:
        """Exports counts uint8[4, width], and the sightings since they were halved.

        Both are arguments of `load_sketch`.
        """
        cells = np.empty((ROWS, self._sketch_width), np.uint8)
        self.library.table_sketch(self.handle, address(cells))
        return cells, self._numbers()[0]

    def load_sketch(self, cells: npt.ArrayLike, seen: int) -> None:
        """Restores what `sketch` exported. Raises ValueError for a sketch of another size."""
        cells = contiguous(cells, np.uint8, (ROWS, self._sketch_width))
        if not 0 <= seen <= self._sketch_width // 2:
            raise ValueError(f"table {self.name!r}: a sketch of {cells.shape} never saw {seen} keys")
        self.library.table_set_sketch(self.handle, address(cells), seen)

    def _numbers(self) -> list[int]:
        numbers = np.empty(3, np.int64)
        self.library.table_admission(self.handle, address(numbers))
        return numbers.tolist()
