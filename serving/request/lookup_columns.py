"""Columns of look-up rows: appended to, never changed, and read without a copy.

A request reads a column as dictionary-encoded: its candidates' slots are the indices, and the column is the
dictionary. Memory doubles when it is full; arrays of earlier readers stay as they are.
"""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any, Protocol

import numpy as np
import numpy.typing as npt
import pyarrow as pa

from livectr.ingest.language import dtypes

I32 = npt.NDArray[np.int32]
FIRST = 1024
"""Slots of a new column."""
LARGEST_BYTES = 1 << 30
"""Bytes of a column of texts, at which its table is dropped; offsets are int32."""


class Column(Protocol):
    """Values of a column by slot."""

    nbytes: int

    def append(self, array: pa.Array, values: Sequence[object]) -> None:
        """Add values, given as an array and as Python objects."""

    def take(self, slots: I32, indices: pa.Array, dtype: str) -> pa.Array:
        """Values at slots i32[n], given as an Arrow array, too."""

    def moved(self, slots: I32) -> Column:
        """New column with the values at slots i32[n]. Needs no lock: values never change."""


def column_of(dtype: str) -> Column:
    """Make an empty column."""
    if dtype in dtypes.NUMBERS:
        return _Numbers(dtype)
    return _Texts(dtype) if dtype in ("string", *dtypes.BYTES) else _Objects()


class _Objects:
    """Booleans and lists, as Python objects."""

    nbytes = 0

    def __init__(self) -> None:
        self._values: list[object] = []

    def append(self, array: pa.Array, values: Sequence[object]) -> None:
        self._values += values

    def take(self, slots: I32, indices: pa.Array, dtype: str) -> pa.Array:
        values = self._values
        return pa.array([values[slot] for slot in slots.tolist()], dtypes.arrow_type(dtype))

    def moved(self, slots: I32) -> Column:
        copy, values = _Objects(), self._values
        copy._values = [values[slot] for slot in slots.tolist()]
        return copy


class _Encoded:
    """Values in Arrow's layout, without nulls; marks of nulls go into the indices."""

    nbytes = 0

    def __init__(self, dtype: str) -> None:
        self._dtype, self._type = dtype, dtypes.arrow_type(dtype)
        self._nulls: npt.NDArray[np.bool_] = np.zeros(FIRST, np.bool_)
        self._array = pa.array([], self._type)

    def append(self, array: pa.Array, values: Sequence[object]) -> None:
        before, size = len(self._array), len(self._array) + len(array)
        self._nulls = grown(self._nulls, size)
        self._nulls[before:size] = array.is_null().to_numpy(zero_copy_only=False)
        self._array = self._extended(array, before, size)

    def take(self, slots: I32, indices: pa.Array, dtype: str) -> pa.Array:
        nulls = self._nulls[slots]
        if nulls.any():
            indices = pa.array(slots, mask=nulls)
        found = pa.DictionaryArray.from_arrays(indices, self._array, safe=False)
        wanted = dtypes.arrow_type(dtype)
        return found if self._type == wanted else found.cast(wanted)

    def moved(self, slots: I32) -> Column:
        copy = type(self)(self._dtype)
        copy.append(self.take(slots, pa.array(slots), self._dtype).dictionary_decode(), ())
        return copy

    def _extended(self, array: pa.Array, before: int, size: int) -> pa.Array:
        """The first `before` values, and those of an array behind them: `size` values."""
        raise NotImplementedError


class _Numbers(_Encoded):
    def __init__(self, dtype: str) -> None:
        super().__init__(dtype)
        self._values: npt.NDArray[Any] = np.zeros(FIRST, dtype)

    def _extended(self, array: pa.Array, before: int, size: int) -> pa.Array:
        self._values = grown(self._values, size)
        self._values[before:size] = array.fill_null(0).to_numpy()
        return pa.Array.from_buffers(self._type, size, [None, pa.py_buffer(self._values)])


class _Texts(_Encoded):
    """Strings and bytes."""

    def __init__(self, dtype: str) -> None:
        super().__init__(dtype)
        self._offsets: I32 = np.zeros(FIRST, np.int32)
        self._bytes: npt.NDArray[np.uint8] = np.zeros(FIRST, np.uint8)

    def _extended(self, array: pa.Array, before: int, size: int) -> pa.Array:
        _, offsets, data = array.buffers()
        ends = np.frombuffer(offsets, np.int32)[1 : len(array) + 1]
        start, added = int(self._offsets[before]), int(ends[-1]) if len(ends) else 0
        if start + added > LARGEST_BYTES:
            raise ValueError(f"look-up rows with {start + added} bytes in a column of texts")
        self._offsets, self._bytes = grown(self._offsets, size + 1), grown(self._bytes, start + added)
        self._offsets[before + 1 : size + 1] = ends + start
        if added:
            self._bytes[start : start + added] = np.frombuffer(data, np.uint8)[:added]
        self.nbytes = start + added
        buffers = [None, pa.py_buffer(self._offsets), pa.py_buffer(self._bytes)]
        return pa.Array.from_buffers(self._type, size, buffers)


def grown(array: npt.NDArray[Any], size: int) -> npt.NDArray[Any]:
    """The array with room for `size` values: itself, or a copy of at least twice the size."""
    if size <= len(array):
        return array
    return np.concatenate([array, np.zeros(max(size - len(array), len(array)), array.dtype)])
