"""Reader of a partition that is fed piece by piece."""

from __future__ import annotations

from typing import Any

import numpy as np
import pyarrow as pa

from livectr.ingest.chunks import Chunk, Position
from livectr.ingest.dead_letters.letters import DeadLetters
from livectr.ingest.join.label_join import Ready, used_columns
from livectr.ingest.join.partition import Partition
from livectr.ingest.join.state import SourceState
from livectr.ingest.language import dtypes
from livectr.ingest.pipeline import Pipeline
from tests.ingest.joined_logs import Log


class Reader:
    """Feeds the topics of one partition piece by piece."""

    def __init__(self, pipe: Pipeline, logs: list[Log]) -> None:
        self.pipe, self.logs = pipe, logs
        self.letters = DeadLetters(None)
        self.partition = Partition(pipe, 0, None, self.letters)
        self.read = [0] * len(logs)
        self.out: list[Ready] = []

    def step(self, topic: int, count: int) -> None:
        stream = self.pipe.streams[topic]
        names = used_columns(self.pipe)[stream.topic]
        schema = pa.schema([(name, dtypes.arrow_type(stream.columns[name])) for name in names])
        begin = self.read[topic]
        end = self.read[topic] = min(begin + count, len(self.logs[topic]))
        batch = pa.RecordBatch.from_pylist(self.logs[topic][begin:end], schema=schema)
        offset, index = np.arange(begin, end), np.zeros(end - begin, np.int32)
        self.partition.add(topic, Chunk(stream.topic, 0, batch, offset, index, Position(end, 0)))
        self.advance()

    def advance(self) -> None:
        idle = [read == len(log) for read, log in zip(self.read, self.logs, strict=True)]
        self.partition.advance(idle, ended=all(idle))
        order = self.partition.ready.orders(1 << 30)
        assert np.all(order < self.partition.frontier) or all(idle)

    def pop(self, count: int) -> None:
        self.out += self.partition.ready.pop(min(count, len(self.partition.ready)))

    def restart(self) -> None:
        parts = SourceState({0: self.partition.state()}).parts()
        state = SourceState.from_parts(parts)
        assert SourceState.from_parts(state.parts()).parts() == parts
        self.partition = Partition(self.pipe, 0, state.partitions[0], self.letters)
        positions = self.partition.positions()
        self.read = [positions[stream.topic].offset for stream in self.pipe.streams]

    def rest(self) -> list[tuple[int, float, bool, int, int, int]]:
        """Everything up to the end, as (order, label, late, user, instance, time) rows."""
        for topic in range(len(self.logs)):
            self.step(topic, 1 << 30)
        assert self.partition.ended
        self.pop(1 << 30)
        rows: list[tuple[Any, ...]] = []
        for part in self.out:
            meta = part.rows.select(["#user", "#instance", "#time"]).to_pydict().values()
            rows += zip(part.order.tolist(), part.label.tolist(), part.late.tolist(), *meta, strict=True)
        return rows
