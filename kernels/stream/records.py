"""Records of a Kafka batch (message format 2), compiled: where each record's key and value lie."""

from __future__ import annotations

import ctypes
import functools
from collections.abc import Sequence
from dataclasses import dataclass, replace
from typing import Any

import numpy as np
import numpy.typing as npt

from livectr.kernels.runtime.arrays import address
from livectr.kernels.runtime.compiler import compile_host

I64 = npt.NDArray[np.int64]

_SOURCE = r"""
#include <cstdint>

// Reads a varint in zigzag code; false at the end, or for more than 64 bits.
static bool varint(const uint8_t*& p, const uint8_t* end, int64_t& value) {
    uint64_t word = 0;
    for (int shift = 0; shift < 64 && p < end; shift += 7) {
        const uint8_t byte = *p++;
        word |= uint64_t(byte & 0x7F) << shift;
        if (byte < 0x80) {
            value = static_cast<int64_t>(word >> 1) ^ -static_cast<int64_t>(word & 1);
            return true;
        }
    }
    return false;
}

// Bytes of a length that may be -1, for null; at and to: where they are, to < at for null.
static bool bytes(const uint8_t* start, const uint8_t*& p, const uint8_t* end, int64_t& at, int64_t& to) {
    int64_t size;
    if (!varint(p, end, size) || size > end - p) return false;
    at = p - start;
    to = size < 0 ? at - 1 : at + size;
    p += size < 0 ? 0 : size;
    return true;
}

extern "C" {

// Reads `count` records of data[size]: out[6, count] takes offsets, key starts and stops, value starts and
// stops, and times. Returns false for anything unusual, which another reader explains: a wrong length, an
// offset that does not ascend, a header's name that is not ASCII.
bool records_read(const uint8_t* data, int64_t size, int64_t base, int64_t base_ms, int64_t count,
                  int64_t* out) {
    const uint8_t *p = data, *const end = data + size;
    int64_t before = base - 1;
    for (int64_t i = 0; i < count; ++i) {
        int64_t length, ignored, age, delta, headers;
        if (!varint(p, end, length) || length < 0 || length > end - p) return false;
        const uint8_t* const stop = p + length;
        if (!varint(p, stop, ignored) || !varint(p, stop, age) || !varint(p, stop, delta)) return false;
        if (delta < 0 || delta > INT32_MAX || base + delta <= before) return false;
        before = out[i] = base + delta;
        out[5 * count + i] = int64_t(uint64_t(base_ms) + uint64_t(age));
        if (!bytes(data, p, stop, out[count + i], out[2 * count + i])) return false;
        if (!bytes(data, p, stop, out[3 * count + i], out[4 * count + i])) return false;
        if (!varint(p, stop, headers) || headers < 0) return false;
        for (int64_t h = 0; h < headers; ++h) {
            int64_t at, to;
            if (!bytes(data, p, stop, at, to) || to < at) return false;
            for (int64_t k = at; k < to; ++k)
                if (data[k] >= 0x80) return false;
            if (!bytes(data, p, stop, at, to)) return false;
        }
        if (p != stop) return false;
    }
    return true;
}

}
"""


@dataclass(frozen=True)
class Spans:
    """Records of a batch; a null key or value stops before it starts.

    Args:
        offsets: i64[n].
        key_starts, key_stops, starts, stops: i64[n], places of keys and values in the data.
        times: i64[n], the producers' times in ms.
    """

    offsets: I64
    key_starts: I64
    key_stops: I64
    starts: I64
    stops: I64
    times: I64

    @property
    def _all(self) -> tuple[I64, ...]:
        return self.offsets, self.key_starts, self.key_stops, self.starts, self.stops, self.times

    @property
    def payload_bytes(self) -> int:
        """Bytes of keys and values."""
        sizes = self.key_stops - self.key_starts, self.stops - self.starts
        return int(sum(np.maximum(size, 0).sum() for size in sizes))

    def take(self, rows: slice) -> Spans:
        """Some of the records."""
        return Spans(*(places[rows] for places in self._all))

    def moved(self, at: int) -> Spans:
        """The records in data that begins at `at` of longer data."""
        places = ("key_starts", "key_stops", "starts", "stops")
        return replace(self, **{name: getattr(self, name) + at for name in places})

    @staticmethod
    def joined(parts: Sequence[Spans]) -> Spans:
        """Records one behind the other."""
        return Spans(*(np.concatenate(places) for places in zip(*(part._all for part in parts), strict=True)))


def read_records(data: Any, base: int, count: int, base_ms: int = 0) -> Spans | None:
    """Read the records of a batch; None: something is unusual.

    Args:
        data: decompressed bytes of the records.
        base: offset of the batch.
        count: n, number of records.
        base_ms: time of the batch, from which its records' times count.
    """
    if count < 0 or count > len(data):
        return None
    found = np.empty((6, count), np.int64)
    buffer = np.frombuffer(data, np.uint8) if count else np.zeros(1, np.uint8)
    where = len(data), base, base_ms, count
    if not _library().records_read(address(buffer), *where, address(found)):
        return None
    return Spans(*found)


@functools.cache
def _library() -> ctypes.CDLL:
    library = compile_host(_SOURCE, name="Kafka records")
    pointer, number = ctypes.c_void_p, ctypes.c_int64
    library.records_read.restype = ctypes.c_bool
    library.records_read.argtypes = [pointer, *4 * [number], pointer]
    return library
