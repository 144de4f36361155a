"""The example source: from raw logs to labelled examples, the same sequence however they are read.

    tables ─► LookupTable ──────────────────────────────────────────────┐ columns of the look-ups
    streams ─► Source ─chunks─► Partition: merge ─► label join ─► ready ─┴─► take(k) ─► Examples

Rank r of N owns the partitions p with p mod N = r. Threads of the sources only fetch and decode; all state lives
in the caller's thread, so that a snapshot between two calls is exact.
"""

from __future__ import annotations

import time
from collections.abc import Mapping
from dataclasses import dataclass

import numpy as np
import numpy.typing as npt
import pyarrow as pa

from ingest import dtypes, metrics
from ingest.deadletter import DeadLetters
from ingest.label_join import INSTANCE, TIME, USER, lookup_column, used_columns
from ingest.lookup import LookupTable
from ingest.merge import LAST
from ingest.partition import Partition
from ingest.pipeline import Pipeline
from ingest.sources.base import Source, open_source
from ingest.state import SourceState
from kernels.errors import ConfigError
from kernels.history import Histories

I64 = npt.NDArray[np.int64]
I32 = npt.NDArray[np.int32]
F32 = npt.NDArray[np.float32]


@dataclass(frozen=True)
class Examples:
    """b labelled examples in training order.

    columns: the roots of the pipeline's plan, by name; a look-up's are null where its key is unknown.
    label: float32[b], 0 or 1. user, instance: int64[b], keys of the user and of the join. time_ms: int64[b],
    event time of the impression. order: int64[b], partition: int32[b]: place in the global sequence.
    """

    columns: pa.RecordBatch
    label: F32
    user: I64
    instance: I64
    time_ms: I64
    order: I64
    partition: I32

    def __len__(self) -> int:
        return len(self.label)


@dataclass(frozen=True)
class SourceStats:
    """Counts since the start of the logs (events: since the start of this process), over own partitions."""

    events: Mapping[str, int]
    duplicates: Mapping[str, int]
    late_clicks: int
    unmatched_clicks: int
    corrections: int
    pending: int
    ready: int
    waiting: int


