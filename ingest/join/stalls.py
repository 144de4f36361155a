"""Watch over event time: lags for Prometheus, and warnings about topic partitions that block others."""

from __future__ import annotations

import logging
import time
from collections.abc import Collection, Mapping, Sequence
from dataclasses import dataclass

from livectr.ingest import metrics
from livectr.ingest.chunks import TopicPartition
from livectr.ingest.join.partition import Partition
from livectr.ingest.language.streams import Stream
from livectr.kernels.stream.clock import FIRST, LAST

CHECK_EVERY_S = 0.5
WARN_AFTER_S = 5.0

_log = logging.getLogger(__name__)


@dataclass
class _Stall:
    frontier: int
    seconds: float = 0.0
    warned: bool = False


class StallWatch:
    """Watches for topic partitions that block others: event time stands still, or records are unconfirmed.

    Time counts only between two checks, at most 1 s each: a long training step is no stall of the log.

    Args:
        streams: of the topics, in the pipeline's order.
        now_s: current time, seconds of the monotonic clock.
    """

    def __init__(self, streams: Sequence[Stream], now_s: float) -> None:
        self._topics = [stream.topic for stream in streams]
        self._disorder_ms = [stream.max_disorder_ms for stream in streams]
        self._timed = streams[0].time is not None
        self._checked_s = now_s
        self._began = False
        self._stalls: dict[TopicPartition, _Stall] = {}

    def due(self, now_s: float) -> bool:
        """Return true at the start, and when the last check is at least CHECK_EVERY_S ago."""
        return not self._began or now_s - self._checked_s >= CHECK_EVERY_S

    def check(
        self,
        partitions: Mapping[int, Partition],
        unread: Collection[TopicPartition],
        idle: Mapping[int, Sequence[bool]],
        now_s: float,
    ) -> None:
        """Update metrics and warn about topic partitions that have blocked others for WARN_AFTER_S.

        Args:
            partitions: number → partition of this rank.
            unread: topic partitions with more to read that are not paused.
            idle: partition → bool for each topic; idle topics block nothing.
            now_s: current time, seconds of the monotonic clock.
        """
        passed, self._checked_s, self._began = now_s - self._checked_s, now_s, True
        self.tell(partitions, unread)
        ready = {number: len(partition.ready) for number, partition in partitions.items()}
        total = sum(ready.values())
        least = _least(partitions)
        stalled = set()
        for number, partition in partitions.items():
            for topic in self._topics:
                metrics.held_back_seconds.labels(topic, str(number))
                metrics.unconfirmed_events.labels(topic, str(number))
            unconfirmed, waiting, holding = partition.unconfirmed, partition.waiting, partition.holding
            stands = FIRST < partition.frontier < LAST and not idle[number][holding]
            for index, topic in enumerate(self._topics):
                place = topic, number
                others_wait = total > ready[number] and partition.frontier == least
                blocks = waiting or others_wait or place in unread
                if not (unconfirmed[index] or (stands and index == holding and blocks)):
                    continue
                stalled.add(place)
                stall = self._stalls.setdefault(place, _Stall(partition.frontier))
                moved = stall.frontier != partition.frontier and not unconfirmed[index]
                if moved:
                    stall = self._stalls[place] = _Stall(partition.frontier)
                else:
                    stall.seconds += min(passed, 1.0)
                metrics.held_back_seconds.labels(topic, str(number)).set(stall.seconds)
                metrics.unconfirmed_events.labels(topic, str(number)).set(unconfirmed[index])
                if stall.seconds >= WARN_AFTER_S and not stall.warned:
                    stall.warned = True
                    self._warn(place, stall, unconfirmed[index], waiting, partition.frontier)
        for place in self._stalls.keys() - stalled:
            if self._stalls.pop(place).warned:
                _log.warning("topic %s partition %d continues", *place)
            metrics.held_back_seconds.labels(place[0], str(place[1])).set(0)
            metrics.unconfirmed_events.labels(place[0], str(place[1])).set(0)

    def tell(self, partitions: Mapping[int, Partition], unread: Collection[TopicPartition]) -> None:
        """Bring the gauges of ready examples and of event time up to date.

        Args:
            partitions: number → partition of this rank.
            unread: topic partitions with more to read that are not paused.
        """
        metrics.ready_examples.set(sum(len(partition.ready) for partition in partitions.values()))
        if self._timed:
            self._lags(partitions, unread, _least(partitions), time.time_ns() // 1_000_000)

    def _lags(
        self, partitions: Mapping[int, Partition], unread: Collection[TopicPartition], least: int, now_ms: int
    ) -> None:
        """Measure how far event time is behind the clock."""
        for number, partition in partitions.items():
            for topic, disorder_ms, bound in zip(
                self._topics, self._disorder_ms, partition.bounds, strict=True
            ):
                behind = (topic, number) in unread and FIRST < bound < LAST
                lag_ms = now_ms - bound - disorder_ms if behind else 0
                metrics.event_lag_seconds.labels(topic, str(number)).set(max(0, lag_ms) / 1000)
        delay_ms = now_ms - least if FIRST < least < LAST else 0
        metrics.watermark_delay_seconds.set(max(0, delay_ms) / 1000)

    def _warn(
        self, place: TopicPartition, stall: _Stall, unconfirmed: int, waiting: int, frontier: int
    ) -> None:
        why = (
            f"{unconfirmed} of its records wait until others confirm their time"
            if unconfirmed
            else "nothing later comes from it"
        )
        _log.warning(
            "topic %s partition %d has held others back for %.0f s: its event time stands at %d, since %s; "
            "%d records of the partition wait",
            *(*place, stall.seconds, frontier, why, waiting),
        )


def _least(partitions: Mapping[int, Partition]) -> int:
    """Watermark of all partitions."""
    return min((partition.frontier for partition in partitions.values()), default=LAST)
