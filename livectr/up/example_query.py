"""Query that a server answers: its columns, with values of the log."""

from __future__ import annotations

import json
import logging
import re
import shlex
import time
from collections.abc import Mapping, Sequence
from contextlib import closing
from itertools import chain
from typing import Any

import pyarrow as pa

from livectr.client.clients import RankClient
from livectr.ingest.chunks import BEGINNING
from livectr.ingest.dead_letters.letters import DeadLetters
from livectr.ingest.pipeline import Pipeline
from livectr.ingest.sources.source import open_source
from livectr.protos import livectr_pb2 as pb
from livectr.system.errors import LiveCTRError

LOG = logging.getLogger(__name__)
ITEMS = 3
"""Candidates of the query."""
READ_S = 5.0
_ROWS = 1000
_PLAIN = re.compile(r"[\w./:@%+ -]*")
"""Texts that `livectr query` takes for themselves."""


def example_query(server: str, pipeline: Pipeline, source: str) -> str:
    """Command that asks a rank server.

    Args:
        server: HOST:PORT.
        pipeline: that it serves.
        source: log of the impressions; where it cannot be read, values are made up by their types.
    """
    asked = f"livectr query rank --server {server}"
    try:
        with RankClient(server) as client:
            columns = list(client.describe().columns)
    except LiveCTRError as error:
        LOG.warning("%s", error)
        return f"livectr query describe --server {server}"
    shown = {column.name: column for column in columns if column.required}
    many = _of_candidates(columns, pipeline)
    shown |= {column.name: column for column in columns if column.name in many}
    rows = _rows(pipeline, source, list(shown))
    values = {name: _different(rows, name, column.dtype) for name, column in shown.items()}
    context = {name: found[0] for name, found in values.items() if name not in many}
    candidates = {name: found for name, found in values.items() if name in many}
    least = min((len(found) for found in candidates.values()), default=0)
    candidates = {name: found[:least] for name, found in candidates.items()}
    texts = [str(one) for one in (*context.values(), *chain(*candidates.values()))]
    if not all(map(_PLAIN.fullmatch, texts)):
        request = json.dumps({"context": context, "candidates": candidates}, ensure_ascii=False)
        return f"{asked} --request {shlex.quote(request)}"
    said = [f"{name}={value}" for name, value in context.items()]
    words = ["--context", *said] if said else []
    words += ["--candidates", *(f"{name}={','.join(map(str, v))}" for name, v in candidates.items())]
    return f"{asked} {shlex.join(words)}"


def _of_candidates(columns: Sequence[Any], pipeline: Pipeline) -> list[str]:
    """Columns of which each candidate has a value of its own: the item's, or one that may be so."""
    items = [column.name for column in columns if column.placement == pb.PLACEMENT_CANDIDATE]
    if items:
        return items
    either = [column for column in columns if column.placement == pb.PLACEMENT_EITHER]
    named = [c for c in either if re.search(r"(^|_)(ad|item|product|doc|article|video)", c.name)]
    required = [column for column in either if column.required]
    return [column.name for column in (named or required or either)[:1]]


def _rows(pipeline: Pipeline, source: str, names: Sequence[str]) -> pa.Table | None:
    """Some impressions; None: they cannot be read."""
    stream = pipeline.log.impressions
    known = tuple(name for name in names if name in stream.columns)
    try:
        letters = DeadLetters(None)
        reading = open_source(
            source, [stream], until_end=True, dead_letters=letters, columns={stream.topic: known}
        )
        with closing(reading) as log:
            places = [(topic, p) for topic, numbers in log.topics().items() for p in numbers]
            log.assign(dict.fromkeys(places, BEGINNING))
            log.start()
            end = time.monotonic() + READ_S
            while time.monotonic() < end and not all(log.at_end(*place) for place in places):
                if chunks := [chunk for chunk in log.poll(0.1) if len(chunk)]:
                    return pa.Table.from_batches([chunks[0].batch]).slice(0, _ROWS)
    except LiveCTRError as error:
        LOG.debug("no values of %s: %s", source, error)
    return None


def _different(rows: pa.Table | None, name: str, dtype: str) -> list[Any]:
    """Different values of a column, as JSON has them; at least one."""
    found: dict[str, Any] = {}
    if rows is not None and name in rows.column_names:
        for value in rows.column(name).to_pylist():
            if value is not None and not isinstance(value, bytes) and len(found) < ITEMS:
                found.setdefault(json.dumps(value), value)
    return list(found.values()) or _made_up(dtype)


def _made_up(dtype: str) -> list[Any]:
    kinds: Mapping[str, list[Any]] = {"string": ["a", "b", "c"], "bool": [True, False]}
    if dtype.startswith("list"):
        return [[]]
    return kinds.get(dtype, [1, 2, 3])
