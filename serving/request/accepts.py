"""Comparison of the requests of two pipelines: does the other take every request that the first takes?

Each function gives sentences about the other. Limits of requests are the server's, and equal for both.
"""

from __future__ import annotations

from collections.abc import Iterator, Mapping

from livectr.ingest.language import dtypes
from livectr.ingest.language.streams import Stream
from livectr.ingest.language.tables import Table
from livectr.protos import livectr_pb2 as pb
from livectr.serving.request.sentences import ColumnSpec


def refused_columns(first: Mapping[str, ColumnSpec], other: Mapping[str, ColumnSpec]) -> Iterator[str]:
    """Columns of a method's requests, by what features need."""
    for name, spec in other.items():
        before = first.get(name)
        if before is None:
            if spec.required:
                yield f"it needs {name} ({spec.dtype})"
        elif before.dtype != spec.dtype:
            yield f"{name} is {spec.dtype}, not {before.dtype}"
        elif spec.placement not in (before.placement, pb.PLACEMENT_EITHER):
            part = "context" if spec.placement == pb.PLACEMENT_CONTEXT else "candidates"
            yield f"{name} belongs into {part}"
        elif spec.required and not before.required:
            yield f"it needs {name}, which may be left out"


def refused_names(first: Stream, other: Stream) -> Iterator[str]:
    """Columns of the impression stream: a request may hold any, but no others."""
    for name in first.columns:
        if name not in other.columns:
            yield f"{name} is no column of {other.topic}"


def refused_content(first: Mapping[str, int], other: Mapping[str, int]) -> Iterator[str]:
    """Inline content, by name → width of its raw features."""
    for name, width in first.items():
        if name not in other:
            yield f"it has no content {name}"
        elif other[name] != width:
            yield f"content {name} has width {other[name]}, not {width}"


def refused_items(first: Table, other: Table) -> Iterator[str]:
    """Items of a look-up table, as ids or names."""
    before, after = (table.columns[table.key] for table in (first, other))
    if (before == "string") != (after == "string"):
        yield f"items are known by {after}, not {before}"


def refused_bids(first: Table, other: Table) -> Iterator[str]:
    """Bid columns: numbers of the items' look-up table."""
    for name, dtype in first.columns.items():
        if dtype in dtypes.NUMBERS and other.columns.get(name) not in dtypes.NUMBERS:
            yield f"{name} is no numeric column of {other.topic}"
