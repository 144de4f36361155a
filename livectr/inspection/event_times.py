"""Event times of a log, measured for each topic partition: its ends, lag and disorder.

A record's delay is how far its event time lies behind the watermark of its topic partition, without any
max_disorder (`kernels.stream.clock`). The watermark of a topic partition is the time that its log has
reached at its end, less the stream's max_disorder.
"""

from __future__ import annotations

import time
from collections import deque
from collections.abc import Mapping, Sequence
from contextlib import closing
from dataclasses import dataclass, replace

import numpy as np
import numpy.typing as npt

from livectr.ingest.chunks import BEGINNING, Chunk, Position, TopicPartition
from livectr.ingest.dead_letters.letters import DeadLetters
from livectr.ingest.join.state import SourceState
from livectr.ingest.language.keys import key_of
from livectr.ingest.language.streams import Stream
from livectr.ingest.sources.source import Source, open_source
from livectr.kernels.stream.clock import AHEAD, FIRST, Horizon, judge, new_clock
from livectr.system.errors import ConfigError

I64 = npt.NDArray[np.int64]

TAIL = 100_000
"""Messages at the end of each topic partition of Kafka that are read. Files are read whole."""
KEPT_DELAYS = 100_000
"""Delays that the quantiles of a topic partition are of: those of the last records."""
COVERED = 0.999
"""Share of records that the suggested max_disorder gives their right place."""


@dataclass(frozen=True)
class PartitionTimes:
    """Event times of one topic partition.

    Args:
        topic, partition: of it.
        end: offset of its end; in files the number of records.
        waiting: records between the position of the checkpoint, or the beginning, and the end.
        read: records that were read and measured.
        oldest_ms, newest_ms: least and greatest event time among them that the log agrees on; None without
            records.
        delay_ms: quantiles 0.5, 0.99, COVERED and 1 of the delays.
        wrong: records whose time the log does not confirm.
        idle: nothing has come while `measure` looked, and nothing waits.
        watermark_ms: newest_ms less max_disorder; None before the first record.
        holds: no other topic partition that is not idle has an older watermark.
    """

    topic: str
    partition: int
    end: int
    waiting: int
    read: int
    oldest_ms: int | None
    newest_ms: int | None
    delay_ms: tuple[int, int, int, int]
    wrong: int
    idle: bool
    watermark_ms: int | None
    holds: bool = False


class _Measure:
    """Delays of one topic partition's records, which come in the order of the log."""

    def __init__(self, stream: Stream) -> None:
        self._stream, self._clock = stream, new_clock()
        self._times = self._users = np.empty(0, np.int64)  # not judged
        self._delays: deque[I64] = deque()
        self._kept = 0
        self.read = self.wrong = self.longest_ms = 0
        self.oldest_ms: int | None = None

    @property
    def newest_ms(self) -> int | None:
        """Greatest event time that the log agrees on."""
        reached = int(self._clock[0])
        return None if reached == FIRST else reached

    def add(self, chunk: Chunk) -> None:
        times = chunk.batch.column(self._stream.time).to_numpy()
        users = key_of(chunk.batch.column(self._stream.key))
        self._times = np.concatenate([self._times, times])
        self._users = np.concatenate([self._users, users])
        self._judge(ended=False)

    def finish(self) -> tuple[int, int, int, int]:
        """Judge the last records; return the quantiles of the delays in ms."""
        self._judge(ended=True)
        if not self._kept:
            return 0, 0, 0, 0
        delays = np.concatenate(self._delays)[-KEPT_DELAYS:]
        low = [int(q) for q in np.quantile(delays, [0.5, 0.99, COVERED], method="higher")]
        return low[0], low[1], low[2], self.longest_ms

    def _judge(self, *, ended: bool) -> None:
        mark, verdict, self._clock = judge(
            *(self._clock, self._times, self._users),
            max_ahead_ms=self._stream.max_ahead_ms,
            horizon=Horizon(ended=ended),
        )
        m = len(mark)
        used = verdict < AHEAD
        times, self._times, self._users = self._times[:m][used], self._times[m:], self._users[m:]
        self.read += m
        self.wrong += m - len(times)
        if not len(times):
            return
        delays = np.maximum(mark[used] - times, 0)
        self.longest_ms = max(self.longest_ms, int(delays.max()))
        oldest = int(times.min())
        self.oldest_ms = oldest if self.oldest_ms is None else min(self.oldest_ms, oldest)
        self._delays.append(delays)
        self._kept += len(delays)
        while self._kept - len(self._delays[0]) >= KEPT_DELAYS:
            self._kept -= len(self._delays.popleft())


