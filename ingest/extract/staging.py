"""Root columns in the device's layout: no nulls, no bitmaps, offsets from 0, parts aligned to 128 bytes.

numbers, bools    values                                    Values<T>
strings           offsets int32[B + 1], bytes               Strings
lists             offsets int32[B + 1], items as above      List<X>

One call of kernels/extract/staging.cpp copies a batch's columns from Arrow's buffers into a host buffer.
"""

from __future__ import annotations

from collections.abc import Sequence
from itertools import pairwise
from typing import Any

import numpy as np
import numpy.typing as npt
import pyarrow as pa

from livectr.ingest.extract.extractor import RootColumns
from livectr.ingest.language import dtypes
from livectr.ingest.language.expr import ColumnRef, Expr
from livectr.kernels.extract.staging import stage_columns
from livectr.kernels.runtime.arrays import address
from livectr.kernels.runtime.arrow import exported
from livectr.system.errors import InternalError

I64 = npt.NDArray[np.int64]

_WIDTHS = {"int64": 8, "float64": 8, "int32": 4, "float32": 4, "bool": 1, "string": 0, "binary": 0}
"""Bytes of a value of a type; 0: strings."""
_FAILURES = {
    -1: "a column of a batch of {rows} rows has more than 2147483647 items or bytes; use smaller batches",
    -2: "out of memory while a batch of {rows} rows was copied for the device",
    -3: "a column of a batch of {rows} rows has offsets that fall, or indices beyond its dictionary",
}


class Staging:
    """Copies root columns of batches into the device's layout. Thread-safe.

    Args:
        roots: the roots, R of them.
    """

    def __init__(self, roots: Sequence[Expr]) -> None:
        self._columns = RootColumns(roots)
        self._fills = [_fill(root) for root in roots]
        described = [
            (_WIDTHS[dtypes.element(root.dtype)], dtypes.is_list(root.dtype), address(fill), fill.nbytes)
            for root, fill in zip(roots, self._fills, strict=True)
        ]
        self._roots = np.array(described, np.int64).reshape(-1, 4)
        pointers = [_pointers(root) for root in roots]
        #: int64[parts], words of the roots' structs that are addresses of parts
        self._at = np.flatnonzero([pointer for words in pointers for pointer in words])
        #: ends of the roots' structs
        self._ends = np.cumsum([0, *map(len, pointers)])

    @property
    def roots(self) -> tuple[Expr, ...]:
        """Roots whose columns are copied."""
        return self._columns.roots

    @property
    def parts(self) -> int:
        """Number of parts of a batch: arrays of values, offsets or bytes."""
        return len(self._at)

    def __call__(self, batch: pa.RecordBatch, out: npt.NDArray[np.uint8], starts: I64) -> int:
        """Copy the columns of a batch. A null becomes the column's fill, else 0, false, "" or an empty list.

        Args:
            batch: columns named like the roots; others are ignored.
            out: uint8[·], aligned to 8 bytes.
            starts: int64[parts], overwritten with the beginning of each part.

        Returns:
            Size of all parts in bytes. If `out` is smaller, nothing is copied.

        Raises:
            ConfigError: a column is missing or cannot be cast.
            InternalError: a column is damaged or too large.
        """
        columns, batch = self._columns.bind(batch)
        _owner, batch_at = exported(batch)
        size = stage_columns(self._roots, batch_at, columns, out, starts)
        if size < 0:
            raise InternalError(_FAILURES[size].format(rows=batch.num_rows))
        return size

    def words(self, addresses: I64) -> list[list[int]]:
        """Words (8 bytes each) of the struct of each root (kernels/runtime/columns.cuh).

        addresses: int64[parts], of the parts.
        """
        words = np.zeros(self._ends[-1], np.int64)
        words[self._at] = addresses
        values, ends = words.tolist(), self._ends.tolist()
        return [values[begin:end] for begin, end in pairwise(ends)]


def _fill(root: Expr) -> npt.NDArray[Any]:
    """Bytes of the value of a null: uint8[·]."""
    fill: Any = root.ref.fill if isinstance(root.ref, ColumnRef) and not dtypes.is_list(root.dtype) else None
    kind = dtypes.element(root.dtype)
    if kind not in dtypes.TEXTS:
        return np.array([fill or 0], kind).view(np.uint8)
    text = fill.encode() if isinstance(fill, str) else fill or b""
    return np.array(list(text), np.uint8)


def _pointers(root: Expr) -> list[bool]:
    """Which words of a root's struct are addresses of parts."""
    lists = [True, False, False] if dtypes.is_list(root.dtype) else []  # offsets, no bitmap, no shift
    if dtypes.element(root.dtype) in dtypes.TEXTS:
        return [
            *lists,
            True,
            True,
            False,
            False,
            False,
            False,
        ]  # offsets, bytes, no bitmap, no shift, no fill
    return [*lists, True]
