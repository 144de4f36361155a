"""Wire codec for the keys of an exchange; `kernels/keys/key_codec.cpp` has the format.

    Segments.of(offsets, keys, rows) ─► take(order) ─► encode ─► header i64[M], payload u8[…]   a sender
    header, cells ─► measure ─► keys and bytes of each segment ─► decode ─► offsets, keys       a receiver

A *segment* is the part of a message that belongs to one field: the keys of its cells. It is encoded as plain
keys or as a dictionary (unique keys, and an index for each occurrence), whichever is smaller. Keys, indices
and counts are bit-packed: keys by their span, indices by the number of unique keys, counts per cell by the
largest. Headers are sent first, a word a segment; from them a receiver knows the bytes that come.

Measured on 2,048 rows of 26 Zipf fields (`bench.planted`) with hash-like keys: 426 kB plain, 232 kB with a
dictionary in whole bytes, 190 kB bit-packed; 96 kB where the keys are integers. Packing bits takes about a
tenth of the time of finding unique keys. Sorting these to send differences would save 12 kB of hash-like keys
and take as long as all the rest.
"""

from __future__ import annotations

import ctypes
import functools
from collections.abc import Sequence
from dataclasses import dataclass
from typing import Any

import numpy as np
from numpy.typing import NDArray

from livectr.kernels.runtime.arrays import contiguous
from livectr.kernels.runtime.library import kernel_library
from livectr.system.errors import InternalError

I64 = NDArray[np.int64]
I32 = NDArray[np.int32]
U8 = NDArray[np.uint8]

MOST_KEYS = (1 << 27) - 1
"""Most keys of a segment."""


@dataclass(frozen=True)
class Segments:
    """M segments, as addresses into arrays.

    Attributes:
        table: i64[M, 4]; of each segment the address of its keys' array, the address of its offsets, its
            cells, and 1 if it is sent as plain keys
        held: arrays that the addresses point into, kept alive
    """

    table: I64
    held: tuple[NDArray[Any], ...]

    def __len__(self) -> int:
        return len(self.table)

    @staticmethod
    def of(offsets: I32, keys: I64, cells: int) -> Segments:
        """F segments with the same number of cells; none if `cells` is 0.

        Args:
            offsets: i32[F · cells + 1], field-major.
            keys: i64[nnz].
            cells: of each field.

        Raises:
            ValueError: offsets do not fit the cells or the keys.
        """
        offsets = contiguous(offsets, np.int32, (None,))
        keys = contiguous(keys, np.int64, (None,))
        if cells < 0 or not len(offsets) or (len(offsets) - 1) % max(cells, 1):
            raise ValueError(f"{len(offsets) - 1} cells are no fields of {cells} each")
        bounds = offsets[:: cells or 1]
        if bounds[0] < 0 or bounds[-1] > len(keys) or (np.diff(bounds) < 0).any():
            raise ValueError(f"offsets must rise within the {len(keys)} keys")
        fields = (len(offsets) - 1) // cells if cells else 0
        table = np.zeros((fields, 4), np.int64)
        table[:, 0] = keys.ctypes.data
        table[:, 1] = offsets.ctypes.data + 4 * cells * np.arange(fields)
        table[:, 2] = cells
        return Segments(table, (offsets, keys))

    @staticmethod
    def ragged(offsets: I32, keys: I64, cells: I64) -> Segments:
        """M segments of cells[s] cells each.

        Args:
            offsets: i32[Σ cells + 1], segment by segment.
            keys: i64[nnz].
            cells: i64[M].
        """
        first = _starts(cells)
        if len(offsets) != first[-1] + 1 or (np.diff(offsets[first]) < 0).any() or offsets[-1] > len(keys):
            raise ValueError(f"{len(offsets)} offsets do not fit {first[-1]} cells and {len(keys)} keys")
        table = np.zeros((len(cells), 4), np.int64)
        table[:, 0] = keys.ctypes.data
        table[:, 1] = offsets.ctypes.data + 4 * first[:-1]
        table[:, 2] = cells
        return Segments(table, (offsets, keys))

    @staticmethod
    def lists(keys: I64, bounds: I64) -> Segments:
        """Segments of a single cell: keys[bounds[s] : bounds[s + 1]]."""
        keys = contiguous(keys, np.int64, (None,))
        offsets = np.stack([bounds[:-1], bounds[1:]], axis=1).astype(np.int32)
        table = np.empty((len(offsets), 4), np.int64)
        table[:] = keys.ctypes.data, 0, 1, 0
        table[:, 1] = offsets.ctypes.data + 8 * np.arange(len(offsets))
        return Segments(table, (keys, offsets))

    @staticmethod
    def empty(count: int) -> Segments:
        """`count` segments without cells."""
        zero = np.zeros(1, np.int32)
        table = np.zeros((count, 4), np.int64)
        table[:, 1] = zero.ctypes.data
        return Segments(table, (zero,))

    @staticmethod
    def concat(parts: Sequence[Segments]) -> Segments:
        """Segments of all parts, in order."""
        tables = [np.empty((0, 4), np.int64), *(part.table for part in parts)]
        return Segments(np.concatenate(tables), tuple(array for part in parts for array in part.held))

    def take(self, order: I64 | Sequence[int]) -> Segments:
        """Segments by number, in the given order."""
        return Segments(self.table[np.asarray(order, np.int64)], self.held)

    def plain(self, which: NDArray[np.bool_]) -> Segments:
        """Mark segments, bool[M], to be sent as plain keys: for the own rank, where no byte is saved."""
        table = self.table.copy()
        table[:, 3] = which
        return Segments(table, self.held)

    @property
    def cells(self) -> I64:
        """Cells of each segment, i64[M]."""
        return self.table[:, 2]


