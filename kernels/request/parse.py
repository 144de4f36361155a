"""Bytes of a request into Arrow columns, in one compiled call (`parse.cpp`); an error is a code."""

from __future__ import annotations

import ctypes
import functools
import weakref
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from enum import IntEnum
from typing import Any

import numpy as np
import numpy.typing as npt
import pyarrow as pa

from livectr.kernels.runtime.arrays import copied
from livectr.kernels.runtime.library import kernel_library, quick_library

F64 = npt.NDArray[np.float64]

ROLES = (
    *("request_id", "context", "candidates", "bids", "content", "version", "side", "explain", "top_k"),
    *("prerank_k", "bid_column", "ids", "names", "excluded_ids", "excluded_names"),
)
"""Fields of the requests that are read; `Role` of `message.hpp`."""
KINDS = ("ints", "doubles", "bools", "strings", "bytes")
"""Members of the oneof of a Column; `Kind` of `message.hpp`."""
_MOST_UNITS = 4
_KEPT_SCHEMAS = 256
"""Combinations of columns whose Arrow schemas are kept."""

_ELEMENTS = (
    *(pa.int64(), pa.int32(), pa.float64(), pa.float32(), pa.bool_()),
    *(pa.string(), pa.binary()),
)
"""Types of values; `Element` of `schema.hpp`."""


def element_of(kind: pa.DataType) -> tuple[int, bool]:
    """Number of an Arrow type's values among `Element` of `schema.hpp`, and whether it is a list of them."""
    listed = pa.types.is_list(kind)
    return _ELEMENTS.index(kind.value_type if listed else kind), listed


class Code(IntEnum):
    """Kind of an error; `Code` of `schema.hpp`. Behind it are the two numbers of its sentence.

    NULL_ANCHOR is a null in the key or the time.
    """

    GOOD = 0
    NO_ROOM = 1
    DAMAGED = 2
    LONG_STRING = 3  # bytes
    NO_CANDIDATES = 4
    EMPTY_CANDIDATES = 5
    MANY_CANDIDATES = 6  # candidates
    TWICE = 7
    NAMES_ITEMS = 8
    UNKNOWN = 9
    WRONG_PART = 10
    NO_VALUES = 11
    WRONG_KIND = 12  # index in KINDS
    BAD_NULLS = 13  # rows
    NO_LIST = 14
    WRONG_LENGTH = 15  # values, rows
    BAD_OFFSETS = 16  # offsets, values
    LONG_LIST = 17  # values
    NO_INT32 = 18
    NOT_FINITE = 19  # index of the value
    NO_FLOAT32 = 20
    NULL_ANCHOR = 21
    NO_TIME = 22  # value
    WRONG_UNIT = 23  # index of the unit
    IN_CONTEXT = 24
    MISSING = 25  # index of the column
    BIDS_LENGTH = 26  # bids, candidates
    NEGATIVE_BID = 27  # index


class Part(IntEnum):
    """Part of a request; `Part` of `schema.hpp`."""

    OUTSIDE, CONTEXT, CANDIDATES = range(3)


@dataclass(frozen=True)
class RequestColumn:
    """Column that features read.

    Args:
        arrow: type of a value, or a list of it.
        parts: that may have it.
        required: the column of a request without it is an error.
        fill: value for a null; None: it stays null.
        anchor: a null is an error.
        time: int64, the time of the request, in the context.
    """

    name: str
    arrow: pa.DataType
    parts: tuple[Part, ...]
    required: bool
    fill: Any = None
    anchor: bool = False
    time: bool = False


@dataclass(frozen=True)
class RequestRules:
    """Bounds of a request.

    Args:
        candidates: most candidates.
        list: most values of a list.
        string_bytes: most bytes of a string.
        times: earliest and latest time.
        units: ranges of times that are in another unit, both ends included; at most 4.
    """

    candidates: int
    list: int
    string_bytes: int
    times: tuple[int, int]
    units: Sequence[tuple[int, int]] = ()


