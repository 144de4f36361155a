"""Stage 1, parse: the schema of a request, and its columns.

Every mistake of a client ends here, as a RequestError that names the field.
"""

from __future__ import annotations

from collections.abc import Iterable, Mapping, Sequence, Set
from dataclasses import dataclass
from typing import Any

import pyarrow as pa
import pyarrow.compute as pc

from livectr.ingest.dead_letters.complaints import no_time, wrong_unit
from livectr.ingest.language.event_times import EARLIEST_MS, LATEST_MS, likely_unit
from livectr.ingest.language.expr import ColumnRef, Expr
from livectr.ingest.pipeline import Pipeline
from livectr.protos import livectr_pb2 as pb
from livectr.serving.errors import RequestError
from livectr.serving.limits import DEFAULT, RequestLimits
from livectr.serving.request.columns import to_arrow


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


@dataclass(frozen=True)
class RequestColumns:
    """Columns of a request with n candidates.

    Args:
        size: n.
        context: column → array of 1 value.
        candidates: column → array of n values.
        now_ms: time of the request, from its time column or the server's clock.
    """

    size: int
    context: Mapping[str, pa.Array]
    candidates: Mapping[str, pa.Array]
    now_ms: int


class RequestSchema:
    """Columns that a request must hold for the given roots of a feature plan.

    Args:
        roots: roots of the plan that are computed from requests.
        limits: upper bounds of a request.
        only_context: the request has no candidate columns (pre-rank).
        item_column: column of the items, which the server fills in itself (recommendations).

    Attributes:
        columns: name → ColumnSpec.
        time: name of the time column, or None.
    """

    def __init__(
        self,
        pipeline: Pipeline,
        roots: Sequence[Expr],
        limits: RequestLimits = DEFAULT,
        *,
        only_context: bool = False,
        item_column: str | None = None,
    ) -> None:
        self._limits = limits
        stream = pipeline.log.impressions
        self._stream = stream
        self.columns = _column_specs(pipeline, {root.name for root in roots}, only_context)
        self._item_column = item_column
        if item_column is not None:
            self.columns.pop(item_column, None)
        self.time = stream.time

    def parse_context(self, columns: Iterable[Any], now_ms: int) -> RequestColumns:
        """Parse the context of a request without candidate columns.

        Raises:
            RequestError: names the wrong field.
        """
        context = self._parse("context", columns, pb.PLACEMENT_CONTEXT, 1)
        self._check_complete(context, {}, "context")
        return RequestColumns(1, context, {}, self._now(context, now_ms))

    def parse(self, context: Iterable[Any], candidates: Sequence[Any], now_ms: int) -> RequestColumns:
        """Parse the context and the n candidates of a request.

        Args:
            context: Column messages of one row.
            candidates: Column messages of n rows.
            now_ms: server's clock, for requests without a time column.

        Raises:
            RequestError: names the wrong field.
        """
        if not candidates:
            raise RequestError("candidates", "there are none: send at least one column of candidates")
        size = _length(candidates[0])
        first = f"candidates.{candidates[0].name}"
        if size == 0:
            raise RequestError(first, "is empty: send at least one candidate")
        if size > self._limits.candidates:
            raise RequestError(
                first,
                f"holds {size} candidates; this server takes at most {self._limits.candidates} "
                "(max_candidates)",
            )
        shared = self._parse("context", context, pb.PLACEMENT_CONTEXT, 1)
        each = self._parse("candidates", candidates, pb.PLACEMENT_CANDIDATE, size)
        for name in each:
            if name in shared:
                raise RequestError(f"candidates.{name}", "is in context too")
        self._check_complete(shared, each, "candidates")
        return RequestColumns(size, shared, each, self._now(shared, now_ms))

    def _parse(
        self, part: str, columns: Iterable[Any], placement: pb.Placement, size: int
    ) -> dict[str, pa.Array]:
        arrays: dict[str, pa.Array] = {}
        unread: set[str] = set()
        for column in columns:
            name = column.name
            where = f"{part}.{name}"
            if name in arrays or name in unread:
                raise RequestError(where, "is there twice")
            spec = self.columns.get(name)
            if spec is None:
                self._check_known(name, where)
                unread.add(name)
                continue
            if spec.placement not in (placement, pb.PLACEMENT_EITHER):
                right = "context" if spec.placement == pb.PLACEMENT_CONTEXT else "candidates"
                raise RequestError(where, f"belongs into {right}")
            array = to_arrow(column, spec.dtype, size, where, self._limits)
            if array.null_count and name in self._stream.fill:
                array = pc.coalesce(array, pa.scalar(self._stream.fill[name], array.type))
            arrays[name] = array
            if name in (self._stream.key, self.time):
                self._check_anchor(name, array, where)
        return arrays

    def _check_anchor(self, name: str, array: pa.Array, where: str) -> None:
        """Check the key, or the time, which no request may have as null. Raises RequestError."""
        if array.null_count:
            raise RequestError(where, "is null; send a value")
        if name != self.time:
            return
        for value in array.to_pylist():
            if not EARLIEST_MS <= value <= LATEST_MS:
                raise RequestError(where, no_time(name, value))
            if self._stream.time_unit is None and (unit := likely_unit(value)) is not None:
                raise RequestError(where, wrong_unit(name, unit))

    def _check_known(self, name: str, where: str) -> None:
        """Check a column that no feature of this server needs. Raises RequestError if the stream has none."""
        if name == self._item_column:
            raise RequestError(where, "names the items; leave it out, or send `ids` or `names`")
        if name not in self._stream.columns:
            known = ", ".join(self.columns)
            raise RequestError(where, f"is no column of {self._stream.topic}; features need {known}")

    def _check_complete(self, shared: Mapping[str, Any], each: Mapping[str, Any], default: str) -> None:
        for spec in self.columns.values():
            if spec.required and spec.name not in shared and spec.name not in each:
                part = "context" if spec.placement == pb.PLACEMENT_CONTEXT else default
                hint = "" if self._item_column is None else "; send a value that holds for all items"
                raise RequestError(f"{part}.{spec.name}", f"is missing (type {spec.dtype}){hint}")

    def _now(self, context: Mapping[str, pa.Array], now_ms: int) -> int:
        if self.time is not None and self.time in context:
            return int(context[self.time][0].as_py())
        return now_ms


def _column_specs(pipeline: Pipeline, roots: Set[str], only_context: bool) -> dict[str, ColumnSpec]:
    """Columns of the impression stream that the named roots are computed from."""
    stream, lookups = pipeline.log.impressions, pipeline.log.lookups
    needed = [root.ref.column for root in pipeline.request_roots if root.name in roots]
    needed += [
        lookup.on
        for lookup in lookups
        if any(root.name in roots for root in pipeline.lookup_roots[lookup.table.topic])
    ]
    if any(root.name in roots for root in pipeline.history_roots):
        needed += [stream.key, *([stream.time] if stream.time else [])]
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


def _length(column: Any) -> int:
    """Number of rows of the first candidate column."""
    kind = column.WhichOneof("values")
    if kind is None:
        return 0
    return len(column.offsets) - 1 if len(column.offsets) else len(getattr(column, kind).values)
