"""Reader of two logs through the event-time merge, in steps and with restarts."""

from __future__ import annotations

import json

import numpy as np
import pyarrow as pa
from hypothesis import strategies as st

from livectr.ingest.chunks import Chunk, Position
from livectr.ingest.join.merge import Merge
from livectr.ingest.language.streams import Stream

A = Stream("a", key="user", time="ts", columns={"user": "int64", "ts": "int64"})
B = Stream("b", key="user", time="ts", columns={"user": "int64", "ts": "int64"})
TIMES = st.lists(st.one_of(st.integers(0, 60), st.just(50)), max_size=25)
STEPS = st.lists(st.tuples(st.integers(0, 1), st.integers(0, 6), st.booleans()), max_size=20)
"""topic to read on, records to read, whether to restart afterwards"""


class Reader:
    """Reader of two logs. Three records share a message; every fifth record was filtered out."""

    def __init__(self, times: tuple[list[int], list[int]], streams: tuple[Stream, Stream] = (A, B)) -> None:
        self.times, self.streams = times, streams
        self.merge = Merge(streams)
        self.read = [0, 0]
        self.rows: list[tuple[int, int, int]] = []
        self.marks: list[int] = []

    def step(self, topic: int, count: int) -> None:
        begin = self.read[topic]
        end = self.read[topic] = min(begin + count, len(self.times[topic]))
        rows = np.array([row for row in range(begin, end) if row % 5 != 4], np.int64)
        batch = pa.record_batch({"user": rows, "ts": np.array(self.times[topic], np.int64)[rows]})
        name = self.streams[topic].topic
        chunk = Chunk(name, 0, batch, rows // 3, (rows % 3).astype(np.int32), Position(end // 3, end % 3))
        self.merge.add(topic, chunk)
        self.release()

    def release(self) -> None:
        ended = [self.read[topic] == len(self.times[topic]) for topic in (0, 1)]
        self.merge.resolve(ended)
        events = self.merge.release(self.merge.bound(ended))
        users = [batch.column("user").to_pylist() if batch else [] for batch in events.batches]
        rows = [
            iter(zip(user, times.tolist(), strict=True))
            for user, times in zip(users, events.times, strict=True)
        ]
        self.rows += [(topic, *next(rows[topic])) for topic in events.topic.tolist()]
        self.marks += events.mark.tolist()

    def restart(self) -> None:
        """Restart: records that are not released are read again."""
        positions = self.merge.positions()
        self.merge = Merge(self.streams, json.loads(json.dumps(self.merge.state())))
        assert self.merge.positions() == positions
        for topic, stream in enumerate(self.streams):
            self.read[topic] = positions[stream.topic].offset * 3 + positions[stream.topic].index


def run(reader: Reader, steps: list[tuple[int, int, bool]]) -> Reader:
    for topic, count, restart in steps:
        reader.step(topic, count)
        if restart:
            reader.restart()
    for topic in (0, 1):
        reader.step(topic, 1000)
    reader.release()
    return reader
