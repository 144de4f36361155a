"""Watch over a replay: a warning about partitions whose log ends before what the order log names.

A live log may grow, so a replay waits for it. Who follows the order log of other logs would else wait for
ever and not know for what.
"""

from __future__ import annotations

import logging
from collections.abc import Collection, Mapping, Sequence

from livectr.ingest.chunks import TopicPartition
from livectr.ingest.join.partition import Partition

WARN_AFTER_S = 5.0

_log = logging.getLogger(__name__)


class ReplayWatch:
    """Watches for partitions that are read to their end and lack what is replayed next.

    Args:
        topics: names of the topics, in the pipeline's order.
        now_s: current time, seconds of the monotonic clock.
    """

    def __init__(self, topics: Sequence[str], now_s: float) -> None:
        self._topics = topics
        self._checked_s = now_s
        self._seconds: dict[int, float] = {}

    def check(
        self,
        partitions: Mapping[int, Partition],
        unread: Collection[TopicPartition],
        asked: Mapping[int, int],
        now_s: float,
    ) -> None:
        """Warn once about each partition that has lacked something for WARN_AFTER_S.

        Time counts only between two checks, at most 1 s each: a long training step is no stall of the log.

        Args:
            partitions: number → partition of this rank.
            unread: topic partitions with more to read.
            asked: partition → examples of the batch that is replayed next.
            now_s: current time, seconds of the monotonic clock.
        """
        passed, self._checked_s = min(now_s - self._checked_s, 1.0), now_s
        for number, partition in partitions.items():
            lacking = (
                []
                if any((topic, number) in unread for topic in self._topics)
                else self._lacks(number, partition, asked.get(number, 0))
            )
            before = self._seconds.pop(number, 0.0)
            if lacking:
                self._seconds[number] = before + passed
                if before < WARN_AFTER_S <= before + passed:
                    _log.warning("the replay waits for %s", "; ".join(lacking))
            elif before >= WARN_AFTER_S:
                _log.warning("the replay continues in partition %d", number)

    def _lacks(self, number: int, partition: Partition, asked: int) -> list[str]:
        """Records or examples that a partition lacks, as parts of a sentence."""
        topics = [
            f"topic {self._topics[topic]} partition {number}: it ends at offset {at.offset}, and the "
            f"order log was made with records up to offset {wanted.offset}"
            for topic, (at, wanted) in partition.awaits.items()
        ]
        if topics or (ready := len(partition.ready)) >= asked:
            return topics
        return [f"partition {number}: {ready} of its examples are ready, and its next batch had {asked}"]
