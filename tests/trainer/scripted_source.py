"""Example source of tests of the batcher: a log in memory that arrives as a seed says."""

import random
from collections.abc import Mapping

import numpy as np

from livectr.trainer.stream.cut import NEVER

Log = dict[int, list[int]]
"""partition → non-decreasing orders of its examples"""
Batch = list[tuple[int, int, int]]
"""(order, partition, number) of each example"""


def is_final(order: int, partition: int, number: int) -> bool:
    """Two thirds of an uneven partition are finals, and a third of an even one."""
    return (order + number) % 3 <= partition % 2


class ScriptedSource:
    """A rank's share of a log that arrives a few examples at a time, as a random generator says.

    Args:
        most: examples of a partition that arrive in a poll.
    """

    def __init__(self, log: Log, seed: int, most: int = 3) -> None:
        self.rng, self.most = random.Random(seed), most
        self.waiting = {p: [(o, p, i) for i, o in enumerate(orders)] for p, orders in log.items()}
        self.ready: Batch = []
        self.polls = 0
        self.released = False

    @property
    def frontier(self) -> int:
        return min((left[0][0] for left in self.waiting.values() if left), default=NEVER)

    @property
    def strict_frontier(self) -> int:
        return self.frontier

    @property
    def topic_count(self) -> int:
        return 1

    def release(self) -> None:
        self.released = True

    def first_of(self, counts: Mapping[int, int]) -> tuple[np.ndarray, np.ndarray, np.ndarray] | None:
        rows: Batch = []
        for partition in self.waiting:
            own = [e for e in self.ready if e[1] == partition][: counts.get(partition, 0)]
            if len(own) < counts.get(partition, 0):
                return None
            rows += own
        rows.sort()
        order, number = (np.array([e[i] for e in rows], np.int64) for i in (0, 1))
        return order, number.astype(np.int32), np.array([is_final(*e) for e in rows], np.bool_)

    @property
    def ended(self) -> bool:
        return not any(self.waiting.values())

    def poll(self, max_wait_s: float, rows: int | None = None) -> bool:
        self.polls += 1
        moved = False
        for left in self.waiting.values():
            arrived = self.rng.randint(0, self.most)
            self.ready += left[:arrived]
            moved |= bool(left[:arrived])
            del left[:arrived]
        self.ready.sort()
        return moved

    def finals(self, limit: int) -> np.ndarray:
        return np.array([is_final(*e) for e in self.ready[:limit]], np.bool_)

    def orders(self, limit: int) -> tuple[np.ndarray, np.ndarray]:
        first = self.ready[:limit]
        return np.array([e[0] for e in first], np.int64), np.array([e[1] for e in first], np.int32)

    def pop(self, k: int, counts: Mapping[int, int] | None = None) -> Batch:
        taken = self.ready[:k]
        if counts is not None:
            own = {p: [e for e in self.ready if e[1] == p][:n] for p, n in counts.items()}
            taken = sorted(e for rows in own.values() for e in rows)
        self.ready = [e for e in self.ready if e not in taken]
        return taken
