"""Examples that two runs have both scored, followed in their prediction logs while they are written.

    log A ─► new records ─┐
                          ├─ by instance id and label ─► pairs, in the order of A
    log B ─► new records ─┘        └► without a partner yet: wait

A click's late correction has another label than its example, so it is an example of its own. Either trainer
may be behind, start again from its checkpoint, or write a bounded log anew (trainer.quality.predictions):
what was read stays read, and an example that is scored twice is paired once.
"""

from __future__ import annotations

from pathlib import Path

import numpy as np
from numpy.typing import NDArray

from livectr.trainer.quality.predictions import PredictionTail, Records

MOST = 1_000_000
"""Newest pairs that are kept, and newest records of a run that wait for their partner."""

Places = NDArray[np.int64]


def common(a: Records, b: Records) -> tuple[Places, Places]:
    """Places of the examples that are in both, by instance id and label, in the order of `a`."""
    places: list[list[Places]] = [[], []]
    for label in (0, 1):
        rows = [np.flatnonzero(log["label"] == label) for log in (a, b)]
        ours, theirs = (log["instance"][at] for log, at in zip((a, b), rows, strict=True))
        _, in_a, in_b = np.intersect1d(ours, theirs, return_indices=True)
        places[0].append(rows[0][in_a])
        places[1].append(rows[1][in_b])
    left, right = map(np.concatenate, places)
    order = np.argsort(left)
    return left[order], right[order]


class PairedRuns:
    """Pairs of two runs.

    Args:
        a, b: prediction logs; a run may not have begun its log yet.
        passed: records of each log that are passed over, from its run's beginning.

    Attributes:
        left, right: records[n] of the same examples, as each run scored them.
        count: pairs since the beginning; more than n once the oldest were dropped.
    """

    def __init__(self, a: Path, b: Path, *, passed: tuple[int, int] = (0, 0)) -> None:
        self._tails, self._passed = (PredictionTail(a), PredictionTail(b)), passed
        self._waiting: list[Records | None] = [None, None]
        self.left: Records | None = None
        self.right: Records | None = None
        self.count = 0

    def look(self) -> int:
        """Read what is new in both logs; return the number of new pairs. Raises ConfigError."""
        for side, tail in enumerate(self._tails):
            if (found := tail.read(MOST)) is not None:
                begin = max(0, self._passed[side] - (tail.position - len(found)))
                self._waiting[side] = _joined(self._waiting[side], found[begin:])
        a, b = self._waiting
        if a is None or b is None:
            return 0
        in_a, in_b = common(a, b)
        self.left, self.right = _joined(self.left, a[in_a]), _joined(self.right, b[in_b])
        self._waiting = [np.delete(a, in_a), np.delete(b, in_b)]
        self.count += len(in_a)
        return len(in_a)

    @property
    def read(self) -> tuple[int, int]:
        """Records of each run until here."""
        return self._tails[0].position, self._tails[1].position

    @property
    def alone(self) -> tuple[int, int]:
        """Records of each run that have no partner yet."""
        a, b = (0 if held is None else len(held) for held in self._waiting)
        return a, b


def _joined(held: Records | None, more: Records | None) -> Records | None:
    """The newest MOST of both."""
    if held is None or more is None:
        return more if held is None else held
    if held.dtype != more.dtype:  # a run of other models has begun in the place
        return more
    return np.concatenate([held, more])[-MOST:]
