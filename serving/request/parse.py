"""Stage 1, parse: protobuf columns become Arrow arrays, inline content becomes float16 rows.

Every mistake of a client ends here, as a RequestError that names the field.
"""

from __future__ import annotations

import functools
import math
from collections.abc import Iterable, Mapping, Sequence, Set
from dataclasses import dataclass
from typing import Any

import numpy as np
import numpy.typing as npt
import pyarrow as pa

from livectr.client.pack import FIELDS
from livectr.ingest.language import dtypes
from livectr.ingest.language.expr import ColumnRef, Expr
from livectr.ingest.pipeline import Pipeline
from livectr.protos import livectr_pb2 as pb
from livectr.serving.errors import RequestError
from livectr.serving.limits import DEFAULT, RequestLimits

_BEYOND_FLOAT32 = 2.0**128 - 2.0**103
"""Smallest float64 that rounds to an infinite float32."""

_NO_INT32 = "holds a number that does not fit int32"
_NO_FLOAT32 = "holds a number that does not fit float32"

_SMALL = 1 << 16
"""Integers below it have their arrays kept."""

_SHORT = 64
"""Characters of a text whose array is kept; far fewer than any limit."""

F16 = npt.NDArray[np.float16]

InlineContent = Mapping[str, Mapping[int, F16]]
"""Content name → id → raw features f16[width]."""


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
            context, candidates: Column messages.
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
            arrays[name] = to_arrow(column, spec.dtype, size, where, self._limits)
        return arrays

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


def to_arrow(column: Any, dtype: str, rows: int, where: str, limits: RequestLimits = DEFAULT) -> pa.Array:
    """Convert a Column message into an array of `rows` values of `dtype`.

    Args:
        where: name of the field in error messages.

    Raises:
        RequestError: names `where`.
    """
    kind, listed = column.WhichOneof("values"), dtypes.is_list(dtype)
    expected = FIELDS[dtypes.element(dtype) if listed else dtype]
    if kind is None:
        raise RequestError(where, f"holds no values; send {expected} ({dtype})")
    if kind != expected:
        raise RequestError(where, f"holds {kind}; send {expected} ({dtype})")
    values = getattr(column, kind).values
    if rows == 1 and len(values) == 1 and not (listed or len(column.offsets)):
        return _single(values[0], dtype, where, limits)
    if not listed:
        if len(column.offsets):
            raise RequestError(where, f"has offsets, but {dtype} is no list")
        if len(values) != rows:
            raise RequestError(where, f"holds {len(values)} values, expected {rows}")
        return _flat(values, dtype, where, limits)
    offsets = np.array(column.offsets, np.int64)
    if (
        len(offsets) != rows + 1
        or offsets[0] != 0
        or offsets[-1] != len(values)
        or (np.diff(offsets) < 0).any()
    ):
        raise RequestError(
            where, f"needs {rows + 1} rising offsets from 0 to {len(values)}, the number of its values"
        )
    if (longest := int(np.diff(offsets).max(initial=0))) > limits.list:
        raise RequestError(
            where, f"has a list of {longest} values; this server takes at most {limits.list} (max_list)"
        )
    flat = _flat(values, dtypes.element(dtype), where, limits)
    return pa.ListArray.from_arrays(pa.array(offsets, pa.int32()), flat)


def finite(values: Any, where: str) -> npt.NDArray[np.float64]:
    """Convert a repeated double field into f64[n].

    Raises:
        RequestError: a value is not a finite number.
    """
    numbers = np.array(values, np.float64)
    if not np.isfinite(numbers).all():
        raise RequestError(where, f"value {int(np.argmin(np.isfinite(numbers)))} is not a finite number")
    return numbers


def _length(column: Any) -> int:
    """Number of rows of the first candidate column."""
    kind = column.WhichOneof("values")
    if kind is None:
        return 0
    return len(column.offsets) - 1 if len(column.offsets) else len(getattr(column, kind).values)


def check_string(size: int, where: str, limits: RequestLimits) -> None:
    """Check the size of a string in bytes.

    Raises:
        RequestError: the string is too long.
    """
    if size > limits.string_bytes:
        raise RequestError(
            where,
            f"holds a string of {size} bytes; this server takes at most {limits.string_bytes} "
            "(max_string_bytes)",
        )


