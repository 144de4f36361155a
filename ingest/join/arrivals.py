"""Idleness of topic partitions: the time since records last arrived from each of them."""

from __future__ import annotations

import time
from collections.abc import Collection, Sequence

from livectr.ingest.chunks import TopicPartition
from livectr.ingest.sources.source import Source


class Arrivals:
    """Tracks when each topic partition last gave records, and which of them are idle.

    Args:
        source: answers whether a topic partition is read to its end.
        topics: names of the topics, in the pipeline's order.
        partitions: numbers of this rank's partitions.
        exist: topic partitions that the source has; a folder may lack files of some.
        idle_s: seconds without records after which a topic partition that is at its end counts as idle.
    """

    def __init__(
        self,
        source: Source,
        topics: Sequence[str],
        partitions: Sequence[int],
        exist: Collection[TopicPartition],
        *,
        idle_s: float,
    ) -> None:
        self._source, self._topics, self._exist, self._idle_s = source, topics, exist, idle_s
        self._last = time.monotonic()
        self._last_of = {(topic, p): self._last for topic in topics for p in partitions}

    def add(self, topic: str, partition: int) -> None:
        """Note that records have arrived."""
        self._last = self._last_of[topic, partition] = time.monotonic()

    def await_unread(self) -> None:
        """Count idleness again for all that is not read to its end.

        While the broker is away, its producers may be too: their silence counts from when it answers again.
        """
        now = time.monotonic()
        for place in self._last_of:
            if not self._at_end(place):
                self._last = self._last_of[place] = now

    @property
    def unread(self) -> set[TopicPartition]:
        """Topic partitions that have more to read."""
        return {place for place in self._last_of if not self._at_end(place)}

    @property
    def quiet_s(self) -> float:
        """Seconds since the last record arrived; 0 while there is more to read."""
        return 0.0 if self.unread else time.monotonic() - self._last

    def idle(self, partition: int) -> list[bool]:
        """For each topic: true when the partition has ended in it, or gave nothing for `idle_s`."""
        since = time.monotonic() - self._idle_s
        places = [(topic, partition) for topic in self._topics]
        return [self._last_of[place] <= since and self._at_end(place) for place in places]

    def _at_end(self, place: TopicPartition) -> bool:
        return place not in self._exist or self._source.at_end(*place)
