"""Counters as a part of the run: their state in checkpoints."""

from __future__ import annotations

from typing import ClassVar

from livectr.ingest.join.counters import Counters
from livectr.trainer.part import Arrays, Part


class CountersPart(Part):
    """State of the counters, which all ranks hold alike.

    Args:
        counters: of the run's source.
        rank: of the process.
    """

    kind: ClassVar[str] = "counters"

    def __init__(self, counters: Counters, rank: int) -> None:
        self._counters, self._rank = counters, rank

    def state(self) -> Arrays:
        """State of all counters, on rank 0, which writes it."""
        return self._counters.state() if self._rank == 0 else {}

    def load(self, state: Arrays) -> None:
        """Load a `state`, on every rank."""
        self._counters.load(state)
