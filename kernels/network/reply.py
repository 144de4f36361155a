"""Order of scored candidates, packed for a reply: what a rank server sends, in protobuf's wire format."""

from __future__ import annotations

import ctypes
import functools

import numpy as np
import numpy.typing as npt

from livectr.kernels.runtime.arrays import address, contiguous
from livectr.kernels.runtime.compiler import compile_host

F64 = npt.NDArray[np.float64]

_SOURCE = """
#include <algorithm>
#include <cmath>
#include <cstdint>
#include <cstring>
#include <memory>
#include <new>

namespace {

uint8_t* put_varint(uint8_t* at, uint64_t value) {
    for (; value >= 128; value >>= 7) *at++ = static_cast<uint8_t>(value | 128);
    *at++ = static_cast<uint8_t>(value);
    return at;
}

uint8_t* begin_packed(uint8_t* at, int64_t field, uint64_t bytes) {
    return put_varint(put_varint(at, static_cast<uint64_t>(field << 3 | 2)), bytes);
}

}  // namespace

extern "C" {

// Packs order, probabilities and revenues bid * pctr of n candidates, best revenue first, as repeated fields
// fields[0] (uint32), fields[1] (float), fields[2] (double). Returns the number of bytes, -1 without memory.
int64_t pack_reply(const double* pctr, const double* bids, int64_t n, const int64_t* fields,
                   uint8_t* out) {
    struct Candidate {
        double ecpm;
        uint32_t index;
        double key() const { return ecpm == ecpm ? ecpm : -INFINITY; }  // NaN comes last
    };
    std::unique_ptr<Candidate[]> order(new (std::nothrow) Candidate[size_t(n)]);
    if (!order) return -1;
    for (int64_t i = 0; i < n; ++i) order[size_t(i)] = {bids[i] * pctr[i], static_cast<uint32_t>(i)};
    std::sort(order.get(), order.get() + n, [](const Candidate& a, const Candidate& b) {
        return a.key() > b.key() || (a.key() == b.key() && a.index < b.index);
    });
    uint64_t bytes = 0;
    for (int64_t i = 0; i < n; ++i)
        bytes += 1 + (i >= 1 << 7) + (i >= 1 << 14) + (i >= 1 << 21) + (i >= 1 << 28);
    uint8_t* at = begin_packed(out, fields[0], bytes);
    for (int64_t i = 0; i < n; ++i) at = put_varint(at, order[size_t(i)].index);
    at = begin_packed(at, fields[1], 4 * uint64_t(n));
    for (int64_t i = 0; i < n; ++i, at += 4) {
        const float value = static_cast<float>(pctr[order[size_t(i)].index]);
        std::memcpy(at, &value, 4);
    }
    at = begin_packed(at, fields[2], 8 * uint64_t(n));
    for (int64_t i = 0; i < n; ++i, at += 8) std::memcpy(at, &order[size_t(i)].ecpm, 8);
    return at - out;
}

}
"""
_NUMBER_BYTES = 5 + 4 + 8
_HEAD_BYTES = 3 * 2 * 10


def pack_reply(pctr: F64, bids: F64, index: int, probability: int, revenue: int) -> bytes:
    """Order candidates by expected revenue, and pack them as three repeated fields of a message.

    Equal revenues keep the order of the candidates. Encoding: packed repeated fields,
    protobuf.dev/programming-guides/encoding.

    Args:
        pctr: click probabilities f64[n]; NaN comes last.
        bids: f64[n].
        index: number of the field (uint32) of the candidates' places, best revenue first.
        probability: number of the field (float) of their probabilities.
        revenue: number of the field (double) of bid times probability.

    Returns:
        Bytes of the three fields.

    Raises:
        ValueError: an array has another shape or kind.
        MemoryError: no memory.
    """
    pctr = contiguous(pctr, np.float64, (None,))
    bids = contiguous(bids, np.float64, (None,))
    if len(bids) != len(pctr):
        raise ValueError(f"{len(bids)} bids for {len(pctr)} probabilities")
    out = np.empty(_HEAD_BYTES + _NUMBER_BYTES * len(pctr), np.uint8)
    fields = np.array((index, probability, revenue), np.int64)
    size = _library().pack_reply(address(pctr), address(bids), len(pctr), address(fields), address(out))
    if size < 0:
        raise MemoryError("no memory for the order of a reply")
    return out[:size].tobytes()


@functools.cache
def _library() -> ctypes.CDLL:
    library = compile_host(_SOURCE, name="reply")
    pointer, number = ctypes.c_void_p, ctypes.c_int64
    library.pack_reply.restype = number
    library.pack_reply.argtypes = [pointer, pointer, number, pointer, pointer]
    return library