class _Settings(ctypes.Structure):
    """`Settings` of `schema.hpp`."""

    _fields_ = (
        *((name, ctypes.c_int64) for name in ("most_candidates", "most_list", "most_string_bytes")),
        *((name, ctypes.c_int64) for name in ("candidate_columns", "earliest", "latest", "units")),
        ("unit", ctypes.c_int64 * (2 * _MOST_UNITS)),
        ("numbers", ctypes.c_int64 * len(ROLES)),
    )


class _Column(ctypes.Structure):
    """`ColumnOptions` of `schema.hpp`."""

    _fields_ = (
        *((name, ctypes.c_int64) for name in ("element", "listed", "parts", "required", "filled")),
        *((name, ctypes.c_int64) for name in ("anchor", "time")),
        ("fill", ctypes.c_uint64),
        ("fill_bytes", ctypes.c_int64),
    )


class _Head(ctypes.Structure):
    """`Head` of `parse.cpp`."""

    _fields_ = (
        *((name, ctypes.c_int64) for name in ("code", "part", "name_at", "name_size", "a", "b")),
        *((name, ctypes.c_int64) for name in ("id_at", "id_size", "side_at", "side_size")),
        *((name, ctypes.c_int64) for name in ("bid_column_at", "bid_column_size")),
        ("version", ctypes.c_uint64),
        *((name, ctypes.c_int64) for name in ("explain", "top_k", "prerank_k", "contents")),
        *((name, ctypes.c_int64) for name in ("size", "time", "timed")),
        *((name, ctypes.c_int64) for name in ("items_kind", "items_size", "items_longest")),
        *((name, ctypes.c_int64) for name in ("excluded_kind", "excluded_size", "excluded_longest")),
        *((name, ctypes.c_void_p) for name in ("context", "candidates", "items", "excluded")),
        *((name, ctypes.c_void_p) for name in ("context_columns", "candidate_columns", "bids")),
        ("bids_size", ctypes.c_int64),
        ("memory", ctypes.c_void_p),
        ("sample", ctypes.c_uint64),
    )


@dataclass(frozen=True)
class ItemValues:
    """Ids or names of items, whatever their number.

    Args:
        kind: "ids" or "names".
        longest: bytes of the longest name.
        array: int64[n] or string[n].
    """

    kind: str
    longest: int
    array: pa.Array


