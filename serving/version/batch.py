"""Batch of ragged keys, and its vectors: what a request reads from the near-cache."""

from __future__ import annotations

from dataclasses import dataclass, replace
from typing import Protocol

import numpy as np
import numpy.typing as npt

from livectr.kernels.table.field_tables import FieldTables
from livectr.kernels.table.table import DynamicTable
from livectr.store.layout import F32, I64

I32 = npt.NDArray[np.int32]


class RaggedKeys(Protocol):
    """Ragged keys of some rows, as `Features` has them."""

    @property
    def rows(self) -> int:
        """B rows."""

    @property
    def offsets(self) -> I32:
        """i32[F · B + 1], field-major."""

    @property
    def keys(self) -> I64:
        """i64[nnz]."""


def field_tables(
    tables: dict[str, DynamicTable],
    fields: tuple[tuple[str, str], ...],
    sequences: tuple[int, ...],
    once: int,
) -> FieldTables:
    """Reader of batches: fields of a single row in block 1, the others in block 0, then each sequence.

    Args:
        tables: by name.
        fields: as the attribute of `Batch`.
        sequences: as the attribute of `Batch`; each is read again as a field of one-key rows.
        once: as the attribute of `Batch`.
    """
    blocks = [1] * once + [0] * (len(fields) - once)
    read = (*fields, *(fields[i] for i in sequences))
    return FieldTables(tables, read, [*blocks, *range(2, 2 + len(sequences))])


@dataclass(frozen=True)
class Batch:
    """Ragged keys of F fields, to be pooled.

    Args:
        fields: F pairs (field name, table name).
        offsets: i32[cells + 1], field-major as in `Features`; a field has a cell for each row.
        keys: i64[nnz].
        rows: B.
        sequences: indices of the fields of which the vector of each key is read as well.
        once: number of fields, the first, that have a single row.
    """

    fields: tuple[tuple[str, str], ...]
    offsets: I32
    keys: I64
    rows: int
    sequences: tuple[int, ...] = ()
    once: int = 0

    @staticmethod
    def joined(
        fields: tuple[tuple[str, str], ...], sequences: tuple[int, ...], once: RaggedKeys, each: RaggedKeys
    ) -> Batch:
        """Batch of the keys of some fields of a single row, then those of fields of B rows.

        Args:
            fields: as the attribute.
            sequences: as the attribute.
            once: keys of the first fields.
            each: keys of the other fields.
        """
        count = len(once.offsets) - 1
        if count == 0:
            return Batch(fields, each.offsets, each.keys, each.rows, sequences)
        if len(each.offsets) == 1:  # rows have no field of their own
            return Batch(fields, once.offsets, once.keys, each.rows, sequences, count)
        return Batch(
            fields,
            np.concatenate([once.offsets, each.offsets[1:] + once.offsets[-1]]),
            np.concatenate([once.keys, each.keys]),
            each.rows,
            sequences,
            count,
        )

    @property
    def ends(self) -> list[int]:
        """Field f has keys[ends[f] : ends[f + 1]]."""
        return [*self.offsets[: self.once].tolist(), *self.offsets[self.once :: self.rows].tolist()]

    def infer(self, field_tables: FieldTables) -> tuple[Vectors, int]:
        """Read the vectors of this batch; also the number of its keys that are missing."""
        offsets, keys, lists = self.offsets, self.keys, [self._cells(i) for i in self.sequences]
        if lists:
            keys = np.concatenate([keys, *(keys[at[0] : at[-1]] for at in lists)])
            more = np.arange(len(self.keys) + 1, len(keys) + 1, dtype=np.int32)
            offsets = np.concatenate([offsets, more])
        lengths = [int(at[-1] - at[0]) for at in lists]
        (pooled, once, *sequences), missing = field_tables.infer_counted(
            offsets, keys, self.rows, 1, *lengths
        )
        parts = zip(lists, sequences, strict=True)
        ragged = tuple(RaggedVectors(v[:, 0], (at - at[0]).astype(np.int64)) for at, v in parts)
        return Vectors(pooled, ragged, once), missing

    def _cells(self, field: int) -> I32:
        """Offsets of a field's cells, i32[rows + 1]."""
        if field < self.once:
            return self.offsets[field : field + 2]
        first = self.once + (field - self.once) * self.rows
        return self.offsets[first : first + self.rows + 1]


@dataclass(frozen=True)
class RaggedVectors:
    """Vectors of a field's keys; row b has values[offsets[b] : offsets[b + 1]], or all rows share a list.

    Args:
        values: f32[nnz, D].
        offsets: i64[rows + 1]; i64[2] of a shared list.
        shared_by: number of rows that share the only list; 0: each row has its own list.
    """

    values: F32
    offsets: I64
    shared_by: int = 0

    def broadcast(self, rows: int) -> RaggedVectors:
        """Share the list of a single row among `rows` rows, without a copy."""
        return replace(self, shared_by=rows)

    def slice(self, first: int, last: int) -> RaggedVectors:
        """Lists of the rows from `first` to before `last`."""
        if self.shared_by:
            return replace(self, shared_by=last - first)
        start, end = self.offsets[first], self.offsets[last]
        return RaggedVectors(self.values[start:end], self.offsets[first : last + 1] - start)

    def padded(self, more: int) -> RaggedVectors:
        """With `more` rows at the end: empty lists, or the list that all rows share."""
        if self.shared_by:
            return replace(self, shared_by=self.shared_by + more)
        return replace(self, offsets=np.pad(self.offsets, (0, more), mode="edge"))


@dataclass(frozen=True)
class Vectors:
    """Vectors of a batch.

    Args:
        pooled: f32[B, F, D], sums over the keys of a field.
        lists: vectors of each key, for each field of `Batch.sequences`.
        once: f32[1, `Batch.once`, D], the same sums of the fields that have a single row.
    """

    pooled: F32
    lists: tuple[RaggedVectors, ...]
    once: F32
