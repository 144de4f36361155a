"""Lists of vectors that a compiled call pools: Python interface of `request/pooled.hpp`."""

from __future__ import annotations

import ctypes
from collections.abc import Sequence
from dataclasses import dataclass

import numpy as np
import numpy.typing as npt

from livectr.kernels.keys.keys import KeyNumbers
from livectr.kernels.network.pooling import Pooling
from livectr.kernels.runtime.arrays import address, addresses, contiguous

F32 = npt.NDArray[np.float32]
I64 = npt.NDArray[np.int64]

_F32 = np.dtype(np.float32)
_NOTHING = np.zeros(1, np.float32)


@dataclass(frozen=True)
class ItemMatrix:
    """Vectors of a version's items.

    Args:
        numbers: item → row.
        ids: i64[n], items of the rows.
        vectors: f32[n, out].
        worths: f32[n], by which their logistic scores are multiplied; None: scores order the items.
    """

    numbers: KeyNumbers
    ids: I64
    vectors: F32
    worths: F32 | None = None


@dataclass(frozen=True)
class FieldPlace:
    """Place of a field of a batch.

    Args:
        shared: among the fields that all rows share, else among the rows' own.
        place: number among these.
    """

    shared: bool
    place: int


@dataclass(frozen=True)
class ListRead:
    """List as batches have it.

    Args:
        field: its keys.
        content: vectors by id; None: vectors of the field's rows, which is a sequence of the tables.
    """

    field: FieldPlace
    content: ItemMatrix | None = None


@dataclass(frozen=True)
class PooledReads:
    """Lists that a network pools, of batches with an order of fields.

    Args:
        pooling: of the network.
        lists: of `pooling.lists`.
        queries: of `pooling.queries`.
    """

    pooling: Pooling
    lists: Sequence[ListRead]
    queries: Sequence[FieldPlace]

    def numbers(self) -> tuple[I64, list[object]]:
        """Numbers of `snapshot_pool`, and what must stay alive.

        Raises:
            ValueError: content of another width.
        """
        words, parts, sequences = list[int](), list[object](), list[FieldPlace]()
        for read, values in zip(self.lists, self.pooling.lists, strict=True):
            words += [read.field.shared, read.field.place]
            if read.content is None:
                words += [len(sequences), 0, 0]
                sequences.append(read.field)
                continue
            vectors = contiguous(read.content.vectors, np.float32, (len(read.content.ids), values.width))
            words += [-1, read.content.numbers.handle, address(vectors)]
            parts += [read.content.numbers, vectors]
        heads = [number for field in sequences for number in (field.shared, field.place)]
        queries = [number for field in self.queries for number in (field.shared, field.place)]
        return np.array([len(sequences), *heads, *words, *queries], np.int64), parts


class GivenLists:
    """Vectors of lists that were read for a call.

    Args:
        vectors: f32[n, width] of each list; None: it is found by the call, or as `before`.
        before: vectors that were given before; None: none were.

    Attributes:
        at: address of their addresses.

    Raises:
        ValueError: an array is not in C order.
    """

    def __init__(self, vectors: Sequence[F32 | None], before: GivenLists | None = None) -> None:
        known: Sequence[F32 | None] = [None] * len(vectors) if before is None else before.vectors
        self.vectors: list[F32 | None] = [
            old if new is None else new for new, old in zip(vectors, known, strict=True)
        ]
        self._words = (ctypes.c_void_p * max(len(vectors), 1))()
        for place, given in enumerate(self.vectors):
            if given is not None:
                (at,) = addresses([(given, _F32, None)])
                self._words[place] = at or address(_NOTHING)
        self.at = ctypes.addressof(self._words)
