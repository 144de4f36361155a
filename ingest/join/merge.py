"""Event-time merge of one partition: its topics become one sequence, the same however chunks arrive.

A record's mark m is its place in event time. It is the greatest event time of its topic so far that the users
of the log agree on (see `kernels.stream.clock`), less the stream's `max_disorder`, or the record's own time
if that is later. In a log without time it is a running record number.

The sequence is sorted by (m, topic index, offset). A record is released when m is below the watermark of
every topic that may still give records, because then no later record can precede it.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass
from functools import cached_property
from typing import Any

import numpy as np
import numpy.typing as npt
import pyarrow as pa

from livectr.ingest.chunks import Chunk, Position
from livectr.ingest.decode.arrow_rows import concat_rows
from livectr.ingest.join.reorder import Piece, Topic, concatenated
from livectr.ingest.language.streams import Stream
from livectr.kernels.stream.clock import FIRST, LAST

I64 = npt.NDArray[np.int64]
U8 = npt.NDArray[np.uint8]

Refused = Callable[[Stream, Piece, int, str], None]
"""Callback for an unused record: its stream, the piece and the row in it, and the reason."""


@dataclass(frozen=True)
class Events:
    """Released events of one partition in sequence: n events of T topics.

    Args:
        topic: uint8[n], index of each event's topic.
        mark: int64[n], non-decreasing, also from one release to the next.
        pieces: batches of each topic's events, in sequence.
        times: event times of each topic's events, int64.
        users: user keys of each topic's events, int64.
    """

    topic: U8
    mark: I64
    pieces: tuple[Sequence[pa.RecordBatch], ...]
    times: tuple[I64, ...]
    users: tuple[I64, ...]

    def __len__(self) -> int:
        return len(self.topic)

    @cached_property
    def batches(self) -> tuple[pa.RecordBatch | None, ...]:
        """Rows of each topic's events as one batch; None for a topic without events."""
        return tuple(concat_rows(pieces) if pieces else None for pieces in self.pieces)

    def first(self, topics: int) -> Events:
        """The events of the first topics alone."""
        if len(self.pieces) <= topics:
            return self
        own = self.topic < topics
        return Events(
            self.topic[own], self.mark[own], self.pieces[:topics], self.times[:topics], self.users[:topics]
        )

    def parts(self) -> Iterator[Events]:
        """The events in sequence. Those of a single topic come batch by batch, so that no row is copied."""
        if len(self.pieces) != 1 or len(self.pieces[0]) <= 1:
            yield self
            return
        start = 0
        for piece in self.pieces[0]:
            part = slice(start, start + len(piece))
            times, users = self.times[0][part], self.users[0][part]
            yield Events(self.topic[part], self.mark[part], ((piece,),), (times,), (users,))
            start = part.stop

    def interleave(self, parts: Sequence[I64]) -> I64:
        """Merge values given by topic into the order of the sequence: int64[n]."""
        out = np.empty(len(self), np.int64)
        for topic, values in enumerate(parts):
            out[self.topic == topic] = values
        return out


