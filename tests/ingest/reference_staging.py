"""Reference of staging: a root's column in the device's layout, by NumPy and pyarrow."""

from __future__ import annotations

from typing import Any

import numpy as np
import numpy.typing as npt
import pyarrow as pa
import pyarrow.compute as pc

from livectr.ingest.language import dtypes
from livectr.ingest.language.expr import ColumnRef, Expr

Array = npt.NDArray[Any]


def staged(array: pa.Array, root: Expr) -> list[Array]:
    """Parts of a root's column, in the order of its struct's pointers (kernels/runtime/columns.cuh).

    array: of the root's Arrow type, or of a dictionary with values of it.
    """
    fill = root.ref.fill if isinstance(root.ref, ColumnRef) else None
    if pa.types.is_dictionary(array.type):
        array = array.dictionary.take(array.indices)
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
