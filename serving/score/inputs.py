"""Inputs of a model: vectors of fields, of which all rows of a request may share some."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, replace

import numpy as np
import torch
from torch import Tensor

from livectr.ingest.extract.sharing import SharedFeatures
from livectr.models.inputs import Gathered, Ragged
from livectr.models.ragged import RepeatedList
from livectr.serving.version.batch import RaggedVectors
from livectr.store.layout import F32

Lists = Mapping[str, RaggedVectors]
"""Field → ragged vectors."""


@dataclass(frozen=True)
class FieldVectors:
    """Pooled vectors of B rows; fields that all rows share are there once.

    Args:
        own: f32[B, F_own, D].
        own_fields: numbers of these fields in the plan, ascending.
        shared: f32[1, F_shared, D].
        shared_fields: numbers of the other fields, ascending.
    """

    own: F32
    own_fields: tuple[int, ...]
    shared: F32
    shared_fields: tuple[int, ...]

    @staticmethod
    def of(vectors: F32) -> FieldVectors:
        """Vectors f32[B, F, D] of which rows share none."""
        return FieldVectors(vectors, tuple(range(vectors.shape[1])), vectors[:1, :0], ())

    def __len__(self) -> int:
        return len(self.own)

    @property
    def parts(self) -> tuple[tuple[F32, tuple[int, ...]], tuple[F32, tuple[int, ...]]]:
        """Vectors and numbers of the rows' own fields, and of the shared fields."""
        return (self.own, self.own_fields), (self.shared, self.shared_fields)

    def rows(self, first: int, last: int) -> FieldVectors:
        """Rows from `first` to before `last`."""
        return replace(self, own=self.own[first:last])

    def padded(self, more: int) -> FieldVectors:
        """With `more` rows of zeros at the end."""
        return replace(self, own=np.pad(self.own, [(0, more), (0, 0), (0, 0)])) if more else self

    def fields(self, chosen: Sequence[int], values: slice) -> Tensor:
        """Some fields' vectors of every row, f32[B, chosen, D'], and of these the given values."""
        width = len(range(*values.indices(self.own.shape[2])))
        out = torch.empty(len(self.own), len(chosen), width)
        for place, field in enumerate(chosen):
            part, fields = (
                (self.own, self.own_fields) if field in self.own_fields else (self.shared, self.shared_fields)
            )
            out[:, place] = torch.from_numpy(part[:, fields.index(field), values])
        return out


@dataclass(frozen=True)
class ModelInputs:
    """Inputs of a model, of n rows.

    Args:
        features: that the others are looked up by.
        vectors: of all F fields.
        dense: f32[n, Dd].
        lists: field → vectors of each key, of the fields that the model reads as sequences.
        content: field → content vectors, of the fields whose content the model reads.
        complete: False if look-up rows or histories may be missing or old.
        read_at: instant of time.monotonic() at which the oldest live input was read; None: there is none.
    """

    features: SharedFeatures
    vectors: FieldVectors
    dense: F32
    lists: Lists
    content: Lists
    complete: bool
    read_at: float | None


def ragged(vectors: RaggedVectors, columns: slice = slice(None)) -> Ragged:
    """Some columns of ragged vectors as a model's input."""
    values = torch.from_numpy(vectors.values)[:, columns]
    if vectors.shared_by:
        return RepeatedList(values, vectors.shared_by)
    return Ragged(values, torch.from_numpy(vectors.offsets))


def gathered_content(lists: Lists) -> Gathered:
    """Content vectors, by field, as a model's inputs."""
    content = {name: ragged(vectors) for name, vectors in lists.items()}
    return Gathered(torch.empty(0), {}, None, content)


def slices(lists: Lists, first: int, last: int, rows: int) -> Lists:
    """Lists of the rows from `first` to before `last`, of `rows` rows."""
    return {
        name: part.slice(first, last) if part.shared_by or last - first < rows else part
        for name, part in lists.items()
    }