class Merge:
    """Merges the topics of one partition; topics are addressed by their index in `streams`.

    State holds positions and clocks only: waiting records are read again after a restart.

    Args:
        streams: declarations of the topics.
        state: state to resume from.
        keeps_all: a record with a wrong time is used at its topic's current event time, as long as its time
            is valid.
        refused: called for each record that is not used.
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
        """Greatest mark or watermark of the released records."""
        self.passed = FIRST
        """Least mark whose records are not all released: a topic below it is late."""
        self.overtaken = [0] * len(streams)
        """Records of each topic, read by this process, whose place had passed while the topic was idle."""
        if state is not None:
            self.mark = state["mark"]
            self.passed = state.get("passed", self.mark)
            for topic in self._topics:
                topic.restore(state["topics"][topic.stream.topic], self.mark)

    def positions(self) -> dict[str, Position]:
        """Topic → position of its first record that is not released."""
        return {topic.stream.topic: topic.position() for topic in self._topics}

    def read(self) -> tuple[Position, ...]:
        """Position of each topic up to which its records were added."""
        return tuple(topic.read for topic in self._topics)

    def read_before(self) -> tuple[Position, ...]:
        """Position of each topic up to which its records were added before a restart."""
        return tuple(topic.read_before for topic in self._topics)

    def rereads(self, idle: Sequence[bool]) -> bool:
        """True while a topic that is not idle has yet to give again what was read before a restart."""
        return any(topic.rereads and not is_idle for topic, is_idle in zip(self._topics, idle, strict=True))

    def is_late(self, topic: int) -> bool:
        """True if the next records of a topic may have a place that has passed."""
        return self._topics[topic].bound < self.passed

    def add(self, topic: int, chunk: Chunk) -> None:
        """Add the next records of a topic."""
        self._topics[topic].add(chunk)
        self._topics[topic].judge(self.mark)

    def resolve(self, idle: Sequence[bool], now_ms: int = LAST, *, goes_on: bool = False) -> bool:
        """Accept or refuse unconfirmed records of topics that have no more to read, from the records at hand.

        Args:
            idle: bool for each topic, true when it has ended or is idle.
            now_ms: current time. Times later than it by more than the stream's max_ahead stay unconfirmed.
            goes_on: a later run reads more of the logs: a time that one record alone claims stays
                unconfirmed.

        Returns:
            True when a record was accepted or refused.
        """
        resolved = False
        for topic, is_idle in zip(self._topics, idle, strict=True):
            before = topic.unconfirmed
            if not before or not (is_idle or self.mark > topic.bound):
                continue
            limit = min(now_ms, LAST - topic.stream.max_ahead_ms) + topic.stream.max_ahead_ms
            if goes_on and topic.bound != FIRST:
                limit = min(limit, topic.claimed)
            topic.judge(self.mark, ended=is_idle, limit=limit)
            resolved |= topic.unconfirmed != before
        return resolved

    def waiting(self) -> list[int]:
        """Records of each topic that are not released."""
        return [topic.waiting for topic in self._topics]

    def unconfirmed(self) -> list[int]:
        """Records of each topic whose time is not confirmed by the log, with the records behind them."""
        return [topic.unconfirmed for topic in self._topics]

    def late(self) -> list[int]:
        """Records of each topic, read by this process, whose time lies far in the past of their topic."""
        return [topic.late for topic in self._topics]

    def bounds(self) -> list[int]:
        """Watermark of each topic: least mark of its records to come."""
        return [topic.bound for topic in self._topics]

    def bound(self, idle: Sequence[bool], quiet_ms: int | None = None) -> int:
        """Watermark of the partition: the least mark of the records to come.

        It never falls, unless it was LAST.

        Args:
            idle: bool for each topic; topics that have ended or are idle are left out.
            quiet_ms: an idle topic whose watermark is beyond this time holds the others back all the same;
                None: idle topics hold nothing back.
        """
        bounds = self.bounds()
        if quiet_ms is not None:
            bounds = [max(bound, quiet_ms) if idle[topic] else bound for topic, bound in enumerate(bounds)]
            return max(min(bounds), self.mark)
        active = [bound for bound, is_idle in zip(bounds, idle, strict=True) if not is_idle]
        return max(min(active, default=LAST), self.mark)

    def release(self, bound: int) -> Events:
        """Remove and return the records with a mark below `bound`, in sequence."""
        released = [topic.release(bound) for topic in self._topics]
        mark = concatenated([part.marks for part in released])
        topic = np.repeat(np.arange(len(released), dtype=np.uint8), [len(part.marks) for part in released])
        order = np.argsort(mark, kind="stable")  # equal marks: by topic index, then offset
        # Marks lie below released marks only when a topic that counted as idle gives records again.
        for index, part in enumerate(released):
            self.overtaken[index] += int(np.searchsorted(part.marks, self.mark))
        mark = np.maximum(mark[order], self.mark)
        self.mark = max(self.mark, int(mark[-1]) if len(mark) else FIRST, bound if bound != LAST else FIRST)
        self.passed = max(self.passed, self.mark + (bound == LAST and self.mark != FIRST))
        return Events(
            topic[order],
            mark,
            tuple(part.batches for part in released),
            tuple(part.times for part in released),
            tuple(part.users for part in released),
        )

    def state(self) -> dict[str, Any]:
        """State for a restart, as JSON types."""
        topics = {topic.stream.topic: topic.state() for topic in self._topics}
        return {"mark": self.mark, "passed": self.passed, "topics": topics}
