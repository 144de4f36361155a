"""Records of Kafka batches (message format 2), compiled: bytes of many records, cut into batches."""

from __future__ import annotations

import ctypes
import functools
from collections.abc import Sequence
from typing import NamedTuple

import numpy as np
import numpy.typing as npt

from livectr.kernels.runtime.arrays import address
from livectr.kernels.runtime.compiler import compile_host

_OVERHEAD = 23
"""Most bytes of a record beside its key and value."""

_SOURCE = r"""
#include <cstdint>
#include <cstring>

// Writes a number that is not negative, in zigzag code.
static uint8_t* varint(uint8_t* p, int64_t value) {
    uint64_t word = uint64_t(value) << 1;
    for (; word >= 0x80; word >>= 7) *p++ = uint8_t(word) | 0x80;
    *p++ = uint8_t(word);
    return p;
}

static int64_t varint_size(int64_t value) {
    int64_t size = 1;
    for (uint64_t word = uint64_t(value) << 1; word >= 0x80; word >>= 7) ++size;
    return size;
}

extern "C" {

// Writes n records in the order of rows[n], which has those of a partition together; partition[n] is by row.
// at_key, at_value [n + 1]: where keys and values begin; a key with no_key is null. A batch has at most
// `limit` bytes, or one record. batches[4, n]: partition, records, start and stop in `out`. Returns their
// number.
int64_t records_write(const uint8_t* keys, const int64_t* at_key, const bool* no_key, const uint8_t* values,
                      const int64_t* at_value, const int32_t* partition, const int64_t* rows, int64_t n,
                      int64_t limit, uint8_t* out, int64_t* batches) {
    int64_t made = -1, records = 0;
    uint8_t *p = out, *begin = out;
    for (int64_t i = 0; i < n; ++i) {
        const int64_t row = rows[i];
        const int64_t key = at_key[row + 1] - at_key[row], value = at_value[row + 1] - at_value[row];
        // Attributes, the time's delta, the count of headers and a null key are a byte each.
        const int64_t rest = 3 + (no_key[row] ? 1 : varint_size(key) + key) + varint_size(value) + value;
        int64_t size = rest + varint_size(records);
        if (i == 0 || partition[row] != batches[made] || p + varint_size(size) + size - begin > limit) {
            batches[++made] = partition[row];
            batches[n + made] = records = 0;
            batches[2 * n + made] = p - out;
            begin = p;
            size = rest + 1;
        }
        p = varint(p, size);
        *p++ = 0;
        *p++ = 0;
        p = varint(p, records++);
        if (no_key[row]) {
            *p++ = 1;  // -1
        } else {
            p = varint(p, key);
            std::memcpy(p, keys + at_key[row], key);
            p += key;
        }
        p = varint(p, value);
        std::memcpy(p, values + at_value[row], value);
        p += value;
        *p++ = 0;
        batches[n + made] = records;
        batches[3 * n + made] = p - out;
    }
    return made + 1;
}

}
"""


class Written(NamedTuple):
    """Records of a batch, behind each other, without the header of the batch.

    Args:
        partition: of all records.
        records: n, their number.
        data: their bytes; offsets go from 0 to n - 1, times have no delta.
    """

    partition: int
    records: int
    data: memoryview


def write_records(
    partition: npt.NDArray[np.int32], keys: Sequence[bytes | None], values: Sequence[bytes], limit: int
) -> list[Written]:
    """Write records; those of a partition keep their order.

    Args:
        partition: i32[n].
        keys, values: of n records; None is a null key.
        limit: most bytes of a batch's records; a larger record has a batch of its own.
    """
    n = len(values)
    if not len(partition) == len(keys) == n:
        raise ValueError(f"{len(partition)} partitions and {len(keys)} keys for {n} values")
    if not n:
        return []
    no_key = np.zeros(n, np.bool_)
    if None in keys:
        no_key[:] = [key is None for key in keys]
    texts = [key or b"" for key in keys]
    at_key, at_value = _starts(texts), _starts(values)
    out = np.empty(at_key[-1] + at_value[-1] + n * _OVERHEAD, np.uint8)
    found = np.empty((4, n), np.int64)
    partition = np.ascontiguousarray(partition, np.int32)
    rows = np.argsort(partition, kind="stable")
    batches = _library().records_write(
        b"".join(texts), address(at_key), address(no_key), b"".join(values), address(at_value),
        address(partition), address(rows), n, limit, address(out), address(found),
    )  # fmt: skip
    data = out.data
    return [
        Written(of, records, data[start:stop]) for of, records, start, stop in found[:, :batches].T.tolist()
    ]


def _starts(texts: Sequence[bytes]) -> npt.NDArray[np.int64]:
    """Places i64[n + 1] where joined texts begin, and their end."""
    starts = np.zeros(len(texts) + 1, np.int64)
    np.cumsum(np.fromiter(map(len, texts), np.int64, len(texts)), out=starts[1:])
    return starts


@functools.cache
def _library() -> ctypes.CDLL:
    library = compile_host(_SOURCE, name="Kafka record writer")
    pointer, number = ctypes.c_void_p, ctypes.c_int64
    library.records_write.restype = number
    library.records_write.argtypes = [
        *(ctypes.c_char_p, pointer, pointer, ctypes.c_char_p, pointer, pointer, pointer),
        *(number, number, pointer, pointer),
    ]
    return library
