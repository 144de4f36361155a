"""Index of a look-up table: the number of each key, its latest row, and the generation of its last change."""

from __future__ import annotations

import numpy as np
import numpy.typing as npt
import pyarrow as pa

from livectr.kernels.keys.keys import KeyNumbers

I64 = npt.NDArray[np.int64]
DELETED = -1
"""Row of a key that has none."""


class LatestRows:
    """Latest row of each key. Keys have dense numbers in the order of first sight.

    Arrays have room for more keys; their last element stands for unknown keys.

    Attributes:
        keys: int64[≥ n], key of each number.
        row: int64[≥ n], number of its latest row; DELETED: none.
        generation: int64[≥ n], generation of its last change; 0: none.
        live: keys that have a row.
    """

    def __init__(self) -> None:
        self._numbers = KeyNumbers()
        self.keys = np.zeros(1, np.int64)
        self.row = np.full(1, DELETED, np.int64)
        self.generation = np.zeros(1, np.int64)
        self.live = 0
        self._current = 1

    def __len__(self) -> int:
        """n, keys with a number."""
        return len(self._numbers)

    @property
    def bytes(self) -> int:
        """Bytes of the arrays."""
        return self.row.nbytes + self.keys.nbytes + self.generation.nbytes

    def assign(self, keys: I64) -> I64:
        """Numbers of keys, int64 each; an unknown key gets the next number and has no row."""
        numbers = self._numbers.assign(keys).astype(np.int64)
        self._grow(len(self._numbers))
        self.keys[numbers] = keys
        return numbers

    def find(self, keys: I64) -> I64:
        """Numbers of keys, int64 each; an unknown key has a number greater than all others."""
        return self._numbers.find(keys).astype(np.int64)

    def rows(self, keys: I64) -> I64:
        """Rows of keys, int64 each; DELETED without a row."""
        # MISSING is greater than all numbers and is clipped to the last element, DELETED.
        return self.row.take(self._numbers.find(keys), mode="clip")

    def indices(self, keys: I64, first: int) -> pa.Array:
        """Rows of keys int64[n], counted from the row `first`: int32[n], null where a key has none."""
        *arrays, absent = self._numbers.rows(keys, self.row, first)
        return pa.Array.from_buffers(pa.int32(), len(keys), [*map(pa.py_buffer, arrays)], absent)

    def put(self, numbers: I64, rows: I64) -> None:
        """Set rows, int64 each; of equal numbers the last counts."""
        latest = np.unique(numbers[::-1], return_index=True)[1]
        latest = len(numbers) - 1 - latest
        changed = numbers[latest]
        self.live -= int(np.count_nonzero(self.row[changed] >= 0))
        self.row[changed] = rows[latest]
        self.live += int(np.count_nonzero(self.row[changed] >= 0))
        self.generation[changed] = self._current

    def delete(self, numbers: I64) -> None:
        """Take the rows from different keys, as far as they have one."""
        old = numbers[self.row[numbers] >= 0]
        self.row[old], self.generation[old] = DELETED, self._current
        self.live -= len(old)

    def mark(self) -> int:
        """Close the current generation and return its number."""
        self._current += 1
        return self._current - 1

    def changed(self, since: int) -> I64:
        """Numbers of the keys that changed after a generation (0: all), rising."""
        return np.flatnonzero(self.generation > since)

    def in_use(self) -> I64:
        """Numbers of the rows, rising."""
        return np.unique(self.row[self.row >= 0])

    def renumber(self, old: I64) -> None:
        """Renumber the rows: row old[i] becomes i; `old` is sorted and has all rows."""
        live = np.flatnonzero(self.row >= 0)
        self.row[live] = np.searchsorted(old, self.row[live])

    def keep(self, old: I64) -> None:
        """Renumber the keys: key old[i] becomes i; `old` is sorted and has all keys with a row."""
        keys, row, generation = self.keys[old], self.row[old], self.generation[old]
        self._numbers = KeyNumbers()
        self._numbers.assign(keys)
        self.keys, self.row, self.generation = (np.empty(0, np.int64) for _ in range(3))
        self._grow(len(old))
        self.keys[: len(old)], self.row[: len(old)], self.generation[: len(old)] = keys, row, generation

    def _grow(self, count: int) -> None:
        if count >= len(self.row):
            more = max(count + 1, 2 * len(self.row), 1024) - len(self.row)
            self.row = np.concatenate([self.row, np.full(more, DELETED, np.int64)])
            self.keys = np.concatenate([self.keys, np.zeros(more, np.int64)])
            self.generation = np.concatenate([self.generation, np.zeros(more, np.int64)])
