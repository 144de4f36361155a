"""Keys of several columns as one, and dense numbers for keys: what joins and look-ups are made of."""

from __future__ import annotations

import ctypes
import functools

import numpy as np
import numpy.typing as npt

from kernels.compiler import compile_host

I64 = npt.NDArray[np.int64]
U32 = npt.NDArray[np.uint32]

MISSING = 0xFFFFFFFF
"""The number of a key that has none."""

_SOURCE = """
#include "index.cuh"

extern "C" {

void combine_keys(int64_t* keys, const int64_t* others, int64_t n) {
    for (int64_t i = 0; i < n; ++i) keys[i] = static_cast<int64_t>(hash_combine(keys[i], others[i]));
}

struct Numbers {
    Index index{0};
    uint32_t count = 0;
};

void* numbers_new() { return new Numbers; }
void numbers_free(void* numbers) { delete static_cast<Numbers*>(numbers); }

void numbers_find(void* numbers, const int64_t* keys, int64_t n, uint32_t* out) {
    find_rows(static_cast<Numbers*>(numbers)->index.view(), keys, n, out);
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
    """One key int64[n] of two; the order matters."""
    if len(keys) != len(others):
        raise ValueError("keys differ in number")
    combined = keys.copy()
    _library().combine_keys(combined, others, len(combined))
    return combined


class KeyNumbers:
    """Numbers keys 0, 1, 2… in order of first sight: the dictionary of a look-up table."""

    def __init__(self) -> None:
        self._calls = _library()
        self._handle = self._calls.numbers_new()
        self._count = 0

    def __del__(self) -> None:
        if handle := getattr(self, "_handle", None):
            self._calls.numbers_free(handle)

    def __len__(self) -> int:
        return self._count

    def find(self, keys: I64) -> U32:
        """Numbers uint32[n] of keys int64[n]; MISSING for an unknown key."""
        numbers = np.empty(len(keys), np.uint32)
        self._calls.numbers_find(self._handle, keys, len(keys), numbers)
        return numbers

    def assign(self, keys: I64) -> U32:
        """Numbers uint32[n] of keys int64[n]; an unknown key gets the next one."""
        numbers = np.empty(len(keys), np.uint32)
        self._count = int(self._calls.numbers_assign(self._handle, keys, len(keys), numbers))
        return numbers


@functools.cache
def _library() -> ctypes.CDLL:
    library = compile_host(_SOURCE, name="keys")
    i64 = np.ctypeslib.ndpointer(np.int64, flags="C")
    u32 = np.ctypeslib.ndpointer(np.uint32, flags="C")
    handle, number = ctypes.c_void_p, ctypes.c_int64
    library.combine_keys.argtypes = [i64, i64, number]
    library.numbers_new.restype = handle
    library.numbers_free.argtypes = [handle]
    library.numbers_find.argtypes = [handle, i64, number, u32]
    library.numbers_assign.restype, library.numbers_assign.argtypes = (
        ctypes.c_uint32,
        [handle, i64, number, u32],
    )
    return library
