"""Judges the log while it is learned: ends a run whose rows are mostly unusable, warns of what looks wrong.

Rows are counted by every rank (`ingest.dead_letters.usable`) and judged together: a rank that finds its own
share low says so in its header, then all ranks gather their counts and come to the same decision.
"""

from __future__ import annotations

import logging
import time
from collections.abc import Sequence
from dataclasses import asdict
from typing import Any

from livectr.ingest.dead_letters.letters import DeadLetters
from livectr.ingest.dead_letters.usable import TopicRows, complaint, merged
from livectr.ingest.hints import hints
from livectr.ingest.join.examples import ExampleSource
from livectr.ingest.pipeline import Pipeline
from livectr.kernels.errors import DataError
from livectr.trainer.comm.control import Control
from livectr.trainer.counts import summed
from livectr.trainer.stream.batcher import Flags

LOG = logging.getLogger(__name__)
LOOK_EVERY_S = 5.0


class DataWatch:
    """Watches what one rank reads.

    min_usable: see `ingest.dead_letters.usable.complaint`. resumed: the run goes on from a checkpoint; then
    few rows that are all unusable say nothing about the log.
    """

    def __init__(
        self,
        pipeline: Pipeline,
        source: ExampleSource,
        letters: DeadLetters,
        control: Control,
        *,
        min_usable: float,
        resumed: bool,
    ) -> None:
        self._pipeline, self._source, self._letters, self._control = pipeline, source, letters, control
        self._min_usable, self._resumed = min_usable, resumed
        self._before = asdict(source.stats)
        self._next_rows = 0.0
        self._next_look = time.monotonic() + LOOK_EVERY_S
        self._told: dict[str, str] = {}
        self._totals = (0, 0)

    @property
    def totals(self) -> tuple[int, int]:
        """(rows, unusable rows) of this rank so far."""
        return self._letters.rows.totals

    @property
    def suspect(self) -> bool:
        """Whether too few of this rank's rows are usable, by what is new since the ranks last agreed."""
        rows, unusable = self.totals
        if not unusable or rows < self._next_rows:
            return False
        topics = self._letters.rows.topics().values()
        return any(one.rows - one.unusable < self._min_usable * one.rows for one in topics)

    def check(self, flags: Sequence[Flags]) -> None:
        """Look at what all ranks say. Collective. Raises DataError on every rank alike."""
        self._totals = sum(one.rows for one in flags), sum(one.unusable for one in flags)
        if any(one.suspect for one in flags):
            self._judge(final=False)
            self._next_rows = 1.1 * self.totals[0] + 100
        if self._control.rank == 0 and time.monotonic() >= self._next_look:
            self._next_look = time.monotonic() + LOOK_EVERY_S
            self._warn(self._counts(), final=False)

    def finish(self) -> dict[str, TopicRows]:
        """Judge all that was read; returns the rows of all ranks, by topic. Collective. Raises DataError."""
        return self._judge(final=not self._resumed)

    def hints(self) -> list[str]:
        """Everything strange in what all ranks read (see `ingest.hints`), each warned of once. Collective."""
        self._warn(summed(self._control.gather_json(self._counts())), final=True)
        return list(self._told.values())

    def line(self) -> str:
        """The rows of all ranks that cannot be used, and the commonest complaint on this one; else ""."""
        rows, unusable = self._totals
        if not unusable:
            return ""
        told = self._letters.rows.commonest
        return f"{unusable:,} of {rows:,} rows unusable" + (f": {told}" if told else "")

    def _judge(self, *, final: bool) -> dict[str, TopicRows]:
        topics = merged(self._control.gather_json(self._letters.rows.as_json()))
        told = complaint(topics, self._letters.place, min_usable=self._min_usable, final=final)
        if told is not None:
            raise DataError(told, everywhere=True)
        return topics

    def _counts(self) -> dict[str, Any]:
        """What this rank counted since it started."""
        stream = asdict(self._source.stats)
        late = stream["unmatched_clicks"] - self._before["unmatched_clicks"]
        again = {
            topic: n - self._before["duplicates"].get(topic, 0) for topic, n in stream["duplicates"].items()
        }
        return {**stream, "unmatched_clicks": late, "duplicates": again}

    def _warn(self, counts: dict[str, Any], *, final: bool) -> None:
        for kind, told in hints(self._pipeline, counts, final=final, fresh=not self._resumed):
            if kind not in self._told and self._control.rank == 0:
                LOG.warning("%s", told)
            self._told[kind] = told
