"""Reference of the request parser: protobuf reads the message, NumPy and Arrow make and check its columns.

It follows the rules of livectr.proto and docs/serving.md one value at a time, and shares no code with the
compiled parser.
"""

from __future__ import annotations

import itertools
import math
from collections.abc import Mapping
from dataclasses import dataclass
from typing import Any

import numpy as np
import pyarrow as pa
from google.protobuf.message import DecodeError, Message

from livectr.client.pack import FIELDS
from livectr.ingest.dead_letters.complaints import no_time, wrong_unit
from livectr.ingest.language import dtypes
from livectr.ingest.language.event_times import EARLIEST_MS, LATEST_MS, likely_unit
from livectr.protos import livectr_pb2 as pb
from livectr.serving.errors import RequestError
from livectr.serving.request.sentences import ColumnSpec, RequestLayout

BEYOND_FLOAT32 = 2.0**128 - 2.0**103
"""Smallest float64 that rounds to an infinite float32."""


@dataclass(frozen=True)
class Expected:
    """Columns of a request: name → array; bids; items and excluded items by kind, None for none."""

    size: int
    context: Mapping[str, pa.Array]
    candidates: Mapping[str, pa.Array]
    bids: list[float]
    time: int | None
    message: Any
    items: tuple[str, list[Any]] | None
    excluded: tuple[str, list[Any]] | None


def expected(kind: type[Message], layout: RequestLayout, raw: bytes) -> Expected:
    """Columns of a request. Raises RequestError."""
    request: Any = kind()
    try:
        request.ParseFromString(raw)
    except DecodeError:
        raise RequestError("request", f"is not a {kind.DESCRIPTOR.full_name} message") from None
    reference = _Reference(layout)
    reference.check_string(request.request_id.encode(), "request_id")
    size = reference.size(request.candidates) if layout.listed else 1
    context = reference.part("context", request.context, 1)
    candidates = reference.part("candidates", request.candidates, size) if layout.listed else {}
    for name in candidates:
        if name in context:
            raise RequestError(f"candidates.{name}", "is in context too")
    reference.check_complete(context, candidates)
    items = None if layout.listed else _items(request, "candidates")
    named = size if layout.listed else 0 if items is None else len(items[1])
    bids = reference.bids(request.bids, named) if layout.listed or request.bids else []
    stream = layout.stream
    time = context[stream.time][0].as_py() if stream.time in context else None
    excluded = _items(request, "excluded") if kind is pb.RecommendRequest else None
    return Expected(size, context, candidates, bids, time, request, items, excluded)


def _items(request: Any, oneof: str) -> tuple[str, list[Any]] | None:
    field = request.WhichOneof(oneof)
    if field is None:
        return None
    return field.removeprefix("excluded_"), list(getattr(request, field).values)


