"""The event-time merge of one partition: its topics become one sequence, the same however chunks arrive.

A record's mark m is the greatest event time of its topic so far (a running record number for a log
without time). The sequence is ordered by (m, topic index, offset). A record is released once m lies below the
bound of every topic that may still give records: then nothing can come before it any more.
"""

from __future__ import annotations

from collections import deque
from collections.abc import Sequence
from dataclasses import astuple, dataclass
from typing import Any

import numpy as np
import numpy.typing as npt
import pyarrow as pa

from ingest.arrow_rows import as_one
from ingest.sources.base import BEGINNING, Chunk, Position
from ingest.streams import Stream

I64 = npt.NDArray[np.int64]
U8 = npt.NDArray[np.uint8]

FIRST = int(np.iinfo(np.int64).min)
"""The mark before anything was read."""
LAST = int(np.iinfo(np.int64).max)
"""A bound that nothing holds back."""
FARTHEST_MS = 1 << 60
"""Event times are cut to ±this, so that adding a window never overflows."""
JUMP_MS = 24 * 3_600_000
BELIEVED = 8


@dataclass(frozen=True)
class Clock:
    """Marks of one topic's records, and what to know about them to go on.

    One broken record with a time in the far future must not make every later one look late. So a time more
    than JUMP_MS ahead of the mark moves it only when BELIEVED such records come in a row (a real gap in the
    log), and then to the least of theirs. Until then such a record has its place by the old mark.

    The first record has no mark before it, so the second one judges it: the clock starts when both are known,
    at the second when the first is far ahead of that.

    mark: of the last record, FIRST until the clock has started; also the bound: later records have no less.
    ahead, least: how many of the last records were far ahead, and the least time of them. A first record
    that waits for its second one counts as far ahead of FIRST.
    """

    mark: int = FIRST
    ahead: int = 0
    least: int = LAST

    def marks(self, ts: I64) -> tuple[I64, Clock]:
        """Marks of the next n records with event times ts int64[n], and the clock after them.

        The mark of a first record alone is its own time for now; `start` of the second one corrects it.
        """
        if not len(ts):
            return ts, self
        if self.mark == FIRST:
            first = self if self.waits else Clock(ahead=1, least=int(ts[0]))
            later = ts if self.waits else ts[1:]
            return Clock(first.start(int(later[0]))).marks(ts) if len(later) else (ts, first)
        marks = np.maximum.accumulate(np.concatenate(([self.mark], ts)))
        if np.all(np.diff(marks) <= JUMP_MS):
            return marks[1:], Clock(int(marks[-1]))
        mark, ahead, least = self.mark, self.ahead, self.least
        for i, time in enumerate(ts.tolist()):
            if time - mark <= JUMP_MS:
                mark, ahead, least = max(mark, time), 0, LAST
            else:
                ahead, least = ahead + 1, min(least, time)
                if ahead == BELIEVED:
                    mark, ahead, least = least, 0, LAST
            marks[i + 1] = mark
        return marks[1:], Clock(mark, ahead, least)

    @property
    def waits(self) -> bool:
        """Whether the clock has seen one record only."""
        return self.mark == FIRST and self.ahead == 1

    def start(self, second: int) -> int:
        """The mark of the first record, now that the second one's time is known."""
        return self.least if self.least - second <= JUMP_MS else second

    @property
    def bound(self) -> int:
        return self.mark


@dataclass(frozen=True)
class Counter:
    """Marks of a log without event time: running record numbers 0, 1, 2…"""

    mark: int = 0

    def marks(self, ts: I64) -> tuple[I64, Counter]:
        return self.mark + np.arange(len(ts)), Counter(self.mark + len(ts))

    @property
    def bound(self) -> int:
        return self.mark


@dataclass(frozen=True)
class Events:
    """n released events in sequence, kept by topic.

    topic: uint8[n], index of each event's topic; mark: int64[n], never falling, also from one release to the
    next. batches[t] and times[t] hold the rows and event times of topic t's events, in sequence.
    """

    topic: U8
    mark: I64
    batches: tuple[pa.RecordBatch | None, ...]
    times: tuple[I64, ...]

    def __len__(self) -> int:
        return len(self.topic)

    def interleave(self, parts: Sequence[I64]) -> I64:
        """Values given by topic, in the order of the sequence: int64[n]."""
        out = np.empty(len(self), np.int64)
        for topic, values in enumerate(parts):
            out[self.topic == topic] = values
        return out


@dataclass
class _Run:
    """A chunk that waits, its rows before `start` released."""

    chunk: Chunk
    times: I64
    marks: I64
    before: Clock | Counter
    start: int = 0

    def __len__(self) -> int:
        return len(self.times)


