"""Groups of equal rows of a batch, compared exactly by their bytes."""

from __future__ import annotations

import ctypes
import functools
from collections.abc import Sequence
from dataclasses import dataclass
from typing import Any

import numpy as np
import numpy.typing as npt

from livectr.kernels.runtime.compiler import compile_host

I32 = npt.NDArray[np.int32]

_SOURCE = """
#include <vector>

#include "runtime/hash.cuh"

struct Column {
    const uint8_t* values;
    const int32_t* offsets;  // null: `width` bytes a row
    int64_t width;           // of an item

    const uint8_t* at(int64_t row) const { return values + (offsets ? offsets[row] : row) * width; }
    int64_t size(int64_t row) const { return (offsets ? offsets[row + 1] - offsets[row] : 1) * width; }
};

// index[rows], first[rows]; returns the number of groups.
extern "C" int64_t group_rows(const Column* columns, int64_t count, int64_t rows, int32_t* index,
                              int32_t* first) {
    const Column* const end = columns + count;
    uint64_t slots = 16;
    while (slots < 2 * static_cast<uint64_t>(rows)) slots *= 2;
    std::vector<int32_t> group_at(slots, -1);
    std::vector<uint64_t> hashes;  // of the groups
    const auto equal = [&](int64_t a, int64_t b) {
        for (const Column* c = columns; c != end; ++c) {
            const int64_t size = c->size(a);
            if (size != c->size(b) || (size && memcmp(c->at(a), c->at(b), size))) return false;
        }
        return true;
    };
    for (int64_t row = 0; row < rows; ++row) {
        uint64_t hash = 0;
        for (const Column* c = columns; c != end; ++c) hash = hash_bytes(c->at(row), c->size(row), hash);
        uint64_t slot = hash & (slots - 1);
        int32_t group;
        while ((group = group_at[slot]) >= 0 && !(hashes[group] == hash && equal(first[group], row))) {
            slot = (slot + 1) & (slots - 1);
        }
        if (group < 0) {
            group = group_at[slot] = hashes.size();
            hashes.push_back(hash);
            first[group] = row;
        }
        index[row] = group;
    }
    return hashes.size();
}
"""


@dataclass(frozen=True)
class Bytes:
    """Column as bytes.

    Args:
        values: C-contiguous, an item per element.
        offsets: int32[rows + 1], row i has items offsets[i] to offsets[i + 1]; None: row i is item i.
    """

    values: npt.NDArray[Any]
    offsets: I32 | None = None


def group_rows(columns: Sequence[Bytes], rows: int) -> tuple[I32, I32]:
    """Groups rows that are equal, byte for byte, in every column. O(bytes); a hash only finds candidates.

    Args:
        columns: columns of `rows` rows.
        rows: number of rows.

    Returns:
        Group of each row, int32[rows], and first row of each group, int32[G]. Groups are numbered in the
            order of
        their first rows.
    """
    index, first = np.empty(rows, np.int32), np.empty(rows, np.int32)
    kept = [
        (np.ascontiguousarray(c.values), None if c.offsets is None else np.ascontiguousarray(c.offsets))
        for c in columns
    ]
    described = (_Column * len(kept))(
        *(
            _Column(values.ctypes.data, None if offsets is None else offsets.ctypes.data, values.itemsize)
            for values, offsets in kept
        )
    )
    count = _library().group_rows(described, len(kept), rows, index, first)
    return index, first[:count].copy()


class _Column(ctypes.Structure):
    _fields_ = (("values", ctypes.c_void_p), ("offsets", ctypes.c_void_p), ("width", ctypes.c_int64))


@functools.cache
def _library() -> ctypes.CDLL:
    library = compile_host(_SOURCE, name="groups")
    i32 = np.ctypeslib.ndpointer(np.int32, flags="C")
    library.group_rows.argtypes = [ctypes.c_void_p, ctypes.c_int64, ctypes.c_int64, i32, i32]
    library.group_rows.restype = ctypes.c_int64
    return library
