"""Data quality of the log while it is learned: end a run whose rows are mostly unusable, warn of mistakes.

Every rank counts its rows (`ingest.dead_letters.usable`). A rank whose share of usable rows is low sets a
flag in its header. Then all ranks gather their counts and decide alike.
"""

from __future__ import annotations

import logging
import time
from collections.abc import Sequence
from dataclasses import asdict
from typing import Any

from livectr.ingest.dead_letters.letters import DeadLetters
from livectr.ingest.dead_letters.usable import TopicRows, complaint, merged
from livectr.ingest.hints import END_ROWS, apart_cause, apart_words, hints, no_click_labels, remembered
from livectr.ingest.join.apart import Apart, Sampled, apart_of, together
from livectr.ingest.join.examples import ExampleSource
from livectr.ingest.pipeline import Pipeline
from livectr.system.errors import DataError
from livectr.trainer.comm.control import Control
from livectr.trainer.counts import summed
from livectr.trainer.part import Part
from livectr.trainer.stream.header import Flags

LOG = logging.getLogger(__name__)
LOOK_EVERY_S = 5.0


class DataWatch(Part):
    """Watches the rows that one rank reads.

    Args:
        min_usable: least share of usable rows (`ingest.dead_letters.usable.complaint`).
        resumed: the run resumes from a checkpoint; then a few unusable rows say nothing about the log.
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
        self._hints: dict[str, str] = {}
        self._totals = (0, 0)
        self._topics: dict[str, TopicRows] = {}

    @property
    def totals(self) -> tuple[int, int]:
        """(rows, unusable rows) of this rank so far."""
        return self._letters.rows.totals

    @property
    def suspect(self) -> bool:
        """Tell if too few of this rank's rows are usable. False until enough rows are new to be judged."""
        rows, unusable = self.totals
        if not unusable or rows < self._next_rows:
            return False
        topics = self._letters.rows.topics().values()
        return any(topic.rows - topic.unusable < self._min_usable * topic.rows for topic in topics)

    def check(self, flags: Sequence[Flags]) -> None:
        """Judge the rows if some rank asks for it. Collective.

        Args:
            flags: of all ranks.

        Raises:
            DataError: too few rows are usable; on every rank alike.
        """
        self._totals = sum(rank.rows for rank in flags), sum(rank.unusable for rank in flags)
        if any(rank.suspect for rank in flags):
            self._judge(final=False)
            self._next_rows = 1.1 * self.totals[0] + 100
        if self._control.rank == 0 and time.monotonic() >= self._next_look:
            self._next_look = time.monotonic() + LOOK_EVERY_S
            counts = self._counts()
            lonely = counts["unmatched_clicks"] + counts["waiting_clicks"]
            apart = apart_of(self._source.sampled) if lonely >= END_ROWS else Apart()
            self._warn(counts, apart, final=False)

    def finish(self) -> None:
        """Judge all rows at the end. Collective.

        Raises:
            DataError: too few rows are usable; on every rank alike.
        """
        self._judge(final=not self._resumed)

    def report(self) -> dict[str, Any]:
        """Rows of all ranks by topic, place of dead letters, likely mistakes (`ingest.hints`). Collective.

        Hints begin with what sources leave out (`Source.remarks`). Each mistake is warned of once.
        """
        shares = self._control.gather_json(
            [self._counts(), self._source.sampled.as_json(), self._source.remarks]
        )
        apart = apart_of(together(Sampled.from_json(sample) for _, sample, _ in shares))
        counts = summed([counts for counts, *_ in shares])
        self._warn(counts, apart, final=True)
        rows = {topic: counted.as_json() for topic, counted in self._topics.items()}
        clicks = self._pipeline.log.clicks
        if apart.apart and clicks is not None:
            words = f"{apart_words(self._pipeline, apart)}: {apart_cause(self._pipeline, apart)}"
            rows[clicks.topic] |= {"apart": apart.share, "apart_words": words}
        elif not self._resumed and clicks is not None and (words := no_click_labels(self._pipeline, counts)):
            rows[clicks.topic] |= {"unlabelling": words}
        return {
            "rows": rows,
            "hints": [
                *dict.fromkeys(words for *_, remarks in shares for words in remarks),
                *self._hints.values(),
            ],
            "dead_letter_place": self._letters.place,
        }

    def line(self) -> str:
        """Text with the unusable rows of all ranks and this rank's commonest complaint; "" without any."""
        rows, unusable = self._totals
        if not unusable:
            return ""
        commonest = self._letters.rows.commonest
        return f"{unusable:,} of {rows:,} rows unusable" + (f": {commonest}" if commonest else "")

    def _judge(self, *, final: bool) -> None:
        self._topics = merged(self._control.gather_json(self._letters.rows.as_json()))
        message = complaint(self._topics, self._letters.place, min_usable=self._min_usable, final=final)
        if message is not None:
            raise DataError(message, everywhere=True)

    def _counts(self) -> dict[str, Any]:
        """Counters of this rank since the process started."""
        stream = asdict(self._source.stats)
        late = stream["unmatched_clicks"] - self._before["unmatched_clicks"]
        again = {
            topic: n - self._before["duplicates"].get(topic, 0) for topic, n in stream["duplicates"].items()
        }
        return {**stream, "unmatched_clicks": late, "duplicates": again}

    def _warn(self, counts: dict[str, Any], apart: Apart, *, final: bool) -> None:
        found = dict(hints(self._pipeline, counts, apart, final=final, fresh=not self._resumed))
        for kind, hint in found.items():
            if kind not in self._hints and self._control.rank == 0:
                LOG.warning("%s", hint)
        self._hints = remembered(self._hints, found)
