"""Columns of requests that a test makes from Column messages."""

from __future__ import annotations

from collections.abc import Iterable
from functools import cache
from typing import Any

import pyarrow as pa

from livectr.ingest.language.streams import Stream
from livectr.protos import livectr_pb2 as pb
from livectr.serving.limits import DEFAULT, RequestLimits
from livectr.serving.request.parse import RequestColumns, RequestReader, RequestSchema
from livectr.serving.request.sentences import ColumnSpec, RequestLayout


def parsed(schema: RequestSchema, context: Iterable[Any], candidates: Iterable[Any]) -> RequestColumns:
    """Columns of a RankRequest. Raises RequestError."""
    request = pb.RankRequest(context=context, candidates=candidates)
    return schema.reader.read(request.SerializeToString()).columns


def array_of(column: Any, dtype: str, rows: int, limits: RequestLimits = DEFAULT) -> pa.Array:
    """Array of a Column message as a column of so many candidates. Raises RequestError."""
    rest = pb.Column(name="n", ints=pb.Int64s(values=range(rows)))  # first: it says how many there are
    sent = pb.Column()
    sent.CopyFrom(column)
    sent.name = "x"
    request = pb.RankRequest(candidates=[rest, sent])
    return _reader(dtype, limits).read(request.SerializeToString()).columns.candidates["x"]


@cache
def _reader(dtype: str, limits: RequestLimits) -> RequestReader:
    stream = Stream("shown", key="k", columns={"k": "int64", "n": "int64", "x": dtype})
    specs = [ColumnSpec(name, stream.columns[name], pb.PLACEMENT_CANDIDATE, required=True) for name in "nx"]
    layout = RequestLayout("livectr.v1.RankRequest", {s.name: s for s in specs}, stream, limits, listed=True)
    return RequestReader(pb.RankRequest, layout)