def measure(
    url: str, streams: Sequence[Stream], *, state: SourceState | None = None, look_s: float = 2.0
) -> list[PartitionTimes]:
    """Read a log, or the end of each topic partition of Kafka, and measure its event times.

    Args:
        url: `kafka://…` or `file:…`.
        streams: event streams of a pipeline.
        state: what a trainer has read, by its checkpoint.
        look_s: time in which a topic partition of Kafka that is not idle gets records.

    Raises:
        ConfigError: no stream has a time column, or the folder or a topic does not exist.
        ConnectError: no broker answers.
    """
    streams = [stream for stream in streams if stream.time is not None]
    if not streams:
        raise ConfigError("no event stream of the pipeline has a time column: time= names it")
    saved = SourceState() if state is None else state
    live, began_s = url.startswith("kafka:"), time.monotonic()
    ends = _ends(url, streams) if live else {}
    measures, read_ends = _read(url, streams, ends)
    if live:
        time.sleep(max(0.0, look_s - (time.monotonic() - began_s)))
    ends_after = _ends(url, streams) if live else read_ends
    of = {stream.topic: stream for stream in streams}
    lines = []
    for (topic, partition), measured in sorted(measures.items()):
        place = topic, partition
        delays = measured.finish()
        waiting = max(0, ends_after[place] - _position(saved, place).offset)
        mark = measured.newest_ms
        grown = live and ends_after[place] > ends[place]
        lines.append(
            PartitionTimes(
                *(topic, partition, ends_after[place], waiting, measured.read),
                *(measured.oldest_ms, measured.newest_ms, delays, measured.wrong),
                idle=not grown and (state is None or not waiting),
                watermark_ms=None if mark is None else mark - of[topic].max_disorder_ms,
            )
        )
    return _with_holders(lines)


def _position(state: SourceState, place: TopicPartition) -> Position:
    """Position of a topic partition in a checkpoint."""
    topic, partition = place
    known = state.partitions.get(partition)
    topics = {} if known is None else known.values["merge"]["topics"]
    return Position(*topics[topic]["position"]) if topic in topics else BEGINNING


def _with_holders(lines: list[PartitionTimes]) -> list[PartitionTimes]:
    active = [FIRST if line.watermark_ms is None else line.watermark_ms for line in lines if not line.idle]
    least = min(active, default=None)
    return [
        replace(line, holds=not line.idle and (line.watermark_ms or FIRST) == least) if active else line
        for line in lines
    ]


def _open(url: str, streams: Sequence[Stream]) -> Source:
    columns = {s.topic: tuple(name for name in (s.key, s.time) if name is not None) for s in streams}
    return open_source(url, streams, until_end=True, dead_letters=DeadLetters(None), columns=columns)


def _ends(url: str, streams: Sequence[Stream]) -> dict[TopicPartition, int]:
    """Offsets of the ends; nothing is read."""
    with closing(_open(url, streams)) as source:
        places = [(topic, p) for topic, numbers in source.topics().items() for p in numbers]
        source.assign(dict.fromkeys(places, BEGINNING))
        source.pause(places)
        source.start()
        return source.end_offsets()


def _read(
    url: str, streams: Sequence[Stream], ends: Mapping[TopicPartition, int]
) -> tuple[dict[TopicPartition, _Measure], dict[TopicPartition, int]]:
    """Read each topic partition to its end, from TAIL messages before it if the end is known.

    Returns:
        Measures, and the ends that were reached.
    """
    of = {stream.topic: stream for stream in streams}
    with closing(_open(url, streams)) as source:
        places = [(topic, p) for topic, numbers in source.topics().items() for p in numbers]
        source.assign({place: Position(max(0, ends.get(place, 0) - TAIL), 0) for place in places})
        measures = {place: _Measure(of[place[0]]) for place in places}
        source.start()
        while not all(source.at_end(*place) for place in places):
            for chunk in source.poll(0.1):
                if len(chunk):
                    measures[chunk.topic, chunk.partition].add(chunk)
        return measures, source.end_offsets()
