"""Depth of JSON texts: finds texts whose objects and lists are nested more deeply than a limit."""

from __future__ import annotations

import ctypes
import functools

import numpy as np
import numpy.typing as npt

from livectr.kernels.runtime.compiler import compile_host

I64 = npt.NDArray[np.int64]

_SOURCE = """
#include <cstdint>

// Brackets inside strings do not count. A broken text has the depth of its readable beginning at least.
static bool is_deeper(const uint8_t* text, int64_t size, int64_t limit) {
    int64_t depth = 0;
    bool quoted = false;
    for (int64_t i = 0; i < size; ++i) {
        const uint8_t byte = text[i];
        if (quoted) {
            if (byte == '\\\\') ++i;
            else if (byte == '"') quoted = false;
        } else if (byte == '"') {
            quoted = true;
        } else if ((byte | 0x20) == '{') {
            if (++depth > limit) return true;
        } else if ((byte | 0x20) == '}') {
            --depth;
        }
    }
    return false;
}

extern "C" {

// Text i is texts[starts[i]] to texts[stops[i]]. Returns how many are deeper; rows[n] takes their numbers.
int64_t json_deeper(const uint8_t* texts, const int64_t* starts, const int64_t* stops, int64_t n,
                    int64_t limit, int64_t* rows) {
    int64_t found = 0;
    for (int64_t i = 0; i < n; ++i) {
        const uint8_t* const text = texts + starts[i];
        const int64_t size = stops[i] - starts[i];
        int64_t opened = 0;  // a bound that is nearly always enough; the loop becomes vector instructions
        for (int64_t k = 0; k < size; ++k) opened += (text[k] | 0x20) == '{';
        if (opened > limit && is_deeper(text, size, limit)) rows[found++] = i;
    }
    return found;
}

}
"""


def deeper_than(texts: bytes, starts: I64, stops: I64, limit: int) -> I64:
    """Indices int64[m] of the texts that are nested more deeply than `limit`.

    Args:
        texts: all texts, concatenated.
        starts: int64[n], first byte of each text.
        stops: int64[n], end of each text.
        limit: largest depth.
    """
    rows = np.empty(len(starts), np.int64)
    count = _library().json_deeper(np.frombuffer(texts, np.uint8), starts, stops, len(starts), limit, rows)
    return rows[:count]


@functools.cache
def _library() -> ctypes.CDLL:
    library = compile_host(_SOURCE, name="JSON depth")
    u8 = np.ctypeslib.ndpointer(np.uint8, flags="C")
    i64 = np.ctypeslib.ndpointer(np.int64, flags="C")
    number = ctypes.c_int64
    library.json_deeper.restype = number
    library.json_deeper.argtypes = [u8, i64, i64, number, number, i64]
    return library