class ExampleSource:
    """Labelled examples of this rank's partitions of a pipeline's logs.

    Args:
        url: `kafka://…` or `file:…`.
        until_end: read to the end that the logs have at the start, then release all that waits and end.
        until_idle_s: `quiet` becomes true when nothing has come for so long; the caller then calls `finish` on
            every rank.
        idle_s: in a live log, a topic partition without news for so long holds no other one back.
        state: where to go on; partitions that it does not know start at the beginning.

    Look-up tables are read completely by the constructor, and followed later. A look-up happens when its example
    is taken.

    Raises ConfigError, ConnectError.
    """

    def __init__(
        self,
        pipeline: Pipeline,
        url: str,
        *,
        rank: int,
        world: int,
        until_end: bool,
        until_idle_s: float | None = None,
        idle_s: float = 2.0,
        dead_letters: DeadLetters,
        state: SourceState | None = None,
    ) -> None:
        self.pipeline = pipeline
        self._topics = {stream.topic: i for i, stream in enumerate(pipeline.streams)}
        self._until_end, self._until_idle_s, self._idle_s = until_end, until_idle_s, idle_s
        self._finished = False
        self._generation = 1
        self._events = dict.fromkeys(self._topics, 0)
        self._counted: dict[str, int] = {}
        self._selected: tuple[I64, I32] | None = None
        self._tables_source: Source | None = None
        self.tables: dict[str, LookupTable] = {}
        """Latest rows of each look-up table, by topic."""
        try:
            self._load_tables(url, dead_letters)
            self._source = open_source(
                url,
                pipeline.streams,
                until_end=until_end,
                dead_letters=dead_letters,
                columns=used_columns(pipeline),
            )
            self._has = self._source.topics()
            self._check_copartitioned(url)
            own = {p for numbers in self._has.values() for p in numbers if p % world == rank}
            known = (state or SourceState()).select(own)
            self._partitions = {p: Partition(pipeline, p, known.partitions.get(p)) for p in sorted(own)}
            starts = {p: partition.positions() for p, partition in self._partitions.items()}
            self._source.assign(
                {
                    (topic, p): starts[p][topic]
                    for topic, numbers in self._has.items()
                    for p in numbers
                    if p in own
                }
            )
            self._news = {(topic, p): time.monotonic() for topic in self._topics for p in own}
            self._last_news = time.monotonic()
            self._source.start()
        except BaseException:
            self.close()
            raise
        self._advance()

    # Reading

    def poll(self, max_wait_s: float) -> bool:
        """Move what has arrived into the ready queue, waiting up to `max_wait_s` for something to arrive.

        Returns whether anything moved.
        """
        self._follow_tables()
        if not self._finished:
            for chunk in self._source.poll(max_wait_s):
                self._partitions[chunk.partition].add(self._topics[chunk.topic], chunk)
                self._events[chunk.topic] += len(chunk)
                self._last_news = self._news[chunk.topic, chunk.partition] = time.monotonic()
        return self._advance()

    def finish(self) -> None:
        """Read no more: release all that waits, as at the end of the logs."""
        self._finished = True
        self._advance()

    def close(self) -> None:
        """Stop the reading threads."""
        for source in (self._tables_source, getattr(self, "_source", None)):
            if source is not None:
                source.close()

    @property
    def frontier(self) -> int:
        """Every later example has an order of at least this; int64 max when none comes for now."""
        return min((p.frontier for p in self._partitions.values()), default=LAST)

    @property
    def ended(self) -> bool:
        """Whether every example that will ever come is ready (or taken)."""
        return self._finished or (
            self._until_end and all(self._at_end(t, p) for p in self._partitions for t in self._topics)
        )

    @property
    def idle(self) -> bool:
        """Whether every own topic partition has ended or is without news for `idle_s`."""
        return all(all(self._free(p)) for p in self._partitions)

    @property
    def quiet_s(self) -> float:
        """Seconds since something arrived; 0 while there is more to read."""
        if not all(self._at_end(t, p) for p in self._partitions for t in self._topics):
            return 0.0
        return time.monotonic() - self._last_news

    @property
    def quiet(self) -> bool:
        """Whether nothing has arrived for `until_idle_s`."""
        return self._until_idle_s is not None and self.quiet_s >= self._until_idle_s

    # Giving

    def orders(self, limit: int) -> tuple[I64, I32]:
        """(orders int64[k], partitions int32[k]) of the first k = min(limit, ready) examples, in the global
        sequence of (order, partition, number in the partition)."""
        if self._selected is None or len(self._selected[0]) < limit:
            parts = [partition.ready.orders(limit) for partition in self._partitions.values()]
            order = np.concatenate([*parts, np.empty(0, np.int64)])
            numbers = np.array(list(self._partitions), np.int32)
            partition = np.repeat(numbers, [len(part) for part in parts])
            first = np.argsort(order, kind="stable")[:limit]
            self._selected = order[first], partition[first]
        order, partition = self._selected
        return order[:limit], partition[:limit]

    def take(self, k: int) -> Examples:
        """Remove the first k examples of that sequence, with their look-ups. Raises ValueError if there are
        fewer."""
        order, partition = self.orders(k)
        if len(order) < k:
            raise ValueError(f"{k} examples asked for, {len(order)} are ready")
        self._selected = None
        parts = [
            part
            for number, queue in self._partitions.items()
            for part in queue.ready.take(int(np.count_nonzero(partition == number)))
        ]
        if not parts:
            return self._nothing()
        # Rows come partition by partition; this puts them into the sequence.
        place = np.empty(k, np.int64)
        place[np.argsort(partition, kind="stable")] = np.arange(k)
        rows = pa.concat_batches([part.rows for part in parts]).take(pa.array(place))
        label = np.concatenate([part.label for part in parts])[place]
        user, instance, time_ms = (rows.column(name).to_numpy() for name in (USER, INSTANCE, TIME))
        return Examples(self._columns(rows), label, user, instance, time_ms, order, partition)

    # State

    def snapshot(self) -> SourceState:
        """The state of this moment: a source that is restored from it gives the same examples as this one from
        here on."""
        return SourceState({number: partition.state() for number, partition in self._partitions.items()})

    def mark(self) -> int:
        """Close the current generation of tables and histories and return its number g: `table_changes(g)` and
        `history_changes(g)` give what changed after it. Numbers start at 1 in every process."""
        for table in self.tables.values():
            table.mark()
        for partition in self._partitions.values():
            partition.joiner.behaviours.mark()
        self._generation += 1
        return self._generation - 1

    def history_changes(self, since: int = 0) -> dict[str, Histories]:
        """Name of each recent() root → histories of this rank's users that changed after mark `since` (0: all)."""
        changed: dict[str, list[Histories]] = {root.name: [] for root in self.pipeline.history_roots}
        for partition in self._partitions.values():
            for name, histories in partition.joiner.behaviours.changed(since).items():
                changed[name].append(histories)
        return {
            name: Histories(*(np.concatenate(column) for column in zip(*found, strict=True)))
            for name, found in changed.items()
            if found
        }

    @property
    def stats(self) -> SourceStats:
        """Counters over this rank's partitions."""
        partitions = self._partitions.values()
        stats = [partition.joiner.stats for partition in partitions]
        return SourceStats(
            events=dict(self._events),
            duplicates={topic: sum(s.duplicates.get(topic, 0) for s in stats) for topic in self._topics},
            late_clicks=sum(s.late_clicks for s in stats),
            unmatched_clicks=sum(s.unmatched_clicks for s in stats),
            corrections=sum(s.corrections for s in stats),
            pending=sum(partition.joiner.pending for partition in partitions),
            ready=sum(len(partition.ready) for partition in partitions),
            waiting=sum(partition.waiting for partition in partitions),
        )

    # Inside

    def _check_copartitioned(self, url: str) -> None:
        """Kafka topics must agree in their number of partitions; a folder may lack files of some."""
        counts = {topic: len(numbers) for topic, numbers in self._has.items()}
        if url.startswith("kafka:") and len(set(counts.values())) > 1:
            found = " and ".join(f"{topic} has {count}" for topic, count in counts.items())
            raise ConfigError(f"topics that are joined must have equally many partitions, but {found}")

    def _at_end(self, topic: str, partition: int) -> bool:
        return partition not in self._has[topic] or self._source.at_end(topic, partition)

    def _free(self, partition: int) -> list[bool]:
        """Which topics of a partition hold nothing back."""
        now = time.monotonic()
        wait_s = 0.0 if self._until_end else self._idle_s
        return [
            self._finished
            or (self._at_end(topic, partition) and now - self._news[topic, partition] >= wait_s)
            for topic in self._topics
        ]

    def _advance(self) -> bool:
        moved = False
        ends = self._until_end or self._finished
        for number, partition in self._partitions.items():
            free = self._free(number)
            moved |= partition.advance(free, ended=ends and all(free))
        if moved:
            self._selected = None
            self._report()
        return moved

    def _columns(self, rows: pa.RecordBatch) -> pa.RecordBatch:
        """The plan's roots, in their order."""
        found = dict(zip(rows.schema.names, rows.columns, strict=True))
        for topic, roots in self.pipeline.lookup_roots.items():
            looked_up = self.tables[topic].take(np.asarray(found[lookup_column(topic)]))
            found |= {root.name: looked_up.column(root.params[0].column) for root in roots}
        names = [root.name for root in self.pipeline.plan.roots]
        return pa.RecordBatch.from_arrays([found[name] for name in names], names=names)

    def _nothing(self) -> Examples:
        empty = np.empty(0, np.int64)
        fields = [(root.name, dtypes.arrow_type(root.dtype)) for root in self.pipeline.plan.roots]
        columns = pa.RecordBatch.from_pylist([], schema=pa.schema(fields))
        return Examples(columns, np.empty(0, np.float32), empty, empty, empty, empty, np.empty(0, np.int32))

    def _report(self) -> None:
        """Bring the Prometheus metrics up to date."""
        stats = self.stats
        metrics.pending_joins.set(stats.pending)
        counts = {f"duplicates {topic}": count for topic, count in stats.duplicates.items()}
        for name, count in {**counts, "late": stats.late_clicks}.items():
            new = count - self._counted.get(name, 0)
            self._counted[name] = count
            counter = (
                metrics.late_clicks if name == "late" else metrics.duplicate_events.labels(name.split()[1])
            )
            counter.inc(new)
