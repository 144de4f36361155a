"""Order of scored candidates, packed for a reply: what a rank server sends, in protobuf's wire format."""

from __future__ import annotations

import ctypes
import functools

import numpy as np
import numpy.typing as npt

from livectr.kernels.runtime.arrays import address, contiguous
from livectr.kernels.runtime.library import kernel_library

F64 = npt.NDArray[np.float64]

_NUMBER_BYTES = 5 + 4 + 8
_HEAD_BYTES = 3 * 2 * 10


class ReplyPacker:
    """Orders candidates by expected revenue, and packs them as three repeated fields of a message.

    Equal revenues keep the order of the candidates. Encoding: packed repeated fields,
    protobuf.dev/programming-guides/encoding. Thread-safe.

    Args:
        index: number of the field (uint32) of the candidates' places, best revenue first.
        probability: number of the field (float) of their probabilities.
        revenue: number of the field (double) of bid times probability.
    """

    def __init__(self, index: int, probability: int, revenue: int) -> None:
        self._fields = np.array((index, probability, revenue), np.int64)
        self._library = _library()

    def __call__(self, pctr: F64, bids: F64) -> bytes:
        """Pack candidates with click probabilities f64[n], of which NaN comes last, and bids f64[n].

        Raises:
            ValueError: an array has another shape or kind.
            MemoryError: no memory.
        """
        pctr, bids = contiguous(pctr, np.float64, (None,)), contiguous(bids, np.float64, (None,))
        if len(bids) != len(pctr):
            raise ValueError(f"{len(bids)} bids for {len(pctr)} probabilities")
        out = np.empty(_HEAD_BYTES + _NUMBER_BYTES * len(pctr), np.uint8)
        size = self._library.pack_reply(
            address(pctr), address(bids), len(pctr), address(self._fields), address(out)
        )
        if size < 0:
            raise MemoryError("no memory for the order of a reply")
        return out[:size].tobytes()


@functools.cache
def _library() -> ctypes.CDLL:
    library = kernel_library()
    pointer, number = ctypes.c_void_p, ctypes.c_int64
    library.pack_reply.restype = number
    library.pack_reply.argtypes = [pointer, pointer, number, pointer, pointer]
    return library
