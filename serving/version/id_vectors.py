"""Published vectors of items or content: a matrix with an index by id."""

from __future__ import annotations

import numpy as np
import numpy.typing as npt

from livectr.kernels.keys.keys import MISSING, U32, KeyNumbers
from livectr.protos.store import F32, I64


class IdVectors:
    """Matrix of vectors, sorted by id.

    Args:
        ids: i64[n].
        vectors: f32[n, dim], contiguous.
        before: vectors of the previous version; their index is shared when the ids are equal.
    """

    def __init__(self, ids: I64, vectors: F32, before: IdVectors | None = None) -> None:
        order = np.argsort(ids, kind="stable")
        self.ids = np.ascontiguousarray(ids[order])
        self.vectors = np.ascontiguousarray(vectors[order])
        if before is not None and np.array_equal(before.ids, self.ids):
            self._rows: KeyNumbers = before._rows
        else:
            self._rows = KeyNumbers()
            self._rows.assign(self.ids)

    def __len__(self) -> int:
        return len(self.ids)

    @staticmethod
    def empty(dim: int) -> IdVectors:
        """Matrix without rows, for a version that was published before the first id was known."""
        return IdVectors(np.empty(0, np.int64), np.empty((0, dim), np.float32))

    def find(self, ids: I64) -> tuple[U32, npt.NDArray[np.bool_]]:
        """Rows u32[n] of ids i64[n], and known bool[n]; the row of an unknown id is invalid."""
        rows = self._rows.find(np.ascontiguousarray(ids))
        return rows, rows != MISSING
