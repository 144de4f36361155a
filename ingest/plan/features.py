"""Batch of features: ragged 64-bit keys of the sparse fields and a matrix of dense numbers."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass, field, replace
from typing import Any

import numpy as np
import numpy.typing as npt


@dataclass(frozen=True)
class Features:
    """Features of B rows.

    Args:
        rows: B.
        offsets: int32[F·B + 1], field-major: the keys of field f in row b are keys[offsets[f·B + b] :
            offsets[f·B + b + 1]].
        keys: int64[nnz].
        dense: float32[B, D_dense], always finite.
        observed: int64[S, B], inputs of the plan's statistics as 8-byte words (float64 or int64).
        failed: bool[B], rows that could not be extracted; their features must not be used.
    """

    rows: int
    offsets: npt.NDArray[np.int32]
    keys: npt.NDArray[np.int64]
    dense: npt.NDArray[np.float32]
    observed: npt.NDArray[np.int64] = field(default_factory=lambda: np.empty((0, 0), np.int64))
    failed: npt.NDArray[np.bool_] = field(default_factory=lambda: np.empty(0, bool))

    def __len__(self) -> int:
        return self.rows

    @property
    def fields(self) -> int:
        """F; 0 when there are no rows, because then it is unknown."""
        return (len(self.offsets) - 1) // self.rows if self.rows else 0

    @property
    def counts(self) -> npt.NDArray[np.int64]:
        """Keys of each field, int64[F]."""
        ends = self.offsets[:: max(self.rows, 1)].astype(np.int64)
        return ends[1:] - ends[:-1] if self.rows else np.empty(0, np.int64)

    @property
    def lengths(self) -> npt.NDArray[np.int32]:
        """Keys per field and row, int32[F, B]."""
        return np.diff(self.offsets).reshape(self.fields, self.rows)

    def field(self, index: int) -> tuple[npt.NDArray[np.int32], npt.NDArray[np.int64]]:
        """(offsets int32[B + 1] from 0, keys) of a field."""
        offsets = self.offsets[index * self.rows : (index + 1) * self.rows + 1]
        return offsets - offsets[0], self.keys[offsets[0] : offsets[-1]]

    def ids(self) -> Features:
        """The same rows without their dense numbers."""
        return replace(self, dense=self.dense[:, :0])

    def host(self) -> Features:
        """These features: they are on the host. Others are on a device (`extract.device_features`)."""
        return self

    def take(self, rows: npt.NDArray[Any] | Sequence[int]) -> Features:
        """Gather rows in the given order; repeats are allowed.

        Raises:
            IndexError: a row is out of range.
        """
        index = np.asarray(rows, np.int64)
        fields = self.fields
        if self.rows and len(index) and (index.min() < -self.rows or index.max() >= self.rows):
            raise IndexError(f"row out of range of a batch of {self.rows}")
        cells = (np.arange(fields)[:, None] * self.rows + index % max(self.rows, 1)).ravel()
        starts, ends = self.offsets[cells], self.offsets[cells + 1]
        offsets = _offsets(ends - starts)
        gather = np.repeat(starts - offsets[:-1], ends - starts) + np.arange(offsets[-1])
        observed = self.observed[:, index] if len(self.observed) else np.empty((0, len(index)), np.int64)
        failed = self.failed[index] if len(self.failed) else self.failed
        return Features(len(index), offsets, self.keys[gather], self.dense[index], observed, failed)

    def select_fields(self, fields: Sequence[int]) -> Features:
        """Select fields in the given order; dense numbers stay."""
        if not self.rows or list(fields) == list(range(self.fields)):
            return self
        parts = [self.field(index) for index in fields]
        offsets = _offsets(
            np.concatenate([np.diff(part[0]) for part in parts]) if parts else np.empty(0, np.int32)
        )
        keys = np.concatenate([part[1] for part in parts]) if parts else self.keys[:0]
        return replace(self, offsets=offsets, keys=keys)

    def merge(self, other: Features, fields: Sequence[int], dense: Sequence[int]) -> Features:
        """Merge features of the same rows side by side (FeatureBox §3, "merge features").

        `observed` and `failed` are taken from this batch.

        Args:
            other: features of the same rows.
            fields: fields of the result, numbered over this batch's and then the other's fields.
            dense: dense numbers of the result, numbered likewise.

        Raises:
            ValueError: the batches have different numbers of rows.
        """
        if self.rows != other.rows:
            raise ValueError(f"features of {self.rows} rows cannot be merged with those of {other.rows}")
        if not self.rows:
            return replace(self, dense=np.empty((0, len(dense)), np.float32))
        parts = [batch.field(index) for batch in (self, other) for index in range(batch.fields)]
        lengths = [np.diff(parts[index][0]) for index in fields]
        keys = [parts[index][1] for index in fields]
        return replace(
            self,
            offsets=_offsets(np.concatenate(lengths) if lengths else np.empty(0, np.int32)),
            keys=np.concatenate(keys) if keys else self.keys[:0],
            dense=np.ascontiguousarray(np.concatenate([self.dense, other.dense], axis=1)[:, list(dense)]),
        )

    @staticmethod
    def concat(batches: Sequence[Features]) -> Features:
        """Concatenate the rows of batches with the same fields.

        Raises:
            ValueError: the batches have different numbers of fields.
        """
        full = [batch for batch in batches if batch.rows]
        if len(full) <= 1:
            return full[0] if full else batches[0]
        fields = full[0].fields
        if any(batch.fields != fields for batch in full):
            raise ValueError(f"batches of {[batch.fields for batch in full]} fields cannot be joined")
        offsets = _offsets(np.concatenate([batch.lengths for batch in full], axis=1).ravel())
        keys = [batch.field(index)[1] for index in range(fields) for batch in full]
        return Features(
            sum(batch.rows for batch in full),
            offsets,
            np.concatenate(keys) if keys else full[0].keys,
            np.concatenate([batch.dense for batch in full]),
            np.concatenate([batch.observed for batch in full], axis=1),
            np.concatenate([batch.failed for batch in full]),
        )


def _offsets(lengths: npt.NDArray[np.int32]) -> npt.NDArray[np.int32]:
    offsets = np.zeros(len(lengths) + 1, np.int64)
    np.cumsum(lengths, out=offsets[1:])
    if offsets[-1] > np.iinfo(np.int32).max:
        raise ValueError(f"{offsets[-1]} keys in one batch; offsets are int32")
    return offsets.astype(np.int32)