@dataclass(frozen=True)
class Encoded:
    """Encoded segments: header i64[M]; segment s is payload[bounds[s] : bounds[s + 1]], bounds i64[M + 1]."""

    header: I64
    bounds: I64
    payload: U8


def encode(segments: Segments) -> Encoded:
    """Encode segments. O(nnz).

    Raises:
        ValueError: a segment has more than MOST_KEYS keys, or its offsets fall.
        MemoryError: out of memory.
    """
    count = len(segments)
    library = _library()
    header, bounds = np.empty(count, np.int64), np.empty(count + 1, np.int64)
    table = np.ascontiguousarray(segments.table)
    payload = np.empty(library.keys_capacity(table, count), np.uint8)
    result = library.encode_keys(table, count, header, bounds, payload)
    if result == -2:
        raise ValueError(f"a field has more than {MOST_KEYS:,} keys in a batch; take smaller batches")
    if result == -3:
        raise ValueError("offsets must never fall")
    _checked(result)
    return Encoded(header, bounds, payload[: bounds[-1]])


def measure(header: I64, cells: I64) -> tuple[I64, I64]:
    """Number of keys and bytes of each segment, i64[M] each, from its header and cells, i64[M] each."""
    header, cells = contiguous(header, np.int64, (None,)), contiguous(cells, np.int64, (len(header),))
    keys, sizes = np.empty_like(header), np.empty_like(header)
    _library().key_bytes(header, cells, len(header), keys, sizes)
    return keys, sizes


def decode(header: I64, cells: I64, messages: Sequence[U8], message: I64, start: I64) -> tuple[I32, I64]:
    """Decode M segments, in the given order.

    Args:
        header: i64[M].
        cells: i64[M], of each segment.
        messages: bytes of each sender.
        message: i64[M], message of each segment.
        start: i64[M], its first byte there.

    Returns:
        Offsets i32[Σ cells + 1] and keys i64[nnz].

    Raises:
        InternalError: a segment differs from its header.
        ValueError: a segment does not lie in its message.
        MemoryError: out of memory.
    """
    count = len(header)
    keys, sizes = measure(header, cells)
    message, start = contiguous(message, np.int64, (count,)), contiguous(start, np.int64, (count,))
    held = [contiguous(m, np.uint8, (None,)) for m in messages]
    lengths = np.array([len(m) for m in held], np.int64)
    if count and (message.min() < 0 or message.max() >= len(held)):
        raise ValueError(f"a segment of a message that is none of {len(held)}")
    if (start < 0).any() or (start + sizes > lengths[message]).any():
        raise ValueError("a segment does not lie in its message")
    key_at, cell_at = _starts(keys), _starts(np.asarray(cells))
    if key_at[-1] > np.iinfo(np.int32).max:
        raise ValueError(f"{key_at[-1]:,} keys in one batch; offsets are int32: take smaller batches")
    offsets, all_keys = np.empty(cell_at[-1] + 1, np.int32), np.empty(key_at[-1], np.int64)
    offsets[-1] = key_at[-1]
    table = np.empty((count, 6), np.int64)
    table[:, 0] = header
    table[:, 1] = np.array([m.ctypes.data for m in held], np.int64)[message] + start if count else 0
    table[:, 2] = cells
    table[:, 3] = all_keys.ctypes.data + 8 * key_at[:-1]
    table[:, 4] = offsets.ctypes.data + 4 * cell_at[:-1]
    table[:, 5] = key_at[:-1]
    result = _library().decode_keys(table, count)
    if result == -2:
        raise InternalError("the keys that another rank sent are not what their header says")
    _checked(result)
    return offsets, all_keys


def _starts(sizes: I64) -> I64:
    """Prefix sum, with 0 in front."""
    starts = np.zeros(len(sizes) + 1, np.int64)
    np.cumsum(sizes, out=starts[1:])
    return starts


def _checked(result: int) -> None:
    if result < 0:
        raise MemoryError("out of memory for the keys of a batch")


@functools.cache
def _library() -> ctypes.CDLL:
    library = kernel_library()
    table = np.ctypeslib.ndpointer(np.int64, ndim=2, flags="C")
    i64 = np.ctypeslib.ndpointer(np.int64, flags="C")
    u8 = np.ctypeslib.ndpointer(np.uint8, flags="C")
    number = ctypes.c_int64
    library.keys_capacity.restype, library.keys_capacity.argtypes = number, [table, number]
    library.encode_keys.restype = library.decode_keys.restype = ctypes.c_int32
    library.encode_keys.argtypes = [table, number, i64, i64, u8]
    library.key_bytes.argtypes = [i64, i64, number, i64, i64]
    library.key_bytes.restype = None
    library.decode_keys.argtypes = [table, number]
    return library