class _Topic:
    """Records of one topic partition that wait for their release."""

    def __init__(self, stream: Stream) -> None:
        self.stream = stream
        self.runs: deque[_Run] = deque()
        self.clock: Clock | Counter = Counter() if stream.time is None else Clock()
        self.next = BEGINNING
        """Position after the last record whose chunk is used up."""

    def add(self, chunk: Chunk) -> None:
        if self.stream.time is None:
            times = np.zeros(len(chunk), np.int64)
        else:
            times = chunk.batch.column(self.stream.time).to_numpy().clip(-FARTHEST_MS, FARTHEST_MS)
        if isinstance(self.clock, Clock) and self.clock.waits and len(times):
            for run in self.runs:  # at most one of them holds a record, the first
                run.marks = np.full(len(run), self.clock.start(int(times[0])))
        marks, clock = self.clock.marks(times)
        self.runs.append(_Run(chunk, marks if self.stream.time is None else times, marks, self.clock))
        self.clock = clock

    def release(self, bound: int) -> tuple[I64, I64, list[pa.RecordBatch]]:
        """Marks, times and rows of the records with a mark below `bound`, which leave."""
        marks, times, batches = [], [], []
        while self.runs:
            run = self.runs[0]
            stop = int(np.searchsorted(run.marks, bound)) if bound != LAST else len(run)
            if stop > run.start:
                marks.append(run.marks[run.start : stop])
                times.append(run.times[run.start : stop])
                batches.append(run.chunk.batch.slice(run.start, stop - run.start))
                run.start = stop
            if run.start < len(run):
                break
            self.next = run.chunk.next
            self.runs.popleft()
        return _joined(marks), _joined(times), batches

    def state(self) -> tuple[Position, Clock | Counter]:
        """Position of the first record that is not released, and the clock before it."""
        if not self.runs:
            return self.next, self.clock
        run = self.runs[0]
        if run.start == len(run):  # a chunk whose records were all filtered out, behind nothing
            return run.chunk.next, run.before
        position = Position(int(run.chunk.offset[run.start]), int(run.chunk.index[run.start]))
        return position if run.start else self.next, run.before.marks(run.times[: run.start])[1]


class Merge:
    """Merges the topics of one partition.

    Topics are told apart by their index in `streams`. State is positions and clocks only: records that wait
    are read again after a restart.
    """

    def __init__(self, streams: Sequence[Stream], state: dict[str, Any] | None = None) -> None:
        self._topics = [_Topic(stream) for stream in streams]
        self.mark = FIRST
        """Greatest mark or bound of what was released."""
        if state is not None:
            self.mark = state["mark"]
            for topic in self._topics:
                saved = state["topics"][topic.stream.topic]
                topic.next = Position(*saved["position"])
                topic.clock = type(topic.clock)(*saved["clock"])

    def positions(self) -> dict[str, Position]:
        """Topic → position of its first record that is not released."""
        return {topic.stream.topic: topic.state()[0] for topic in self._topics}

    def add(self, topic: int, chunk: Chunk) -> None:
        """Take the next records of a topic."""
        self._topics[topic].add(chunk)

    def waiting(self) -> list[int]:
        """Records of each topic that are not released."""
        return [sum(len(run) - run.start for run in topic.runs) for topic in self._topics]

    def bounds(self) -> list[int]:
        """Least mark of each topic's records to come."""
        return [topic.clock.bound for topic in self._topics]

    def bound(self, free: Sequence[bool]) -> int:
        """Least mark of the records to come; it never falls, unless it was LAST.

        free: topics that hold nothing back (ended or idle).
        """
        held = [bound for bound, is_free in zip(self.bounds(), free, strict=True) if not is_free]
        return max(min(held, default=LAST), self.mark)

    def release(self, bound: int) -> Events:
        """The records with a mark below `bound`, in sequence."""
        released = [topic.release(bound) for topic in self._topics]
        mark = _joined([marks for marks, _, _ in released])
        topic = np.repeat(np.arange(len(released), dtype=np.uint8), [len(marks) for marks, _, _ in released])
        order = np.argsort(mark, kind="stable")  # equal marks: by topic index, then offset
        # Marks fall below what was released only when a topic that was thought idle speaks again.
        mark = np.maximum(mark[order], self.mark)
        self.mark = max(self.mark, int(mark[-1]) if len(mark) else FIRST, bound if bound != LAST else FIRST)
        return Events(
            topic[order],
            mark,
            tuple(as_one(batches) if batches else None for _, _, batches in released),
            tuple(times for _, times, _ in released),
        )

    def state(self) -> dict[str, Any]:
        """All that a restart needs, as JSON's types."""
        topics = {}
        for topic in self._topics:
            position, clock = topic.state()
            topics[topic.stream.topic] = {"position": list(astuple(position)), "clock": list(astuple(clock))}
        return {"mark": self.mark, "topics": topics}


def _joined(parts: Sequence[I64]) -> I64:
    if len(parts) == 1:
        return parts[0]
    return np.concatenate(parts) if parts else np.empty(0, np.int64)
