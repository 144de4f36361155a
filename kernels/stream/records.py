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
from livectr.kernels.runtime.library import kernel_library

I64 = npt.NDArray[np.int64]


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
    library = kernel_library()
    pointer, number = ctypes.c_void_p, ctypes.c_int64
    library.records_read.restype = ctypes.c_bool
    library.records_read.argtypes = [pointer, *4 * [number], pointer]
    return library
