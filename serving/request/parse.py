"""Stage 1, parse: bytes of a request become its columns, by the schema of a pipeline's requests.

Every mistake of a client ends here, as a RequestError that names the field.
"""

from __future__ import annotations

import ctypes
import time
from collections.abc import Mapping, Sequence, Set
from dataclasses import dataclass
from functools import cached_property
from typing import Any, TypeAlias

import pyarrow as pa
from google.protobuf.message import DecodeError, Message

from livectr.ingest.language import dtypes
from livectr.ingest.language.event_times import EARLIEST_MS, LATEST_MS, LIKELY
from livectr.ingest.language.expr import ColumnRef, Expr
from livectr.ingest.pipeline import Pipeline
from livectr.kernels.request.funnel import ItemArray
from livectr.kernels.request.parse import (
    ROLES,
    Code,
    ParsedRequest,
    Part,
    RequestColumn,
    RequestParser,
    RequestRules,
)
from livectr.protos import livectr_pb2 as pb
from livectr.serving.limits import DEFAULT, RequestLimits
from livectr.serving.request.sentences import ColumnSpec, RequestLayout, damaged, request_error
from livectr.store.layout import I64

_PARTS = {
    pb.PLACEMENT_CONTEXT: (Part.CONTEXT,),
    pb.PLACEMENT_CANDIDATE: (Part.CANDIDATES,),
    pb.PLACEMENT_EITHER: (Part.CONTEXT, Part.CANDIDATES),
}


@dataclass(frozen=True)
class GivenColumns:
    """Columns of n candidates that are no request's.

    Args:
        size: n.
        context: column → array of 1 value.
        candidates: column → array of n values.
        now_ms: time of the request.
    """

    size: int
    context: Mapping[str, pa.Array]
    candidates: Mapping[str, pa.Array]
    now_ms: int

    def has_candidate(self, name: str) -> bool:
        """Return true if candidates have a column."""
        return name in self.candidates


class Request(ParsedRequest):
    """Request of a client that is a message of its kind; its columns may be wrong.

    Attributes:
        reader: that has parsed it.
        now_ms: time of the request, from its time column or the server's clock.
    """

    reader: RequestReader
    now_ms: int

    @property
    def columns(self) -> Request:
        """The request, whose columns are as they must be.

        Raises:
            RequestError: names the wrong field.
        """
        if self.code != Code.GOOD:
            raise request_error(self, self.reader.layout)
        return self

    def has_candidate(self, name: str) -> bool:
        """Return true if candidates have a column."""
        place = self.parser.places.get(name)
        return place is not None and self.parts[place] == Part.CANDIDATES

    @cached_property
    def message(self) -> Any:
        """Message with all fields, for what is rare: inline content, the served log."""
        return self.reader.kind.FromString(self.raw)

    @property
    def content(self) -> Sequence[Any]:
        """ContentFeatures messages."""
        return self.message.content if self.contents else ()

    def key(self, name: str) -> str:
        """Value of a column of the context, as text; empty: it is not there."""
        if self.code == Code.GOOD and self.reader.layout.columns.get(name) is not None:
            array = self.context.get(name)
            return "" if array is None else str(array[0].as_py())
        for column in self.message.context:
            if column.name == name:
                kind = column.WhichOneof("values")
                values = getattr(column, kind).values if kind else ()
                return str(values[0]) if values else ""
        return ""


class SelectedColumns:
    """Context of a request, with items that a call selects as candidates.

    Args:
        request: its columns; it has none of candidates.
        name: of the items' column.
        array: of the items, in the call's memory.
        size: number of items that are selected.

    Attributes:
        keys: i64[size], keys of the items; they are known once they are selected.
    """

    keys: I64

    def __init__(self, request: Request, name: str, array: ItemArray, size: int) -> None:
        self.request, self.name, self.size, self.now_ms = request, name, size, request.now_ms
        self.place = len(request.parser.places)
        self._candidates = (ctypes.c_void_p * (self.place + 1))()
        self._candidates[self.place] = array.at
        self.columns_at = request.columns_at[0], ctypes.addressof(self._candidates)
        self._array = array

    def has_candidate(self, name: str) -> bool:
        """Return true if candidates have a column."""
        return name == self.name

    @property
    def candidates(self) -> dict[str, pa.Array]:
        """The column of the items."""
        return {self.name: pa.array(self.keys)}


RequestColumns: TypeAlias = Request | GivenColumns | SelectedColumns
"""Columns of a request with n candidates."""