class _Reference:
    def __init__(self, layout: RequestLayout) -> None:
        self._layout, self._limits, self._stream = layout, layout.limits, layout.stream

    def size(self, candidates: Any) -> int:
        if not candidates:
            raise RequestError("candidates", "there are none: send at least one column of candidates")
        first = candidates[0]
        kind, where = first.WhichOneof("values"), f"candidates.{first.name}"
        size = 0
        if kind is not None:
            size = len(first.offsets) - 1 if first.offsets else len(getattr(first, kind).values)
        if size == 0:
            raise RequestError(where, "is empty: send at least one candidate")
        if size > (most := self._limits.candidates):
            raise RequestError(
                where, f"holds {size} candidates; this server takes at most {most} (max_candidates)"
            )
        return size

    def part(self, part: str, columns: Any, rows: int) -> dict[str, pa.Array]:
        placements = {"context": pb.PLACEMENT_CONTEXT, "candidates": pb.PLACEMENT_CANDIDATE}
        arrays: dict[str, pa.Array] = {}
        seen: set[str] = set()
        for column in columns:
            name, where = column.name, f"{part}.{column.name}"
            if name in seen:
                raise RequestError(where, "is there twice")
            seen.add(name)
            spec = self._layout.columns.get(name)
            if spec is None:
                self._check_known(name, where)
                continue
            if spec.placement not in (placements[part], pb.PLACEMENT_EITHER):
                right = "context" if spec.placement == pb.PLACEMENT_CONTEXT else "candidates"
                raise RequestError(where, f"belongs into {right}")
            values = self._values(column, spec, rows, where)
            if name in self._stream.fill:
                values = [self._stream.fill[name] if value is None else value for value in values]
            if name in (self._stream.key, self._stream.time):
                self._check_anchor(name, values, where)
            arrays[name] = pa.array(values, dtypes.arrow_type(spec.dtype))
        return arrays

    def _check_known(self, name: str, where: str) -> None:
        if name == self._layout.item_column:
            raise RequestError(where, "names the items; leave it out, or send `ids` or `names`")
        if name not in self._stream.columns:
            known = ", ".join(self._layout.columns)
            raise RequestError(where, f"is no column of {self._stream.topic}; features need {known}")

    def _check_anchor(self, name: str, values: list[Any], where: str) -> None:
        if None in values:
            raise RequestError(where, "is null; send a value")
        if name != self._stream.time:
            return
        for value in values:
            if not EARLIEST_MS <= value <= LATEST_MS:
                raise RequestError(where, no_time(name, value))
            if self._stream.time_unit is None and (unit := likely_unit(value)) is not None:
                raise RequestError(where, wrong_unit(name, unit))

    def check_complete(self, context: Mapping[str, Any], candidates: Mapping[str, Any]) -> None:
        for spec in self._layout.columns.values():
            if spec.required and spec.name not in context and spec.name not in candidates:
                part = "candidates" if self._layout.listed else "context"
                part = "context" if spec.placement == pb.PLACEMENT_CONTEXT else part
                hint = "" if self._layout.item_column is None else "; send a value that holds for all items"
                raise RequestError(f"{part}.{spec.name}", f"is missing (type {spec.dtype}){hint}")

    def bids(self, values: Any, size: int) -> list[float]:
        bids = list(values)
        if not bids:
            return [1.0] * size
        if len(bids) != size:
            raise RequestError(
                "bids", f"holds {len(bids)} values for {size} candidates; send one each or none"
            )
        self._check_finite(bids, "bids")
        for i, bid in enumerate(bids):
            if bid < 0:
                raise RequestError("bids", f"value {i} is negative")
        return bids

    def check_string(self, value: bytes, where: str) -> None:
        if len(value) > (most := self._limits.string_bytes):
            raise RequestError(
                where,
                f"holds a string of {len(value)} bytes; this server takes at most {most} (max_string_bytes)",
            )

    def _check_finite(self, values: list[float], where: str) -> None:
        for i, value in enumerate(values):
            if not math.isfinite(value):
                raise RequestError(where, f"value {i} is not a finite number")

    def _values(self, column: Any, spec: ColumnSpec, rows: int, where: str) -> list[Any]:
        kind, dtype = column.WhichOneof("values"), spec.dtype
        right = f"{FIELDS[dtypes.element(dtype)]} ({dtype})"
        if kind is None:
            raise RequestError(where, f"holds no values; send {right}")
        if kind != right.partition(" ")[0]:
            raise RequestError(where, f"holds {kind}; send {right}")
        nulls, offsets = list(column.nulls), list(column.offsets)
        if nulls and (nulls[-1] >= rows or any(a >= b for a, b in itertools.pairwise(nulls))):
            raise RequestError(where, f"nulls must be rising numbers of its {rows} rows")
        values = list(getattr(column, kind).values)
        if dtypes.is_list(dtype):
            self._check_offsets(offsets, len(values), rows, where)
            flat = self._flat(values, dtypes.element(dtype), where)
            found: list[Any] = [flat[a:b] for a, b in itertools.pairwise(offsets)]
        else:
            if offsets:
                raise RequestError(where, f"has offsets, but {dtype} is no list")
            if len(values) != rows:
                raise RequestError(where, f"holds {len(values)} values, expected {rows}")
            nan = [isinstance(value, float) and math.isnan(value) for value in values]
            flat = self._flat([0.0 if none else v for v, none in zip(values, nan, strict=True)], dtype, where)
            found = [None if none else value for value, none in zip(flat, nan, strict=True)]
        for row in nulls:
            found[row] = None
        return found

    def _check_offsets(self, offsets: list[int], values: int, rows: int, where: str) -> None:
        rising = all(a <= b for a, b in itertools.pairwise(offsets))
        if len(offsets) != rows + 1 or offsets[0] != 0 or offsets[-1] != values or not rising:
            raise RequestError(
                where, f"needs {rows + 1} rising offsets from 0 to {values}, the number of its values"
            )
        longest = max(b - a for a, b in itertools.pairwise(offsets))
        if longest > (most := self._limits.list):
            raise RequestError(
                where, f"has a list of {longest} values; this server takes at most {most} (max_list)"
            )

    def _flat(self, values: list[Any], dtype: str, where: str) -> list[Any]:
        if dtype == "int32" and any(not -(2**31) <= value < 2**31 for value in values):
            raise RequestError(where, "holds a number that does not fit int32")
        if dtype in ("float32", "float64"):
            self._check_finite(values, where)
        if dtype == "float32":
            if any(abs(value) >= BEYOND_FLOAT32 for value in values):
                raise RequestError(where, "holds a number that does not fit float32")
            return [float(np.float32(value)) for value in values]
        if dtype in dtypes.TEXTS:
            raw = [value.encode() if isinstance(value, str) else value for value in values]
            self.check_string(max(raw, key=len, default=b""), where)
        return values
