"""Order of scored candidates, packed for a reply: what a rank server sends, in protobuf's wire format."""

from __future__ import annotations

import ctypes
import functools

import numpy as np
import numpy.typing as npt
import pyarrow as pa

from livectr.kernels.runtime.arrays import address, contiguous
from livectr.kernels.runtime.library import kernel_library

F32 = npt.NDArray[np.float32]
F64 = npt.NDArray[np.float64]


class ReplyPacker:
    """Orders candidates by expected value, and packs them as repeated fields of a message.

    Equal values keep the order of the candidates. Encoding: packed repeated fields,
    protobuf.dev/programming-guides/encoding. Thread-safe.

    Args:
        index: number of the field (uint32) of the candidates' places, best value first.
        probability: number of the field (float) of their probabilities.
        revenue: number of the field (double) of their values; with `value`, of 1000 times their values.
        value: number of the field (double) of their values; 0: there is none.

    Attributes:
        fields_at: address of these numbers, i64[4].
    """

    def __init__(self, index: int, probability: int, revenue: int, value: int = 0) -> None:
        self._fields = np.array((index, probability, revenue, value), np.int64)
        self.fields_at = address(self._fields)
        self._library = _library()

    def __call__(self, pctr: F64, bids: F64, values: F64 | None = None) -> bytes:
        """Pack candidates.

        Args:
            pctr: f64[n], click probabilities, of which NaN comes last.
            bids: f64[n].
            values: f64[n]; None: bid times probability.

        Raises:
            ValueError: an array has another shape or kind.
            MemoryError: no memory.
        """
        pctr, bids = contiguous(pctr, np.float64, (None,)), contiguous(bids, np.float64, (None,))
        if len(bids) != len(pctr):
            raise ValueError(f"{len(bids)} bids for {len(pctr)} probabilities")
        given = None if values is None else contiguous(values, np.float64, (len(pctr),))
        out = np.empty(self._library.reply_most_bytes(len(pctr)), np.uint8)
        at = address(pctr), address(bids), None if given is None else address(given)
        size = self._library.pack_reply(*at, len(pctr), self.fields_at, address(out))
        if size < 0:
            raise MemoryError("no memory for the order of a reply")
        return out[:size].tobytes()


def pack_texts(texts: pa.Array, field: int, inner: int) -> bytes:
    """Message of texts as a field of a reply, on the wire.

    Args:
        texts: strings, of which none is null.
        field: number of the message.
        inner: number of its repeated field.
    """
    _, ends, chars = texts.buffers()
    offsets = np.frombuffer(ends, np.int32)[texts.offset :]
    arguments = address(offsets), 0 if chars is None else chars.address, len(texts), field, inner
    out = np.empty(_library().pack_texts(*arguments, None), np.uint8)
    _library().pack_texts(*arguments, address(out))
    return out.tobytes()


def probabilities(logits: F32, lines: tuple[F32, F32] | None = None) -> F64:
    """Click probabilities f64[n] of logits f32[n]: their logistic function, in float64.

    Args:
        logits: f32[n].
        lines: scale and shift f32[n] of each logit's calibration; None: they are not calibrated.
    """
    logits, out = contiguous(logits, np.float32, (None,)), np.empty(len(logits))
    held = [contiguous(each, np.float32, (len(logits),)) for each in lines or ()]
    scale, shift = map(address, held) if held else (None, None)
    _library().reply_probabilities(address(logits), scale, shift, len(logits), address(out))
    return out


@functools.cache
def _library() -> ctypes.CDLL:
    library = kernel_library()
    pointer, number = ctypes.c_void_p, ctypes.c_int64
    library.pack_reply.restype = number
    library.pack_reply.argtypes = [pointer, pointer, pointer, number, pointer, pointer]
    library.pack_texts.restype = number
    library.pack_texts.argtypes = [pointer, pointer, number, number, number, pointer]
    library.reply_most_bytes.restype, library.reply_most_bytes.argtypes = number, [number]
    library.reply_probabilities.restype = None
    library.reply_probabilities.argtypes = [pointer, pointer, pointer, number, pointer]
    return library
