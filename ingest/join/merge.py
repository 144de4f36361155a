"""The event-time merge of one partition: its topics become one sequence, the same however chunks arrive.

A record's mark m is the greatest event time of its topic so far that the users of the log agree on (see
`kernels.stream.clock`), less the stream's `max_disorder`, or its own time if that is later; a running record
number for a log without time. The sequence is ordered by (m, topic index, offset). A record is released
once m lies
below the bound of every topic that may still give records: then nothing can come before it any more.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import dataclass
from typing import Any

import numpy as np
import numpy.typing as npt
import pyarrow as pa

from livectr.ingest.chunks import Chunk, Position
from livectr.ingest.decode.arrow_rows import as_one
from livectr.ingest.join.reorder import Piece, Topic, joined
from livectr.ingest.language.streams import Stream
from livectr.kernels.stream.clock import FIRST, LAST

I64 = npt.NDArray[np.int64]
U8 = npt.NDArray[np.uint8]

Refused = Callable[[Stream, Piece, int, str], None]
"""Told of a record that is not used: its stream, the piece and the row in it that hold it, what is wrong."""


@dataclass(frozen=True)
class Events:
    """n released events in sequence, kept by topic.

    topic: uint8[n], index of each event's topic; mark: int64[n], never falling, also from one release to the
    next. batches[t], times[t] and users[t] hold the rows, event times and users' keys of topic t's events, in
    sequence.
    """

    topic: U8
    mark: I64
    batches: tuple[pa.RecordBatch | None, ...]
    times: tuple[I64, ...]
    users: tuple[I64, ...]

    def __len__(self) -> int:
        return len(self.topic)

    def interleave(self, parts: Sequence[I64]) -> I64:
        """Values given by topic, in the order of the sequence: int64[n]."""
        out = np.empty(len(self), np.int64)
        for topic, values in enumerate(parts):
            out[self.topic == topic] = values
        return out


class Merge:
    """Merges the topics of one partition.

    Topics are told apart by their index in `streams`. State is positions and clocks only: records that wait
    are read again after a restart.

    keeps_all: a record with a wrong time is used at the place where its log stands, as long as its time is
    one. refused: told of the records that are not used.
    """

    def __init__(
        self,
        streams: Sequence[Stream],
        state: dict[str, Any] | None = None,
        *,
        keeps_all: bool = False,
        refused: Refused = lambda stream, piece, row, detail: None,
    ) -> None:
        def of(stream: Stream) -> Callable[[Piece, int, str], None]:
            return lambda piece, row, detail: refused(stream, piece, row, detail)

        self._topics = [Topic(stream, of(stream), keeps_all=keeps_all) for stream in streams]
        self.mark = FIRST
        """Greatest mark or bound of what was released."""
        if state is not None:
            self.mark = state["mark"]
            for topic in self._topics:
                topic.restore(state["topics"][topic.stream.topic], self.mark)

    def positions(self) -> dict[str, Position]:
        """Topic → position of its first record that is not released."""
        return {topic.stream.topic: topic.position() for topic in self._topics}

    def add(self, topic: int, chunk: Chunk) -> None:
        """Take the next records of a topic."""
        self._topics[topic].add(chunk)
        self._topics[topic].judge(self.mark)

    def settle(self, idle: Sequence[bool], now_ms: int = LAST) -> bool:
        """Believe or refuse the doubtful records of topics without more to read, by what there is; returns
        whether there were any. Times later than `now_ms` and the stream's max_ahead go on waiting."""
        settled = False
        for topic, is_idle in zip(self._topics, idle, strict=True):
            before = topic.doubtful
            if not before or not (is_idle or self.mark > topic.bound):
                continue
            limit = min(now_ms, LAST - topic.stream.max_ahead_ms) + topic.stream.max_ahead_ms
            topic.judge(self.mark, ended=is_idle, limit=limit)
            settled |= topic.doubtful != before
        return settled

    def waiting(self) -> list[int]:
        """Records of each topic that are not released."""
        return [topic.waiting for topic in self._topics]

    def doubtful(self) -> list[int]:
        """Records of each topic that wait for what the log says of them, or behind such."""
        return [topic.doubtful for topic in self._topics]

    def late(self) -> list[int]:
        """Records of each topic that came with a time far in the past, since this process began."""
        return [topic.late for topic in self._topics]

    def bounds(self) -> list[int]:
        """Least mark of each topic's records to come."""
        return [topic.bound for topic in self._topics]

    def bound(self, idle: Sequence[bool]) -> int:
        """Least mark of the records to come; it never falls, unless it was LAST.

        idle: topics that hold nothing back (ended or idle).
        """
        held = [bound for bound, is_idle in zip(self.bounds(), idle, strict=True) if not is_idle]
        return max(min(held, default=LAST), self.mark)

    def release(self, bound: int) -> Events:
        """The records with a mark below `bound`, in sequence."""
        released = [topic.release(bound) for topic in self._topics]
        mark = joined([part.marks for part in released])
        topic = np.repeat(np.arange(len(released), dtype=np.uint8), [len(part.marks) for part in released])
        order = np.argsort(mark, kind="stable")  # equal marks: by topic index, then offset
        # Marks fall below what was released only when a topic that was thought idle speaks again.
        mark = np.maximum(mark[order], self.mark)
        self.mark = max(self.mark, int(mark[-1]) if len(mark) else FIRST, bound if bound != LAST else FIRST)
        return Events(
            topic[order],
            mark,
            tuple(as_one(part.batches) if part.batches else None for part in released),
            tuple(part.times for part in released),
            tuple(part.users for part in released),
        )

    def state(self) -> dict[str, Any]:
        """All that a restart needs, as JSON's types."""
        return {"mark": self.mark, "topics": {topic.stream.topic: topic.state() for topic in self._topics}}
