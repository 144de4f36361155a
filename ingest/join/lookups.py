"""Look-up tables of a pipeline: read completely at the start, then followed."""

from __future__ import annotations

import logging
import time
from collections.abc import Collection, Mapping, Sequence

import pyarrow as pa

from livectr.ingest import metrics
from livectr.ingest.chunks import BEGINNING, TopicPartition
from livectr.ingest.dead_letters.letters import DeadLetters
from livectr.ingest.join.lookup import LookupTable
from livectr.ingest.join.saved_rows import SavedRows
from livectr.ingest.join.state import SourceState
from livectr.ingest.language.tables import Table
from livectr.ingest.limits import LIMITS, RecordLimits
from livectr.ingest.sources.source import open_source
from livectr.kernels.stream.clock import FIRST, LAST

WARN_AFTER_S = 5.0

_log = logging.getLogger(__name__)


class Lookups:
    """Look-up tables of a pipeline, read completely by the constructor and then followed.

    Args:
        tables: declarations; empty reads nothing.
        url: `kafka://…` or `file:…`.
        until_end: stop at the end that the logs have at the start.
        dead_letters: receives bad rows. Every rank reads every table, so only one rank should keep letters.
        limits: records beyond them become dead letters.
        versioned: topics of tables whose rows are looked up as of a time.
        saved: state of a checkpoint, of which the tables are restored.
    """

    def __init__(
        self,
        tables: Sequence[Table],
        url: str,
        *,
        until_end: bool,
        dead_letters: DeadLetters,
        limits: RecordLimits = LIMITS,
        versioned: Collection[str] = (),
        saved: SourceState | None = None,
    ) -> None:
        self.tables: Mapping[str, LookupTable] = {
            table.topic: LookupTable(table, versioned=table.topic in versioned) for table in tables
        }
        before = saved or SourceState()
        self._saved = {topic: SavedRows(table) for topic, table in self.timed.items()}
        for topic, rows in self._saved.items():
            rows.restore(before.tables.get(topic, pa.table({})), before.bounds.get(topic, {}))
        self._source = None
        self._horizon = FIRST
        self._ended: dict[str, tuple[int, int]] = {}  # expired and evicted keys, as far as metrics count them
        self._reached = FIRST  # with every versioned table read to the end that it had then
        self._asked: tuple[int, int] | None = None  # (number of the question, order)
        self._warn_at_s = float("inf")
        self._awaited: set[TopicPartition] = set()
        self._versioned: list[TopicPartition] = []
        if not tables:
            return
        # A row that is written while the tables are read belongs to impressions that are written then.
        until_end = until_end and not (versioned and url.startswith("kafka:"))
        self._source = open_source(url, tables, until_end=until_end, dead_letters=dead_letters, limits=limits)
        places = [(topic, p) for topic, numbers in self._source.topics().items() for p in numbers]
        start = dict.fromkeys(places, BEGINNING)
        dead_letters.resume(start)  # tables are read again after a restart, their bad rows too
        self._source.assign(start)
        self._source.start()
        while not all(self._source.at_end(topic, p) for topic, p in places):
            self.follow(0.1)
        for rows in self._saved.values():
            rows.complete()
        for table in self.tables.values():
            table.join()
        if not until_end:
            self._versioned = [place for place in places if place[0] in versioned]
        self._measure()

    def follow(self, max_wait_s: float = 0.0) -> None:
        """Apply the rows that were written since the last call."""
        chunks = self._source.poll(max_wait_s) if self._source is not None else []
        for chunk in chunks:
            self.tables[chunk.topic].upsert(chunk.batch, chunk.deleted)
        self.tell()
        if chunks:
            self._measure()

    def tell(self) -> None:
        """Bring the gauges of the tables' topics up to date."""
        if self._source is not None:
            self._source.tell()

    def reach(self, order: int, slack_ms: int) -> int:
        """Order below which examples may leave, LAST for all; examples up to `order` want to.

        While the order rises, the tables' present ends are asked for, and it is reached when they are read
        up to there. So a row that the broker has before the log's records of an order is seen by the examples
        of that order, and a quiet table holds nothing back.

        Args:
            order: the log is read up to it.
            slack_ms: time by which an example's order may be beyond the order that is reached.
        """
        if self._source is None or not self._versioned:
            return LAST
        if self._asked is not None and self._source.answered >= self._asked[0]:
            self._awaited = {place for place in self._awaited if not self._source.at_end(*place)}
            if not self._awaited:
                self._reached, self._asked = self._asked[1], None
        if self._asked is None and order > self._reached:
            self._asked, self._awaited = (self._source.ask_ends(), order), set(self._versioned)
            self._warn_at_s = time.monotonic() + WARN_AFTER_S
        if self._asked is not None and time.monotonic() >= self._warn_at_s:
            self._warn_at_s = float("inf")
            names = ", ".join(sorted({topic for topic, _ in self._awaited}))
            _log.warning("examples have waited %.0f s for look-up tables to be read: %s", WARN_AFTER_S, names)
        return LAST if self._reached + slack_ms >= order else self._reached + slack_ms

    def forget(self, time_ms: int, reached_ms: int) -> None:
        """Drop the rows that no look-up as of a time or later needs, once they are many.

        Args:
            time_ms: event time of the earliest look-up, ms.
            reached_ms: time up to which all rows are there.
        """
        self._horizon = max(self._horizon, time_ms)
        if any([table.forget(self._horizon, reached_ms) for table in self.tables.values()]):
            self._measure()

    def state(self, share: tuple[int, int], *, whole: bool) -> SourceState:
        """State without partitions: the bounds of each versioned table, and if `whole` its rows."""
        rows = {topic: saved.export(self._horizon, share) for topic, saved in self._saved.items() if whole}
        bounds = {topic: saved.bounds for topic, saved in self._saved.items()}
        return SourceState(tables=rows, bounds=bounds)

    @property
    def timed(self) -> dict[str, LookupTable]:
        """Topic → versioned table."""
        return {topic: table for topic, table in self.tables.items() if table.versions is not None}

    def _measure(self) -> None:
        for topic, table in self.tables.items():
            metrics.lookup_bytes.labels(topic).set(table.bytes)
            metrics.lookup_keys.labels(topic).set(table.known)
            ended = (
                metrics.lookup_expired.labels(topic),
                metrics.lookup_evicted.labels(topic),
            )  # 0 from the start
            versions = table.versions
            metrics.lookup_versions.labels(topic).set(0 if versions is None else versions.older)
            if versions is None:
                continue
            expired, evicted = self._ended.get(topic, (0, 0))
            ended[0].inc(versions.expired - expired)
            ended[1].inc(versions.evicted - evicted)
            if versions.evicted and not evicted:
                _log.warning(
                    "look-up table %s is full: rows that changed longest ago leave; raise its max_bytes (%d)",
                    topic,
                    table.table.max_bytes,
                )
            self._ended[topic] = versions.expired, versions.evicted

    def mark(self) -> None:
        """Close the current generation of every table."""
        for table in self.tables.values():
            table.mark()

    def bytes_read(self) -> dict[str, int]:
        """Topic → bytes read so far."""
        return self._source.bytes_read() if self._source is not None else {}

    def close(self) -> None:
        """Stop reading."""
        if self._source is not None:
            self._source.close()
