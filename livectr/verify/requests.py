"""Requests whose replies are recomputed: rows of impressions, asked as a context with candidates.

The rows come from a log, with real contexts and candidates; or they are made up of the ids that the
checkpoint has rows for. Of a string the checkpoint knows the hash alone, so that such columns stay empty.
"""

from __future__ import annotations

import random
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import Any, Literal

import numpy as np
import numpy.typing as npt
import pyarrow as pa

from livectr.ingest.chunks import BEGINNING
from livectr.ingest.dead_letters.letters import DeadLetters
from livectr.ingest.language import dtypes
from livectr.ingest.language.expr import ColumnRef
from livectr.ingest.pipeline import Pipeline
from livectr.ingest.sources.source import open_source
from livectr.protos import livectr_pb2 as pb
from livectr.system.errors import ConfigError
from livectr.trainer.checkpoint.restored import Restored

Kind = Literal["rank", "prerank"]
Pool = Mapping[str, Sequence[Any]]
"""Column of the impression stream → its values, as many of every column."""

LOG_ROWS = 20_000
"""Rows of a log that requests are made of."""
MADE_UP_ROWS = 2_000
_NOTHING: dict[str, Any] = {"bool": False, "string": "", "binary": b"", "float32": 0.0, "float64": 0.0}


@dataclass(frozen=True)
class Request:
    """Request of n candidates.

    Args:
        kind: method that is asked.
        context: column → value.
        candidates: column → n values.
        others: columns that the request does not hold, but the pipeline's features read: column → value.
    """

    kind: Kind
    context: Mapping[str, Any]
    candidates: Mapping[str, Sequence[Any]]
    others: Mapping[str, Any]

    def __len__(self) -> int:
        return len(next(iter(self.candidates.values())))

    def rows(self, pipeline: Pipeline) -> pa.Table:
        """Columns of the impression stream, n rows."""
        types, n = pipeline.log.impressions.columns, len(self)
        shared = {name: [value] * n for name, value in {**self.others, **self.context}.items()}
        values = {**shared, **self.candidates}
        return pa.table({name: pa.array(v, dtypes.arrow_type(types[name])) for name, v in values.items()})


def columns_read(pipeline: Pipeline) -> tuple[str, ...]:
    """Columns of the impression stream that features, look-ups and histories read."""
    stream = pipeline.log.impressions
    names = [root.ref.column for root in pipeline.request_roots] + [
        name for lookup in pipeline.joined for name in lookup.keys
    ]
    names += [name for name in (stream.key, stream.time, pipeline.item_column) if name is not None]
    return tuple(dict.fromkeys(names))


def rows_of_log(pipeline: Pipeline, url: str) -> Pool:
    """The first impressions of a log.

    Raises:
        ConfigError: the log has no usable impression.
        ConnectError: the brokers cannot be reached.
    """
    stream, names = pipeline.log.impressions, columns_read(pipeline)
    source = open_source(
        url,
        [stream],
        until_end=True,
        dead_letters=DeadLetters(None),
        columns={stream.topic: names},
    )
    batches: list[pa.RecordBatch] = []
    try:
        places = [(topic, p) for topic, numbers in source.topics().items() for p in numbers]
        source.assign(dict.fromkeys(places, BEGINNING))
        source.start()
        while sum(map(len, batches)) < LOG_ROWS and not all(source.at_end(*place) for place in places):
            batches += [chunk.batch.select(names) for chunk in source.poll(0.2)]
    finally:
        source.close()
    if not any(map(len, batches)):
        raise ConfigError(f"{url} holds no usable row of {stream.topic}; name the log of impressions")
    table = pa.Table.from_batches(batches).slice(0, LOG_ROWS)
    return {
        name: [_nothing(stream.columns[name]) if value is None else value
               for value in table.column(name).to_pylist()]
        for name in names
    }  # fmt: skip


def rows_of_ids(
    pipeline: Pipeline, restored: Restored, now_ms: int, source: random.Random
) -> tuple[Pool, dict[str, int]]:
    """Made-up impressions of ids that a checkpoint has rows for.

    Returns:
        The rows, and for each column whose values are known the number of its ids.

    Raises:
        ConfigError: it has no rows of ids.
    """
    stream, known = pipeline.log.impressions, {}
    for spec in pipeline.fields:
        node = pipeline.plan.sparse[spec.name]
        if not node.is_root or not isinstance(node.ref, ColumnRef) or node.ref.table:
            continue
        if node.dtype in ("int64", "int32") and len(keys := restored.some_keys(spec.table)):
            known[node.ref.column] = _fitting(keys, node.dtype)
    if not known:
        raise ConfigError(
            f"{restored.checkpoint} knows no id of a column of {stream.topic} (of strings it holds hashes); "
            "name a log of impressions with --source"
        )
    pool: dict[str, Sequence[Any]] = {}
    for name in columns_read(pipeline):
        if name == stream.time:
            pool[name] = [now_ms] * MADE_UP_ROWS
        elif name in known:
            pool[name] = source.choices(known[name].tolist(), k=MADE_UP_ROWS)
        else:
            pool[name] = [_nothing(stream.columns[name])] * MADE_UP_ROWS
    return pool, {name: len(keys) for name, keys in known.items()}


class RequestMaker:
    """Maker of requests from rows of impressions.

    Args:
        server: the server's DescribeResponse, which places the columns.
        size: candidates of a request.
    """

    def __init__(self, pipeline: Pipeline, server: Any, pool: Pool, size: int, source: random.Random) -> None:
        self._pool, self._size, self._random = pool, size, source
        self._placement = {column.name: column.placement for column in server.columns}
        self._item = pipeline.item_column
        if unknown := sorted(self._placement.keys() - pool.keys()):
            raise ConfigError(f"the server asks for {', '.join(unknown)}, which this pipeline does not read")

    def rank(self, number: int) -> Request:
        """Request number `number` of rank.

        Columns that may be in either place are in each in turns, so that both ways through the server are
        taken.
        """
        own = {name for name, place in self._placement.items() if place == pb.PLACEMENT_CANDIDATE}
        if number % 2 or not own:
            own |= {name for name, place in self._placement.items() if place == pb.PLACEMENT_EITHER}
        return self._request("rank", own or set(self._placement))

    def prerank(self) -> Request:
        """Request of pre-rank."""
        assert self._item is not None  # checked with the pipeline
        return self._request("prerank", {self._item})

    def _request(self, kind: Kind, own: set[str]) -> Request:
        size = len(next(iter(self._pool.values())))
        row = self._random.randrange(size)
        rows = self._random.sample(range(size), min(self._size, size))
        context = {name: self._pool[name][row] for name in self._placement if name not in own}
        candidates = {name: [self._pool[name][i] for i in rows] for name in sorted(own)}
        sent = context.keys() | candidates.keys()
        others = {name: values[row] for name, values in self._pool.items() if name not in sent}
        return Request(kind, context, candidates, others)


def _nothing(dtype: str) -> Any:
    """The value that a null stands for."""
    return [] if dtypes.is_list(dtype) else _NOTHING.get(dtype, 0)


def _fitting(keys: npt.NDArray[np.int64], dtype: str) -> npt.NDArray[np.int64]:
    return keys if dtype == "int64" else keys[np.abs(keys) < 1 << 31]