class ParsedRequest:
    """Request that was read; it has no columns where the code is not GOOD.

    Its columns lie in memory that compiled calls read. Arrow gets those that are asked for, without a copy.

    Args:
        raw: bytes of the request, an attribute, too.
        head: result of the parser.
        parts: uint8[columns], the Part that has each column.
        parser: that has read it.

    Attributes:
        request_id, side, version, explain: fields of the request.
        contents: number of messages with inline content; they are whole, and not read.
        size: number of candidates; 1 for requests without columns of them.
        time: of the request; None: it has no time.
        columns_at: addresses of the context's and the candidates' arrays, in the order of the parser's
            columns.
        bids_at: address of f64[size], bids of columns of candidates, or of named items; 0: there are none.
        bids_size: number of bids that the request has; 0: they are 1.
        sample: hash of the first bytes, by which samples of requests are chosen.
    """

    __slots__ = (
        *("_candidates", "_context", "_excluded", "_head", "_items", "bids_at", "bids_size", "code"),
        *(
            "columns_at",
            "contents",
            "explain",
            "parser",
            "parts",
            "raw",
            "request_id",
            "sample",
            "side",
            "size",
            "time",
            "version",
        ),
    )

    def __init__(self, raw: bytes, head: _Head, parts: bytes, parser: RequestParser) -> None:
        self.raw, self._head = raw, head
        self.code: int = head.code  # a Code; to make one takes as long as to parse a column
        self.parts, self.parser = parts, parser
        # Each request asks for these: a property takes as long as a column.
        at = head.id_at
        self.request_id = raw[at : at + head.id_size].decode() if head.id_size else ""
        self.side = raw[head.side_at : head.side_at + head.side_size].decode() if head.side_size else ""
        self.version: int = head.version
        self.explain: int = head.explain
        self.contents: int = head.contents
        self.size: int = head.size
        self.time: int | None = head.time if head.timed else None
        self.columns_at: tuple[int, int] = (head.context_columns, head.candidate_columns)
        self.bids_at: int = head.bids or 0
        self.bids_size: int = head.bids_size
        self.sample: int = head.sample
        self._context: dict[str, pa.Array] | None = None
        self._candidates: dict[str, pa.Array] | None = None
        self._items: ItemValues | None = None
        self._excluded: ItemValues | None = None

    def __del__(self) -> None:
        if memory := self._head.memory:
            self.parser.drop(memory)

    @property
    def context(self) -> dict[str, pa.Array]:
        """Arrays of 1 value, by name."""
        if self._context is None:
            self._context = self.parser.arrays(self._head.context, self.parts, Part.CONTEXT)
        return self._context

    @property
    def candidates(self) -> dict[str, pa.Array]:
        """Arrays of n values, by name."""
        if self._candidates is None:
            self._candidates = self.parser.arrays(self._head.candidates, self.parts, Part.CANDIDATES)
        return self._candidates

    @property
    def bids(self) -> F64:
        """Bids f64[n], 1 where a request with candidates has none."""
        head, size = self._head, self.bids_size or self.size
        return copied(head.bids, np.float64, size) if head.bids else np.empty(0)

    @property
    def items(self) -> ItemValues | None:
        """Items of the request; None: it does not name any."""
        if self._items is None and self._head.items:
            head = self._head
            self._items = self.parser.items(head.items, head.items_kind, head.items_longest)
        return self._items

    @property
    def excluded(self) -> ItemValues | None:
        """Items that are not wanted; None: the request does not name any."""
        if self._excluded is None and self._head.excluded:
            head = self._head
            self._excluded = self.parser.items(head.excluded, head.excluded_kind, head.excluded_longest)
        return self._excluded

    @property
    def part(self) -> Part:
        """Part that the error is in."""
        return Part(self._head.part)

    @property
    def name(self) -> str:
        """Name of the column that the error is about."""
        return self._text(self._head.name_at, self._head.name_size)

    @property
    def numbers(self) -> tuple[int, int]:
        """Numbers of the error's sentence."""
        return self._head.a, self._head.b

    @property
    def bid_column(self) -> str:
        """Field `bid_column`."""
        return self._text(self._head.bid_column_at, self._head.bid_column_size)

    @property
    def top_k(self) -> int:
        """Field `top_k`."""
        return int(self._head.top_k)

    @property
    def prerank_k(self) -> int:
        """Field `prerank_k`."""
        return int(self._head.prerank_k)

    def _text(self, at: int, size: int) -> str:
        return self.raw[at : at + size].decode() if size else ""


