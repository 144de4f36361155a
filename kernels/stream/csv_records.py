"""Records of CSV text: where each begins and ends, and whether a parser may have it.

A quote that nothing closes, or that text follows after its end, spoils its first line alone: all lines behind
it are records again. So no row is lost to another row's quote.
"""

from __future__ import annotations

import ctypes
import functools
from dataclasses import dataclass

import numpy as np
import numpy.typing as npt

from livectr.kernels.runtime.library import kernel_library

I64 = npt.NDArray[np.int64]
FITS, COLUMNS, QUOTE, LONG, ENCODING, RETURN = range(6)
"""Verdicts: a parser may have the record; it has another number of fields; a quote of its first line is not
closed, or text follows the closed one; it is too long; it is not UTF-8; a carriage return is inside of it."""


@dataclass(frozen=True)
class Dialect:
    """Way in which a CSV file is written.

    Args:
        delimiter: between fields, one ASCII character.
        quote: around fields that hold delimiters or line ends; "": none. Inside it is doubled.
        escape: before a character that means nothing; "": none.
    """

    delimiter: str = ","
    quote: str = '"'
    escape: str = ""


@dataclass(frozen=True)
class Records:
    """Records of a text.

    Args:
        begins: int64[n], first byte of each.
        stops: int64[n], end of each, behind its line end.
        lines: int64[n], lines of the text before it.
        fields: int64[n], number of its fields.
        verdicts: int32[n].
        used: bytes of the text that were read; a record that the text cuts begins there.
        line_count: lines of these bytes.
    """

    begins: I64
    stops: I64
    lines: I64
    fields: I64
    verdicts: npt.NDArray[np.int32]
    used: int
    line_count: int

    def __len__(self) -> int:
        return len(self.begins)


def csv_records(
    text: bytes, dialect: Dialect, *, columns: int, longest: int, last: bool, most: int | None = None
) -> Records:
    """Split a text into records; empty lines are none.

    Args:
        text: begins with a record.
        dialect: of the file.
        columns: fields that a record must have; 0: any number.
        longest: bytes of a record beyond which it is too long.
        last: nothing follows the text.
        most: records to find; None: all.
    """
    capacity = text.count(b"\n") + 1 if most is None else most
    begins, stops, lines, fields = (np.empty(capacity, np.int64) for _ in range(4))
    verdicts, used = np.empty(capacity, np.int32), np.empty(2, np.int64)
    marks = (ord(mark or "\0") for mark in (dialect.delimiter, dialect.quote, dialect.escape))
    count = _library().csv_records(
        np.frombuffer(text, np.uint8), len(text), last, *marks, columns, longest, capacity,
        begins, stops, lines, fields, verdicts, used,
    )  # fmt: skip
    return Records(
        begins[:count],
        stops[:count],
        lines[:count],
        fields[:count],
        verdicts[:count],
        int(used[0]),
        int(used[1]),
    )


@functools.cache
def _library() -> ctypes.CDLL:
    library = kernel_library()
    u8 = np.ctypeslib.ndpointer(np.uint8, flags="C")
    i64, i32 = np.ctypeslib.ndpointer(np.int64, flags="C"), np.ctypeslib.ndpointer(np.int32, flags="C")
    number, mark = ctypes.c_int64, ctypes.c_uint8
    library.csv_records.restype = number
    library.csv_records.argtypes = [
        u8, number, ctypes.c_int32, mark, mark, mark, number, number, number, i64, i64, i64, i64, i32, i64,
    ]  # fmt: skip
    return library
