"""Protobuf messages to Arrow columns, compiled (`columns.hpp` says what is passed over)."""

from __future__ import annotations

import ctypes
import functools
import threading
import weakref
from collections.abc import Sequence
from dataclasses import dataclass
from enum import IntEnum
from functools import partial
from typing import Any

import numpy as np
import numpy.typing as npt
import pyarrow as pa

from livectr.kernels.runtime.arrays import address
from livectr.kernels.runtime.library import kernel_library
from livectr.kernels.stream.json_columns import taken

I32 = npt.NDArray[np.int32]
I64 = npt.NDArray[np.int64]


class Kind(IntEnum):
    """Type of a field by its encoding; `Kind` of `wire.hpp`."""

    INT64, INT32, SINT64, SINT32, BOOL, WORD64, WORD32, STRING, BYTES, MESSAGE, GROUP = range(11)


class Shape(IntEnum):
    """Form of a column's field; `Shape` of `columns.hpp`."""

    PLAIN, WRAPPED, MICROS, NANOS = range(4)


class Error(IntEnum):
    """Kind of a message's error; `Error` of `columns.hpp`."""

    GOOD, DAMAGED, NOT_TEXT, BAD_TIME = range(4)


@dataclass(frozen=True)
class Field:
    """Field of a message.

    Args:
        number: of the field.
        kind: type by its encoding; WRAPPED: of field 1 of its message.
        arrow: type of its column; None: it is no column, but ends the other fields of its oneof.
        shape: of its value; MICROS and NANOS are a Timestamp since 1970.
        oneof: number of its oneof; -1: none.
        presence: it is null where it is absent.
        absent: value where it is absent: the bits of a number, or bytes.
        known: numbers of an enum that ignores others, ascending; None: it takes all.
    """

    number: int
    kind: Kind
    arrow: pa.DataType | None = None
    shape: Shape = Shape.PLAIN
    oneof: int = -1
    presence: bool = False
    absent: int | bytes = 0
    known: tuple[int, ...] | None = None


class _Options(ctypes.Structure):
    """`ProtobufField` of `columns.hpp`."""

    _fields_ = (
        *((name, ctypes.c_int32) for name in ("number", "kind", "shape", "oneof")),
        *((name, ctypes.c_uint8) for name in ("list", "wanted", "presence", "closed")),
        *((name, ctypes.c_int32) for name in ("known_size", "absent_size")),
        ("absent", ctypes.c_uint64),
    )


class ProtobufColumns:
    """Reader of messages of one type; thread-safe.

    Args:
        fields: of the message; those with an Arrow type are the columns, in this order. Numbers differ.
    """

    def __init__(self, fields: Sequence[Field]) -> None:
        self._kinds = [field.arrow for field in fields if field.arrow is not None]
        self._library = _library()
        self._handle = self._library.protobuf_new()
        weakref.finalize(self, self._library.protobuf_delete, self._handle)
        self._lock = threading.Lock()
        for field in fields:
            known = np.array(field.known or (), np.int32)
            chars = field.absent if isinstance(field.absent, bytes) else b""
            options = _Options(
                *(field.number, field.kind, field.shape, field.oneof),
                *(field.arrow is not None and pa.types.is_list(field.arrow), field.arrow is not None),
                *(field.presence, field.known is not None, len(known), len(chars)),
                field.absent if isinstance(field.absent, int) else 0,
            )
            self._library.protobuf_field(self._handle, ctypes.byref(options), address(known), chars)

    def read(self, data: Any, starts: I64, stops: I64) -> tuple[list[pa.Array], I32]:
        """Read n messages; message i is data[starts[i] : stops[i]].

        Args:
            data: buffer of bytes.
            starts: i64[n].
            stops: i64[n].

        Returns:
            Arrays of the columns, m rows, and i32[n]: 0 for the m messages that are rows, else an `Error`
            with the number of the column above its 8 bits.

        Raises:
            MemoryError: no memory, or a column of 2 GiB.
        """
        buffer = np.frombuffer(data, np.uint8) if len(data) else np.zeros(1, np.uint8)
        starts, stops = (np.ascontiguousarray(places, np.int64) for places in (starts, stops))
        errors = np.empty(len(starts), np.int32)
        with self._lock:
            rows = self._library.protobuf_read(
                self._handle, address(buffer), address(starts), address(stops), len(starts), address(errors)
            )
            if rows < 0:
                raise MemoryError("no memory for columns of Protobuf messages")
            columns = [
                taken(
                    kind,
                    rows,
                    partial(self._library.protobuf_sizes, self._handle, number),
                    partial(self._library.protobuf_take, self._handle, number),
                )
                for number, kind in enumerate(self._kinds)
            ]
            return columns, errors


@functools.cache
def _library() -> ctypes.CDLL:
    library = kernel_library()
    pointer, number = ctypes.c_void_p, ctypes.c_int64
    library.protobuf_new.restype, library.protobuf_new.argtypes = pointer, []
    library.protobuf_delete.restype, library.protobuf_delete.argtypes = None, [pointer]
    library.protobuf_field.restype = None
    library.protobuf_field.argtypes = [pointer, pointer, pointer, ctypes.c_char_p]
    library.protobuf_read.restype = number
    library.protobuf_read.argtypes = [pointer, pointer, pointer, pointer, number, pointer]
    library.protobuf_sizes.restype, library.protobuf_sizes.argtypes = None, [pointer, number, pointer]
    library.protobuf_take.restype, library.protobuf_take.argtypes = None, [pointer, number, *[pointer] * 5]
    return library
