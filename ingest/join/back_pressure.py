"""Back-pressure: topic partitions that are ahead of the slowest wait, so that memory stays bounded."""

from __future__ import annotations

from collections.abc import Collection, Mapping

from livectr.ingest.chunks import TopicPartition
from livectr.ingest.join.partition import Partition
from livectr.ingest.sources.source import Source

WAITING_ROWS = 1 << 16
"""Records of a topic that may wait for another topic of their partition; with more, the topic is paused."""
READY_ROWS = 1 << 17
"""Ready examples of all partitions, while a partition is behind; with more, those ahead are paused."""


class BackPressure:
    """Pauses topic partitions that are ahead of the slowest topic or partition.

    Args:
        source: reads the topic partitions.
        topics: name → index in the pipeline's order.
        partitions: number → partition of this rank.

    Attributes:
        paused: topic partitions that are not read.
    """

    def __init__(
        self, source: Source, topics: Mapping[str, int], partitions: Mapping[int, Partition]
    ) -> None:
        self._source, self._topics, self._partitions = source, topics, partitions
        self._largest = 0
        self.paused: frozenset[TopicPartition] = frozenset()

    def allow(self, counts: Collection[int]) -> None:
        """Let partitions have as many ready examples as a batch takes of one."""
        self._largest = max([self._largest, *counts])

    def apply(self, watermark: int) -> None:
        """Pause what is ahead of the watermark of all partitions, and read the others."""
        share = max(READY_ROWS // max(1, len(self._partitions)), self._largest)
        paused = {
            (topic, number)
            for number, partition in self._partitions.items()
            for topic, index in self._topics.items()
            if index in partition.ahead(WAITING_ROWS)
            or (len(partition.ready) >= share and partition.frontier > watermark)
        }
        if paused != self.paused:
            self.paused = frozenset(paused)
            self._source.pause(self.paused)