class RequestParser:
    """Parser of requests of one kind. Thread-safe.

    Args:
        numbers: role (`ROLES`) → number of the field, below 64; others are no fields of the message. With
            "candidates" a request has columns of candidates, and bids.
        columns: that features read, in the order of the results.
        names: of columns that requests may have, too; they are not read.
        item_column: name of the column that no request may have, because the server fills it in.
        kind: class of its requests.

    Attributes:
        handle: of the parser, for compiled calls.
    """

    def __init__(
        self,
        numbers: Mapping[str, int],
        columns: Sequence[RequestColumn],
        names: Sequence[str],
        rules: RequestRules,
        item_column: str = "",
        kind: type[ParsedRequest] = ParsedRequest,
    ) -> None:
        assert all(0 < number < 64 for number in numbers.values()) and len(rules.units) <= _MOST_UNITS
        self._columns, self._kind = tuple(columns), kind
        #: name → its place among the columns
        self.places = {column.name: place for place, column in enumerate(columns)}
        self._parts = ctypes.c_uint8 * max(len(columns), 1)
        self._schemas: dict[tuple[bytes, Part], pa.Schema] = {}
        self._library = _library()
        self.drop = _quick_calls().request_drop
        self.handle = self._library.request_new(
            ctypes.byref(
                _Settings(
                    *(rules.candidates, rules.list, rules.string_bytes, "candidates" in numbers),
                    *(*rules.times, len(rules.units)),
                    tuple(bound for unit in rules.units for bound in unit),
                    tuple(numbers.get(role, 0) for role in ROLES),
                )
            )
        )
        weakref.finalize(self, self._library.request_delete, self.handle)
        for column in columns:
            self._add(column)
        for name in names:
            self._library.request_name(self.handle, name.encode(), len(name.encode()))
        self._library.request_item_column(self.handle, item_column.encode(), len(item_column.encode()))

    def parse(self, raw: bytes) -> ParsedRequest:
        """Parse a request.

        Raises:
            MemoryError: no memory.
        """
        head, parts = _Head(), self._parts()
        self._library.request_parse(self.handle, raw, len(raw), ctypes.byref(head), parts)
        if head.code == Code.NO_ROOM:
            raise MemoryError("no memory for the columns of a request")
        return self._kind(raw, head, bytes(parts), self)

    def arrays(self, batch: int | None, parts: bytes, part: Part) -> dict[str, pa.Array]:
        """Columns of a part of a request, which Arrow takes over.

        Args:
            batch: address of the batch; None: it has no columns.
            parts: as in `ParsedRequest`.
            part: that the batch is of.
        """
        if not batch:
            return {}
        schema = self._schemas.get((parts, part))
        if schema is None:
            found = [column for column, its in zip(self._columns, parts, strict=False) if its == part]
            schema = pa.schema([pa.field(column.name, column.arrow) for column in found])
            if len(self._schemas) >= _KEPT_SCHEMAS:
                self._schemas.clear()
            self._schemas[parts, part] = schema
        self._library.request_hand_over(batch)
        columns = pa.RecordBatch._import_from_c(batch, schema).columns
        return dict(zip(schema.names, columns, strict=True))

    def items(self, array: int, kind: int, longest: int) -> ItemValues:
        """Items at an address, which Arrow takes over."""
        self._library.request_hand_over(array)
        named = KINDS[kind] == "strings"
        found = pa.Array._import_from_c(array, pa.string() if named else pa.int64())
        return ItemValues("names" if named else "ids", longest, found)

    def _add(self, column: RequestColumn) -> None:
        name, (options, text) = column.name.encode(), options_of(column)
        self._library.request_column(self.handle, name, len(name), ctypes.byref(options), text)


def options_of(column: RequestColumn) -> tuple[ctypes.Structure, bytes]:
    """Options of a column, as compiled calls read them, and the text of a null."""
    listed = pa.types.is_list(column.arrow)
    bits, text = 0, b""
    if isinstance(column.fill, str | bytes):
        text = column.fill.encode() if isinstance(column.fill, str) else column.fill
    elif column.fill is not None:
        kind = (column.arrow.value_type if listed else column.arrow).to_pandas_dtype()
        bits = int.from_bytes(np.array(column.fill, kind).tobytes(), "little")
    options = _Column(
        *(*element_of(column.arrow), sum(column.parts), column.required, column.fill is not None),
        *(column.anchor, column.time, bits, len(text)),
    )
    return options, text


@functools.cache
def _library() -> ctypes.CDLL:
    library = kernel_library()
    pointer, number = ctypes.c_void_p, ctypes.c_int64
    library.request_new.restype, library.request_new.argtypes = pointer, [pointer]
    library.request_delete.restype, library.request_delete.argtypes = None, [pointer]
    library.request_column.restype = None
    library.request_column.argtypes = [pointer, ctypes.c_char_p, number, pointer, ctypes.c_char_p]
    library.request_name.restype = None
    library.request_name.argtypes = [pointer, ctypes.c_char_p, number]
    library.request_item_column.restype = None
    library.request_item_column.argtypes = [pointer, ctypes.c_char_p, number]
    library.request_parse.restype = None
    library.request_parse.argtypes = [pointer, ctypes.c_char_p, number, pointer, pointer]
    library.request_hand_over.restype, library.request_hand_over.argtypes = None, [pointer]
    return library


@functools.cache
def _quick_calls() -> ctypes.PyDLL:
    quick = quick_library()
    quick.request_drop.restype, quick.request_drop.argtypes = None, [ctypes.c_void_p]
    return quick