def strings(values: Any, dtype: str, where: str, limits: RequestLimits) -> pa.Array:
    """Convert a repeated string or bytes field into an array.

    Raises:
        RequestError: a string is too long.
    """
    array = pa.array(list(values), dtypes.arrow_type(dtype))
    offsets = np.frombuffer(array.buffers()[1] or b"", np.int32)
    check_string(int(np.diff(offsets[: len(array) + 1]).max(initial=0)), where, limits)
    return array


def _single(value: Any, dtype: str, where: str, limits: RequestLimits) -> pa.Array:
    """Convert a single scalar into an array, as `_flat`; a context is a few of them."""
    if dtype in dtypes.TEXTS:
        if len(value) <= _SHORT:
            return _short_text(value, dtype)
        check_string(len(value.encode() if dtype == "string" else value), where, limits)
        return pa.array([value], dtypes.arrow_type(dtype))
    if dtype == "bool":
        return pa.array([value], pa.bool_())
    if dtype == "int32" and not -(2**31) <= value < 2**31:
        raise RequestError(where, _NO_INT32)
    if dtype in ("float64", "float32"):
        if not math.isfinite(value):
            raise RequestError(where, "value 0 is not a finite number")
        if dtype == "float32" and abs(value) >= _BEYOND_FLOAT32:
            raise RequestError(where, _NO_FLOAT32)
    elif -_SMALL < value < _SMALL:
        return _small_number(value, dtype)
    return pa.array(np.array((value,), dtype))


@functools.lru_cache(maxsize=4096)
def _small_number(value: int, dtype: str) -> pa.Array:
    """Array of a small number; devices, positions and hours come again and again."""
    return pa.array(np.array((value,), dtype))


@functools.lru_cache(maxsize=4096)
def _short_text(value: str | bytes, dtype: str) -> pa.Array:
    """Array of a short text; devices, sites and queries come again and again."""
    return pa.array([value], dtypes.arrow_type(dtype))


def _flat(values: Any, dtype: str, where: str, limits: RequestLimits) -> pa.Array:
    arrow = dtypes.arrow_type(dtype)
    if dtype in ("int64", "int32"):
        numbers = np.array(values, np.int64)
        if dtype == "int32" and len(numbers) and not -(2**31) <= numbers.min() <= numbers.max() < 2**31:
            raise RequestError(where, _NO_INT32)
        buffer = pa.py_buffer(numbers.astype(dtype, copy=False))
        return pa.Array.from_buffers(arrow, len(numbers), [None, buffer], 0)
    if dtype in ("float64", "float32"):
        floats = finite(values, where)
        if dtype == "float32" and (np.abs(floats) >= _BEYOND_FLOAT32).any():
            raise RequestError(where, _NO_FLOAT32)
        return pa.array(floats.astype(dtype, copy=False), arrow)
    if dtype in dtypes.TEXTS:
        return strings(values, dtype, where, limits)
    return pa.array(list(values), arrow)


def parse_content(messages: Iterable[Any], widths: Mapping[str, int]) -> dict[str, dict[int, F16]]:
    """Parse the inline content of a request.

    Args:
        messages: ContentFeatures messages.
        widths: content name → width of its raw features.

    Raises:
        RequestError: names the wrong field.
    """
    content: dict[str, dict[int, F16]] = {}
    for message in messages:
        where = f"content.{message.name}"
        if message.name not in widths:
            known = ", ".join(widths) or "none"
            raise RequestError(where, f"is no content of this pipeline; it has {known}")
        if message.name in content:
            raise RequestError(where, "is there twice; put all ids into one")
        ids, width = np.array(message.ids, np.int64), widths[message.name]
        if len(message.features) != 2 * width * len(ids):
            raise RequestError(
                where,
                f"has {len(message.features)} bytes of features for {len(ids)} ids; send {2 * width} bytes, "
                f"{width} float16 numbers, for each",
            )
        rows = np.frombuffer(message.features, "<f2").reshape(len(ids), width)
        if len(bad := np.flatnonzero(~np.isfinite(rows).all(axis=1))):
            raise RequestError(where, f"features of id {ids[bad[0]]} are not finite numbers")
        content[message.name] = dict(zip(ids.tolist(), rows, strict=True))
        if len(content[message.name]) < len(ids):
            values, times = np.unique(ids, return_counts=True)
            raise RequestError(where, f"id {values[np.argmax(times > 1)]} is there twice; send it once")
    return content
