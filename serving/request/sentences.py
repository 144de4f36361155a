"""Sentences of what may be wrong with a request: a table of the compiled parser's codes."""

from __future__ import annotations

from collections.abc import Callable, Mapping
from dataclasses import dataclass

from livectr.client.pack import FIELDS
from livectr.ingest.dead_letters.complaints import no_time, wrong_unit
from livectr.ingest.language import dtypes
from livectr.ingest.language.event_times import LIKELY
from livectr.ingest.language.streams import Stream
from livectr.kernels.request.parse import KINDS, Code, ParsedRequest, Part
from livectr.protos import livectr_pb2 as pb
from livectr.serving.errors import RequestError
from livectr.serving.limits import RequestLimits


@dataclass(frozen=True)
class ColumnSpec:
    """Column of the impression stream that a request may or must hold.

    Args:
        dtype: type of the column in the pipeline file.
        placement: context, candidates or either, as in livectr.proto.
        required: whether a request without the column is refused.
    """

    name: str
    dtype: str
    placement: pb.Placement
    required: bool

    @property
    def expected(self) -> str:
        """Field of a Column message, and the type, as a sentence names them."""
        return f"{FIELDS[dtypes.element(self.dtype)]} ({self.dtype})"

    @property
    def part(self) -> str:
        """Only part that may have the column, or else the candidates."""
        return "context" if self.placement == pb.PLACEMENT_CONTEXT else "candidates"


@dataclass(frozen=True)
class RequestLayout:
    """Requests of a method.

    Args:
        message: name of the message, with its package.
        columns: name → column that features read.
        stream: whose columns these are.
        listed: a request has columns of candidates.
        item_column: column of the items, which the server fills in itself; None: there is none.
    """

    message: str
    columns: Mapping[str, ColumnSpec]
    stream: Stream
    limits: RequestLimits
    listed: bool
    item_column: str | None = None


def long_string(size: int, limits: RequestLimits) -> str:
    """Sentence about a string of too many bytes."""
    return (
        f"holds a string of {size} bytes; this server takes at most {limits.string_bytes} (max_string_bytes)"
    )


def damaged(message: str) -> RequestError:
    """Error about bytes that are no message."""
    return RequestError(
        "request", f"is not a {message} message: its bytes are damaged, or text in it is no UTF-8"
    )


def request_error(parsed: ParsedRequest, layout: RequestLayout) -> RequestError:
    """Error of a request whose code is not GOOD."""
    code = Code(parsed.code)
    if code is Code.DAMAGED:
        return damaged(layout.message)
    if code is Code.MISSING:
        return _missing(list(layout.columns.values())[parsed.numbers[0]], layout)
    field = _FIELDS.get(code, "request_id")
    if parsed.part is not Part.OUTSIDE:
        field = f"{parsed.part.name.lower()}.{parsed.name}"
    elif code is Code.NOT_FINITE:
        field = "bids"
    return RequestError(field, _SENTENCES[code](_Wrong(parsed.name, *parsed.numbers, layout)))


@dataclass(frozen=True)
class _Wrong:
    """Column, the two numbers of the error, and the requests' layout."""

    name: str
    a: int
    b: int
    layout: RequestLayout

    @property
    def spec(self) -> ColumnSpec:
        return self.layout.columns[self.name]

    @property
    def limits(self) -> RequestLimits:
        return self.layout.limits


def _missing(spec: ColumnSpec, layout: RequestLayout) -> RequestError:
    part = spec.part if layout.listed else "context"
    hint = "" if layout.item_column is None else "; send a value that holds for all items"
    return RequestError(f"{part}.{spec.name}", f"is missing (type {spec.dtype}){hint}")


def _unknown(wrong: _Wrong) -> str:
    known = ", ".join(wrong.layout.columns)
    return f"is no column of {wrong.layout.stream.topic}; features need {known}"


_FIELDS = {
    Code.NO_CANDIDATES: "candidates",
    Code.BIDS_LENGTH: "bids",
    Code.NEGATIVE_BID: "bids",
}
"""Code → field of an error that is about no column; others are about the request's id."""

_SENTENCES: dict[Code, Callable[[_Wrong], str]] = {
    Code.LONG_STRING: lambda w: long_string(w.a, w.limits),
    Code.NO_CANDIDATES: lambda w: "there are none: send at least one column of candidates",
    Code.EMPTY_CANDIDATES: lambda w: "is empty: send at least one candidate",
    Code.MANY_CANDIDATES: lambda w: (
        f"holds {w.a} candidates; this server takes at most {w.limits.candidates} (max_candidates)"
    ),
    Code.TWICE: lambda w: "is there twice",
    Code.NAMES_ITEMS: lambda w: "names the items; leave it out, or send `ids` or `names`",
    Code.UNKNOWN: _unknown,
    Code.WRONG_PART: lambda w: f"belongs into {w.spec.part}",
    Code.NO_VALUES: lambda w: f"holds no values; send {w.spec.expected}",
    Code.WRONG_KIND: lambda w: f"holds {KINDS[w.a]}; send {w.spec.expected}",
    Code.BAD_NULLS: lambda w: f"nulls must be rising numbers of its {w.a} rows",
    Code.NO_LIST: lambda w: f"has offsets, but {w.spec.dtype} is no list",
    Code.WRONG_LENGTH: lambda w: f"holds {w.a} values, expected {w.b}",
    Code.BAD_OFFSETS: lambda w: f"needs {w.a} rising offsets from 0 to {w.b}, the number of its values",
    Code.LONG_LIST: lambda w: (
        f"has a list of {w.a} values; this server takes at most {w.limits.list} (max_list)"
    ),
    Code.NO_INT32: lambda w: "holds a number that does not fit int32",
    Code.NOT_FINITE: lambda w: f"value {w.a} is not a finite number",
    Code.NO_FLOAT32: lambda w: "holds a number that does not fit float32",
    Code.NULL_ANCHOR: lambda w: "is null; send a value",
    Code.NO_TIME: lambda w: no_time(w.name, w.a),
    Code.WRONG_UNIT: lambda w: wrong_unit(w.name, list(LIKELY)[w.a]),
    Code.IN_CONTEXT: lambda w: "is in context too",
    Code.BIDS_LENGTH: lambda w: f"holds {w.a} values for {w.b} candidates; send one each or none",
    Code.NEGATIVE_BID: lambda w: f"value {w.a} is negative",
}
