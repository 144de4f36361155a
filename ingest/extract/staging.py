"""Root columns in the device's layout: no nulls, no bitmaps, offsets from 0, parts aligned to 128 bytes.

numbers, bools    values                                    Values<T>
strings           offsets int32[B + 1], bytes               Strings
lists             offsets int32[B + 1], items as above      List<X>
"""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from typing import Any

import numpy as np
import numpy.typing as npt
import pyarrow as pa
import pyarrow.compute as pc

from livectr.ingest.language import dtypes
from livectr.ingest.language.expr import ColumnRef, Expr

Array = npt.NDArray[Any]
ALIGNMENT = 128


def staged(array: pa.Array, root: Expr) -> list[Array]:
    """Parts of a root's column, in the order of its struct's pointers (kernels/runtime/columns.cuh).

    array: of exactly the root's Arrow type.
    """
    fill = root.ref.fill if isinstance(root.ref, ColumnRef) else None
    if not dtypes.is_list(root.dtype):
        return _scalars(array, root.dtype, fill)
    if array.null_count:
        array = pc.coalesce(array, pa.scalar([], array.type))
    offsets = array.offsets.to_numpy()
    items = array.values.slice(offsets[0], offsets[-1] - offsets[0])
    return [offsets - offsets[0], *_scalars(items, dtypes.element(root.dtype), None)]


def _scalars(array: pa.Array, dtype: str, fill: object) -> list[Array]:
    text = dtype in dtypes.TEXTS
    if array.null_count:
        empty: object = ("" if dtype == "string" else b"") if text else False if dtype == "bool" else 0
        array = array.fill_null(pa.scalar(empty if fill is None else fill, array.type))
    if not text:
        return [np.ascontiguousarray(array.to_numpy(zero_copy_only=False))]
    _, offset_bytes, data = array.buffers()
    if len(array) == 0:
        return [np.zeros(1, np.int32), np.empty(0, np.uint8)]
    offsets = np.frombuffer(offset_bytes, np.int32)[array.offset : array.offset + len(array) + 1]
    content = np.frombuffer(data, np.uint8)[offsets[0] : offsets[-1]] if data else np.empty(0, np.uint8)
    return [offsets - offsets[0], content]


def struct_words(root: Expr, addresses: Sequence[int]) -> list[int]:
    """Words (8 bytes each) of a root's struct, given the addresses of its parts."""
    words: list[int] = []
    at = iter(addresses)
    if dtypes.is_list(root.dtype):
        words += [next(at), 0, 0]  # offsets, no bitmap, no shift
    if dtypes.element(root.dtype) in dtypes.TEXTS:
        return [*words, next(at), next(at), 0, 0, 0, 0]  # offsets, bytes, no bitmap, no shift, no fill
    return [*words, next(at)]


def places(parts: Sequence[Array], start: int = 0) -> Iterator[int]:
    """Aligned start of each part when they are stored one after the other; the last value is the end."""
    at = start
    for part in parts:
        yield at
        at += -(-max(part.nbytes, 1) // ALIGNMENT) * ALIGNMENT
    yield at
