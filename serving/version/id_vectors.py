"""Published vectors by id as one matrix: of items, of content."""

from __future__ import annotations

import numpy as np
import numpy.typing as npt

from livectr.kernels.keys.keys import MISSING, U32, KeyNumbers
from livectr.protos.store import F32, I64


class IdVectors:
    """Vectors of ids, by rising id.

    ids: i64[n]; vectors: f32[n, dim], contiguous. before: those of the version before; when the ids are the
    same, so is their index.
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
    def none(dim: int) -> IdVectors:
        """No id at all, for a version that was published before the first one was known."""
        return IdVectors(np.empty(0, np.int64), np.empty((0, dim), np.float32))

    def find(self, ids: I64) -> tuple[U32, npt.NDArray[np.bool_]]:
        """Row of each id i64[n], and whether it is known (bool[n]; an unknown one has no row)."""
        rows = self._rows.find(np.ascontiguousarray(ids))
        return rows, rows != MISSING
