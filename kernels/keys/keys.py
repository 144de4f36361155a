"""Hashed keys of several columns, and dense numbers of keys, for joins and look-ups."""

from __future__ import annotations

import ctypes
import functools

import numpy as np
import numpy.typing as npt

from livectr.kernels.runtime.arrays import address, contiguous
from livectr.kernels.runtime.compiler import compile_host

I64 = npt.NDArray[np.int64]
U32 = npt.NDArray[np.uint32]
U8 = npt.NDArray[np.uint8]

MISSING = 0xFFFFFFFF
"""Number of an unknown key."""

_SOURCE = """
#include "keys/numbers.hpp"
#include "runtime/threads.hpp"

extern "C" {

void combine_keys(int64_t* keys, const int64_t* others, int64_t n) {
    for (int64_t i = 0; i < n; ++i) keys[i] = static_cast<int64_t>(hash_combine(keys[i], others[i]));
}

void hash_texts(const uint8_t* bytes, const int32_t* offsets, int64_t n, int64_t* keys) {
    livectr::parallel_chunks(n, 8192, [&](int64_t begin, int64_t end) {
        for (int64_t i = begin; i < end; ++i)
            keys[i] = static_cast<int64_t>(hash_bytes(bytes + offsets[i], offsets[i + 1] - offsets[i]));
    });
}

void* numbers_new() { return new Numbers; }
void numbers_free(void* numbers) { delete static_cast<Numbers*>(numbers); }

void numbers_find(void* numbers, const int64_t* keys, int64_t n, uint32_t* out) {
    find_rows(static_cast<Numbers*>(numbers)->index.view(), keys, n, out);
}

// Addresses first + stride * number of keys, 0 of unknown keys; adds 1 to uses[number] for each.
void numbers_places(const void* numbers, const int64_t* keys, int64_t n, int64_t first, int64_t stride,
                    uint32_t* uses, int64_t* out) {
    constexpr int64_t PART = 256;
    uint32_t rows[PART];
    for (int64_t begin = 0; begin < n; begin += PART) {
        const int64_t size = std::min(PART, n - begin);
        find_rows(static_cast<const Numbers*>(numbers)->index.view(), keys + begin, size, rows);
        for (int64_t i = 0; i < size; ++i) {
            const bool known = rows[i] != NO_ROW;
            out[begin + i] = known ? first + stride * int64_t(rows[i]) : 0;
            if (known) ++uses[rows[i]];
        }
    }
}

// Rows of keys less `first`, and a bit for each key that has one; returns how many have none.
// row_of: row of each number, negative: none.
int64_t numbers_rows(const void* numbers, const int64_t* keys, int64_t n, const int64_t* row_of,
                     int64_t first, int32_t* out, uint8_t* valid) {
    constexpr int64_t PART = 256;
    uint32_t found[PART];
    int64_t absent = 0;
    for (int64_t begin = 0; begin < n; begin += PART) {
        const int64_t size = std::min(PART, n - begin);
        find_rows(static_cast<const Numbers*>(numbers)->index.view(), keys + begin, size, found);
        for (int64_t i = 0; i < size; i += 8) {
            uint8_t bits = 0;
            for (int64_t k = i; k < std::min(i + 8, size); ++k) {
                const int64_t row = found[k] != NO_ROW ? row_of[found[k]] : -1;
                out[begin + k] = row < 0 ? 0 : int32_t(row - first);
                bits |= uint8_t((row >= 0) << (k - i));
                absent += row < 0;
            }
            valid[(begin + i) / 8] = bits;
        }
    }
    return absent;
}

// Returns how many keys have a number now.
uint32_t numbers_assign(void* handle, const int64_t* keys, int64_t n, uint32_t* out) {
    auto& numbers = *static_cast<Numbers*>(handle);
    for (int64_t i = 0; i < n; ++i) {
        out[i] = numbers.index.find_or_insert(keys[i], numbers.count);
        numbers.count += out[i] == numbers.count;
    }
    return numbers.count;
}

}
"""


def combine_keys(keys: I64, others: I64) -> I64:
    """Combines two keys to one, int64[n]; the order matters. Raises ValueError for different lengths."""
    if len(keys) != len(others):
        raise ValueError("keys differ in number")
    combined = keys.copy()
    _library().combine_keys(combined, others, len(combined))
    return combined


