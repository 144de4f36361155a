"""Operators on many values at once give the bits of their forms for one value."""

from __future__ import annotations

import ctypes
import mmap

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

from livectr.kernels.runtime.arrays import address
from livectr.kernels.runtime.compiler import compile_host

_SOURCE = """
#include "extract/many.hpp"
#include "operators/features.cuh"
extern "C" void one(const Str* strings, int64_t n, int64_t* out) {
    for (int64_t i = 0; i < n; ++i) out[i] = int64_t(hash_bytes(strings[i].data, strings[i].size));
}
extern "C" void many(const Str* strings, int64_t n, int64_t* out) { livectr::keys(strings, n, out); }
extern "C" void log1p_many(const double* x, int64_t n, float* out) {
    for (int64_t i = 0; i < n; ++i) out[i] = log1p_of(x[i]);
}
"""
_STR = np.dtype([("data", np.uint64), ("size", np.int32), ("padding", np.int32)])


@pytest.fixture(scope="module")
def library() -> ctypes.CDLL:
    found = compile_host(_SOURCE, name="many")
    for function in (found.one, found.many, found.log1p_many):
        function.argtypes, function.restype = [ctypes.c_void_p, ctypes.c_int64, ctypes.c_void_p], None
    return found


def equal(library: ctypes.CDLL, places: list[tuple[int, int]]) -> None:
    strings = np.array([(at, size, 0) for at, size in places], _STR)
    one, many = np.zeros(len(strings), np.int64), np.ones(len(strings), np.int64)
    library.one(address(strings), len(strings), address(one))
    library.many(address(strings), len(strings), address(many))
    np.testing.assert_array_equal(one, many)


@given(sizes=st.lists(st.integers(0, 40), max_size=40), seed=st.integers(0, 99))
def test_keys_of_many_strings(library: ctypes.CDLL, sizes: list[int], seed: int) -> None:
    text = np.random.default_rng(seed).integers(0, 256, sum(sizes) + 1, np.uint8)
    starts = np.concatenate([[0], np.cumsum(sizes, dtype=np.int64)])
    equal(library, [(address(text) + int(start), size) for start, size in zip(starts, sizes, strict=False)])


def test_no_byte_of_another_page_is_read(library: ctypes.CDLL) -> None:
    """Strings at both ends of a page whose neighbours cannot be read: a read beyond it would end the
    process."""
    page, libc = mmap.PAGESIZE, ctypes.CDLL(None, use_errno=True)
    memory = mmap.mmap(-1, 3 * page)
    view = np.frombuffer(memory, np.uint8)
    view[:] = np.random.default_rng(7).integers(0, 256, 3 * page, np.uint8)
    begin = address(view)
    for at in (begin, begin + 2 * page):
        assert libc.mprotect(ctypes.c_void_p(at), ctypes.c_size_t(page), 0) == 0
    try:
        for size in range(33):
            first, last = begin + page, begin + 2 * page - size
            equal(library, [(first, size), (last, size)] * 8)
    finally:
        for at in (begin, begin + 2 * page):
            libc.mprotect(ctypes.c_void_p(at), ctypes.c_size_t(page), 3)


def test_log1p_is_libms_after_rounding(library: ctypes.CDLL) -> None:
    rng = np.random.default_rng(3)
    special = [-1, -2, 0, -0.0, np.inf, -np.inf, np.nan, 1e308, -0.9999999999999999, 5e-324]
    x = np.concatenate([special, rng.lognormal(3, 3, 100_000), rng.uniform(-1, 1, 100_000)])
    x = np.concatenate([x, rng.uniform(-1e-6, 1e-6, 100_000)])
    found = np.empty(len(x), np.float32)
    library.log1p_many(address(x), len(x), address(found))
    with np.errstate(all="ignore"):
        np.testing.assert_array_equal(found, np.log1p(x).astype(np.float32))
