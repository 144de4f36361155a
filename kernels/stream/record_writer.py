"""Records of Kafka batches (message format 2), compiled: bytes of many records, cut into batches."""

from __future__ import annotations

import ctypes
import functools
from collections.abc import Sequence
from typing import NamedTuple

import numpy as np
import numpy.typing as npt

from livectr.kernels.runtime.arrays import address
from livectr.kernels.runtime.library import kernel_library

_OVERHEAD = 23
"""Most bytes of a record beside its key and value."""


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
        keys: of n records; None is a null key.
        values: of n records.
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
    library = kernel_library()
    pointer, number = ctypes.c_void_p, ctypes.c_int64
    library.records_write.restype = number
    library.records_write.argtypes = [
        *(ctypes.c_char_p, pointer, pointer, ctypes.c_char_p, pointer, pointer, pointer),
        *(number, number, pointer, pointer),
    ]
    return library
