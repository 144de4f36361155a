"""Published vectors of items or content: a matrix with an index by id."""

from __future__ import annotations

from collections.abc import Sequence

import numpy as np
import numpy.typing as npt

from livectr.kernels.keys.keys import MISSING, U32, KeyNumbers
from livectr.kernels.request.pooled import ItemMatrix
from livectr.kernels.runtime.arrays import aligned
from livectr.store.layout import F32, I64


def joined(parts: Sequence[tuple[I64, F32]]) -> tuple[I64, F32]:
    """Ids i64[n] and vectors f32[n, dim] of blobs, at least one."""
    if len(parts) == 1:
        return parts[0]
    ids, vectors = zip(*parts, strict=True)
    return np.concatenate(ids), np.concatenate(vectors)


class IdVectors:
    """Matrix of vectors, sorted by id.

    Args:
        ids: i64[n]; of a repeated id the last vector counts.
        vectors: f32[n, dim]; they are copied to memory whose rows share few lines of the cache.
        before: vectors of the previous version; their index is shared when the ids are equal.
        worths: f32[n], of the ids; None: they have none.
    """

    def __init__(
        self, ids: I64, vectors: F32, before: IdVectors | None = None, worths: F32 | None = None
    ) -> None:
        self.worths = None if worths is None else worths.copy()
        if (ids[1:] <= ids[:-1]).any():
            order = np.argsort(ids, kind="stable")
            self.ids: I64 = ids[order]
            last = np.append(self.ids[1:] != self.ids[:-1], True)
            if not last.all():
                order, self.ids = order[last], self.ids[last]
            self.vectors = aligned(len(order), vectors.shape[1])
            np.take(vectors, order, axis=0, out=self.vectors, mode="clip")  # "raise" would copy
            self.worths = None if worths is None else worths[order]
        else:
            self.vectors = aligned(*vectors.shape)
            self.vectors[:] = vectors
            self.ids = ids.copy()  # a view would keep the blob
        if before is not None and np.array_equal(before.ids, self.ids):
            self._rows: KeyNumbers = before._rows
        else:
            self._rows = KeyNumbers()
            self._rows.assign(self.ids)

    def __len__(self) -> int:
        return len(self.ids)

    @staticmethod
    def empty(dim: int, *, worths: bool = False) -> IdVectors:
        """Matrix without rows, for a version that was published before the first id was known."""
        none = np.empty(0, np.float32) if worths else None
        return IdVectors(np.empty(0, np.int64), np.empty((0, dim), np.float32), worths=none)

    def with_newer(self, ids: I64, vectors: F32, worths: F32 | None = None) -> IdVectors:
        """These vectors with newer ones; of a repeated id the last counts.

        Args:
            ids: i64[n], known or not.
            vectors: f32[n, dim].
            worths: f32[n], where these have some.
        """
        rows, known = self.find(ids)
        if known.all():
            newer, own = self.vectors.copy(), self.worths
            newer[rows] = vectors
            if own is not None:
                own = own.copy()
                own[rows] = worths
            return IdVectors(self.ids, newer, self, own)
        own = None if self.worths is None or worths is None else np.concatenate([self.worths, worths])
        return IdVectors(np.concatenate([self.ids, ids]), np.concatenate([self.vectors, vectors]), worths=own)

    def find(self, ids: I64) -> tuple[U32, npt.NDArray[np.bool_]]:
        """Rows u32[n] of ids i64[n], and known bool[n]; the row of an unknown id is invalid."""
        rows = self._rows.find(np.ascontiguousarray(ids))
        return rows, rows != MISSING

    @property
    def matrix(self) -> ItemMatrix:
        """These vectors, for compiled calls."""
        return ItemMatrix(self._rows, self.ids, self.vectors, self.worths)