class RequestReader:
    """Reader of the requests of a method. Thread-safe.

    Args:
        kind: class of the message.

    Attributes:
        parser: of the requests' bytes.
    """

    def __init__(self, kind: type[Message], layout: RequestLayout) -> None:
        self.kind, self.layout = kind, layout
        stream, limits = layout.stream, layout.limits
        units = [] if stream.time_unit is not None else list(LIKELY.values())
        self.parser = RequestParser(
            {field.name: field.number for field in kind.DESCRIPTOR.fields if field.name in ROLES},
            [_column(spec, layout) for spec in layout.columns.values()],
            [name for name in stream.columns if name not in {*layout.columns, layout.item_column}],
            RequestRules(
                limits.candidates, limits.list, limits.string_bytes, (EARLIEST_MS, LATEST_MS), units
            ),
            layout.item_column or "",
            Request,
        )

    def read(self, raw: bytes) -> Request:
        """Read the bytes of a request. Raises RequestError if they are no message of its kind."""
        request = self.parser.parse(raw)
        if request.code == Code.DAMAGED:
            raise damaged(self.layout.message)
        assert isinstance(request, Request)
        request.reader, at_ms = self, request.time
        request.now_ms = time.time_ns() // 1_000_000 if at_ms is None else at_ms
        return request


class RequestSchema:
    """Columns that a request must hold for the given roots of a feature plan.

    Args:
        roots: roots of the plan that are computed from requests.
        limits: upper bounds of a request.
        kind: class of the requests' message; only those to Rank have columns of candidates.
        item_column: column of the items, which the server fills in itself (recommendations).

    Attributes:
        columns: name → ColumnSpec.
        reader: of requests.
    """

    def __init__(
        self,
        pipeline: Pipeline,
        roots: Sequence[Expr],
        limits: RequestLimits = DEFAULT,
        kind: type[Message] = pb.RankRequest,
        *,
        item_column: str | None = None,
    ) -> None:
        listed = "candidates" in kind.DESCRIPTOR.fields_by_name
        self.columns = _column_specs(pipeline, {root.name for root in roots}, only_context=not listed)
        if item_column is not None:
            self.columns.pop(item_column, None)
        self.reader = RequestReader(
            kind,
            RequestLayout(
                kind.DESCRIPTOR.full_name,
                self.columns,
                pipeline.log.impressions,
                limits,
                listed,
                item_column,
            ),
        )


def message_of(kind: type[Message], raw: bytes) -> Any:
    """Message of a kind without columns. Raises RequestError if the bytes are none."""
    try:
        return kind.FromString(raw)
    except DecodeError:
        raise damaged(kind.DESCRIPTOR.full_name) from None


def _column(spec: ColumnSpec, layout: RequestLayout) -> RequestColumn:
    stream = layout.stream
    return RequestColumn(
        spec.name,
        dtypes.arrow_type(spec.dtype),
        _PARTS[spec.placement],
        spec.required,
        stream.fill.get(spec.name),
        anchor=spec.name in (stream.key, stream.time),
        time=spec.name == stream.time,
    )


def _column_specs(pipeline: Pipeline, roots: Set[str], *, only_context: bool) -> dict[str, ColumnSpec]:
    """Columns of the impression stream that the named roots are computed from."""
    stream, lookups = pipeline.log.impressions, pipeline.log.lookups
    needed = [root.ref.column for root in pipeline.request_roots if root.name in roots]
    needed += [
        name
        for lookup in lookups
        for name in lookup.keys
        if any(root.name in roots for root in pipeline.lookup_roots[lookup.table.topic])
    ]
    if any(root.name in roots for root in pipeline.history_roots):
        needed += [stream.key, *([stream.time] if stream.time else [])]
    if not only_context and pipeline.worths is not None and pipeline.worths.lookup is not None:
        needed.append(pipeline.worths.lookup.on)
    items = pipeline.items
    item_column = next((lk.on for lk in lookups if items and lk.table.topic == items.topic), None)

    def placement(name: str) -> pb.Placement:
        if only_context or name in (stream.key, stream.time):
            return pb.PLACEMENT_CONTEXT
        return pb.PLACEMENT_CANDIDATE if name == item_column else pb.PLACEMENT_EITHER

    optional = {stream.time, *_filled(pipeline)}
    return {
        name: ColumnSpec(name, stream.columns[name], placement(name), required=name not in optional)
        for name in dict.fromkeys(needed)
    }


def _filled(pipeline: Pipeline) -> set[str]:
    """Columns that a request may leave out because their null has a value.

    The value is the stream's `fill`, or `fill_null` at every use of the column.
    """
    stream = pipeline.log.impressions
    uses = [node.ref for node in pipeline.plan.nodes if node.is_root]
    columns = [ref for ref in uses if isinstance(ref, ColumnRef) and ref.source == stream.topic]
    bare = {ref.column for ref in columns if ref.fill is None}
    return set(stream.fill) | {ref.column for ref in columns} - bare - {stream.key}