def hash_texts(data: npt.NDArray[np.uint8], offsets: npt.NDArray[np.int32]) -> I64:
    """XXH64 of each text, int64[n].

    Args:
        data: uint8[m], the bytes of all texts.
        offsets: int32[n + 1], where each text begins; offsets[n] is the end of the last.
    """
    keys = np.empty(len(offsets) - 1, np.int64)
    _library().hash_texts(data, offsets, len(keys), keys)
    return keys


class KeyNumbers:
    """Dictionary of keys: numbers 0, 1, 2… in the order of first sight."""

    def __init__(self) -> None:
        self._calls = _library()
        self._handle = self._calls.numbers_new()
        self._count = 0

    def __del__(self) -> None:
        if handle := getattr(self, "_handle", None):
            self._calls.numbers_free(handle)

    def __len__(self) -> int:
        return self._count

    @property
    def handle(self) -> int:
        """Address of the `Numbers` of `keys/numbers.hpp`; the caller keeps `self` alive."""
        return int(self._handle)

    def find(self, keys: I64) -> U32:
        """Numbers uint32[n] of keys int64[n]; MISSING for an unknown key."""
        keys, numbers = contiguous(keys, np.int64, (None,)), np.empty(len(keys), np.uint32)
        self._calls.numbers_find(self._handle, address(keys), len(keys), address(numbers))
        return numbers

    def places(self, keys: I64, first: int, stride: int, uses: U32) -> I64:
        """Addresses int64[n] of the rows of keys int64[n]; 0 of an unknown key.

        Args:
            first: address of the row of number 0.
            stride: bytes from a row to the next.
            uses: uint32[numbers], to which each key adds 1.
        """
        keys, out = contiguous(keys, np.int64, (None,)), np.empty(len(keys), np.int64)
        self._calls.numbers_places(
            self._handle, address(keys), len(keys), first, stride, address(uses), address(out)
        )
        return out

    def rows(self, keys: I64, row_of: I64, first: int) -> tuple[U8, npt.NDArray[np.int32], int]:
        """Which keys of int64[n] have a row, a bitmap; their rows less `first`, int32[n], 0 where there is
        none; how many have none.

        Args:
            row_of: int64[numbers], row of each number; negative: none.
            first: the least row.
        """
        keys, out = contiguous(keys, np.int64, (None,)), np.empty(len(keys), np.int32)
        valid = np.empty((len(keys) + 7) // 8, np.uint8)
        absent: int = self._calls.numbers_rows(
            self._handle, address(keys), len(keys), address(row_of), first, address(out), address(valid)
        )
        return valid, out, absent

    def assign(self, keys: I64) -> U32:
        """Numbers uint32[n] of keys int64[n]; an unknown key gets the next number."""
        numbers = np.empty(len(keys), np.uint32)
        self._count = int(self._calls.numbers_assign(self._handle, keys, len(keys), numbers))
        return numbers


@functools.cache
def _library() -> ctypes.CDLL:
    library = compile_host(_SOURCE, name="keys")
    i64 = np.ctypeslib.ndpointer(np.int64, flags="C")
    u32 = np.ctypeslib.ndpointer(np.uint32, flags="C")
    bytes_, i32 = np.ctypeslib.ndpointer(np.uint8, flags="C"), np.ctypeslib.ndpointer(np.int32, flags="C")
    handle, number = ctypes.c_void_p, ctypes.c_int64
    library.combine_keys.argtypes = [i64, i64, number]
    library.hash_texts.argtypes = [bytes_, i32, number, i64]
    library.numbers_new.restype = handle
    library.numbers_free.argtypes = [handle]
    library.numbers_find.argtypes = [handle, handle, number, handle]
    library.numbers_places.restype = None
    library.numbers_places.argtypes = [handle, handle, number, number, number, handle, handle]
    library.numbers_rows.restype = number
    library.numbers_rows.argtypes = [handle, handle, number, handle, number, handle, handle]
    library.numbers_assign.restype, library.numbers_assign.argtypes = (
        ctypes.c_uint32,
        [handle, i64, number, u32],
    )
    return library
