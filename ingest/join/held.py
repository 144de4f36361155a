"""Topic partitions that hold others back: seen, measured, said."""

from __future__ import annotations

import logging
from collections.abc import Collection, Mapping, Sequence
from dataclasses import dataclass

from livectr.ingest import metrics
from livectr.ingest.chunks import TopicPartition
from livectr.ingest.join.partition import Partition
from livectr.kernels.stream.clock import FIRST, LAST

LOOK_EVERY_S = 0.5
SAY_AFTER_S = 5.0

_log = logging.getLogger(__name__)


@dataclass
class _Held:
    frontier: int
    seconds: float = 0.0
    said: bool = False


class HeldBack:
    """Watches which topic partitions others wait for, while event time stands still or records are in doubt.

    Time counts only while somebody looks: a long step of the trainer is nobody's fault.
    """

    def __init__(self, topics: Sequence[str], now_s: float) -> None:
        self._topics = topics
        self._at_s = now_s
        self._held: dict[TopicPartition, _Held] = {}

    def due(self, now_s: float) -> bool:
        """True when the last look was LOOK_EVERY_S ago."""
        return now_s - self._at_s >= LOOK_EVERY_S

    def look(
        self,
        partitions: Mapping[int, Partition],
        unread: Collection[TopicPartition],
        free: Mapping[int, Sequence[bool]],
        now_s: float,
    ) -> None:
        """Bring metrics up to date and warn.

        unread: places with more to read that nobody keeps from being read. free: partition → which of its
        topics hold nothing back.
        """
        passed, self._at_s = now_s - self._at_s, now_s
        ready = {number: len(partition.ready) for number, partition in partitions.items()}
        total = sum(ready.values())
        least = min((partition.frontier for partition in partitions.values()), default=LAST)
        seen = set()
        for number, partition in partitions.items():
            doubtful, waiting, holding = partition.doubtful, partition.waiting, partition.holding
            stands = FIRST < partition.frontier < LAST and not free[number][holding]
            for index, topic in enumerate(self._topics):
                place = topic, number
                others_wait = total > ready[number] and partition.frontier == least
                blocks = waiting or others_wait or place in unread
                if not (doubtful[index] or (stands and index == holding and blocks)):
                    continue
                seen.add(place)
                held = self._held.setdefault(place, _Held(partition.frontier))
                moved = held.frontier != partition.frontier and not doubtful[index]
                if moved:
                    held = self._held[place] = _Held(partition.frontier)
                else:
                    held.seconds += min(passed, 1.0)
                metrics.held_back_seconds.labels(topic, str(number)).set(held.seconds)
                metrics.doubtful_events.labels(topic, str(number)).set(doubtful[index])
                if held.seconds >= SAY_AFTER_S and not held.said:
                    held.said = True
                    self._say(place, held, doubtful[index], waiting, partition.frontier)
        for place in self._held.keys() - seen:
            if self._held.pop(place).said:
                _log.warning("topic %s partition %d goes on", *place)
            metrics.held_back_seconds.labels(place[0], str(place[1])).set(0)
            metrics.doubtful_events.labels(place[0], str(place[1])).set(0)

    def _say(self, place: TopicPartition, held: _Held, doubtful: int, waiting: int, frontier: int) -> None:
        why = (
            f"{doubtful} of its records wait until others confirm their time"
            if doubtful
            else "nothing later comes from it"
        )
        _log.warning(
            "topic %s partition %d has held others back for %.0f s: its event time stands at %d, since %s; "
            "%d records of the partition wait",
            *(*place, held.seconds, frontier, why, waiting),
        )
