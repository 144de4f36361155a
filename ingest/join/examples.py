"""The example source: from raw logs to labelled examples, the same sequence however they are read.

    tables ─► Lookups ──────────────────────────────────────────────────┐ columns of the look-ups
    streams ─► Source ─chunks─► Partition: merge ─► label join ─► ready ─┴─► take(k) ─► Examples

Rank r of N owns the partitions p with p mod N = r. Threads of the sources only fetch and decode; all state
lives in the caller's thread, so that a snapshot between two calls is exact.
"""

from __future__ import annotations

import time
from collections.abc import Mapping
from dataclasses import asdict, dataclass
from typing import Any

import numpy as np
import numpy.typing as npt
import pyarrow as pa

from livectr.ingest import metrics
from livectr.ingest.chunks import Position, TopicPartition
from livectr.ingest.dead_letters.letters import DeadLetters
from livectr.ingest.dead_letters.usable import MIN_USABLE, judge
from livectr.ingest.decode.arrow_rows import as_one
from livectr.ingest.join.held import HeldBack
from livectr.ingest.join.label_join import label_columns, required_columns, used_columns
from livectr.ingest.join.lookup import Lookups, LookupTable
from livectr.ingest.join.partition import Partition
from livectr.ingest.join.payload import INSTANCE, ITEM, TIME, USER, lookup_column
from livectr.ingest.join.state import SourceState
from livectr.ingest.join.stats import OF_PROCESS, Reporter, SourceStats
from livectr.ingest.language import dtypes
from livectr.ingest.limits import LIMITS, RecordLimits
from livectr.ingest.pipeline import Pipeline
from livectr.ingest.sources.source import Source, open_source
from livectr.kernels.errors import ConfigError
from livectr.kernels.stream.clock import LAST
from livectr.kernels.stream.history import Histories

WAITING_ROWS = 1 << 16
"""Records of a topic that may wait for another topic of their partition before the topic is held back."""
READY_ROWS = 1 << 17
"""Examples that may be ready, shared by the partitions, while one of these is behind."""

I64 = npt.NDArray[np.int64]
I32 = npt.NDArray[np.int32]
F32 = npt.NDArray[np.float32]


@dataclass(frozen=True)
class Examples:
    """b labelled examples in training order.

    columns: the roots of the pipeline's plan, by name; a look-up's are null where its key is unknown, and
    may be dictionary-encoded.
    label: float32[b], 0 or 1. user, instance, item: int64[b], keys of the user, of the join and of the item
    (0 without an items table). time_ms: int64[b], event time of the impression. order: int64[b], partition:
    int32[b]: place in the global sequence.
    """

    columns: pa.RecordBatch
    label: F32
    user: I64
    instance: I64
    time_ms: I64
    item: I64
    order: I64
    partition: I32

    def __len__(self) -> int:
        return len(self.label)


class ExampleSource:
    """Labelled examples of this rank's partitions of a pipeline's logs.

    Args:
        url: `kafka://…` or `file:…`.
        until_end: read to the end that the logs have at the start, then release all that waits and end.
        until_idle_s: `quiet` becomes true when nothing has come for so long; the caller then calls `finish`
            on every rank.
        idle_partition_s: in a live log, a topic partition without news for so long holds no other one back.
        state: where to go on; partitions that it does not know start at the beginning.
        limits: records beyond them are dead letters.
        facts: keep look-up tables whole, as publishing needs them; else only what features need of them.
        min_usable: least share of a look-up table's rows that must be usable; see
        `ingest.dead_letters.usable.complaint`.

    Look-up tables are read completely by the constructor, and followed later. A look-up happens when its
    example is taken.

    Raises ConfigError, ConnectError; DataError when too few rows of a look-up table are usable.
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
        idle_partition_s: float = 2.0,
        dead_letters: DeadLetters,
        state: SourceState | None = None,
        facts: bool = True,
        limits: RecordLimits = LIMITS,
        min_usable: float = MIN_USABLE,
    ) -> None:
        self.pipeline = pipeline
        self._limits = limits
        self._topics = {stream.topic: i for i, stream in enumerate(pipeline.streams)}
        self._until_end, self._until_idle_s, self._idle_s = until_end, until_idle_s, idle_partition_s
        self._finished = False
        self._generation = 1
        self._events = dict.fromkeys(self._topics, 0)
        self._selected: tuple[I64, I32] | None = None
        self._held: frozenset[TopicPartition] = frozenset()
        letters = dead_letters if rank == 0 else DeadLetters(None)  # every rank reads every table
        self._roots = [root.name for root in pipeline.plan.roots]
        self._looked_up = {  # topic of a table → column of it → root
            topic: {root.params[0].column: root.name for root in roots}
            for topic, roots in pipeline.lookup_roots.items()
            if roots
        }
        self._lookup_counts = {  # topic of a table → of keys with a row, and without one
            topic: (metrics.lookups.labels(topic, "true"), metrics.lookups.labels(topic, "false"))
            for topic in self._looked_up
        }
        tables = pipeline.tables if facts else pipeline.narrow_tables
        self._lookups = Lookups(tables, url, until_end=until_end, dead_letters=letters, limits=limits)
        self._examples = self._clicked = 0
        try:
            judge(letters.rows, dead_letters.place, min_usable=min_usable, final=True)
            self._source = self._open(url, dead_letters, rank, world, state or SourceState())
        except BaseException:
            self._lookups.close()
            raise
        self._reporter = Reporter(self.stats)
        self._held_back = HeldBack(list(self._topics), time.monotonic())
        self._advance()

    def _open(self, url: str, dead_letters: DeadLetters, rank: int, world: int, state: SourceState) -> Source:
        """Find this rank's partitions, restore them and start to read where they go on."""
        source = open_source(
            url,
            self.pipeline.streams,
            until_end=self._until_end,
            dead_letters=dead_letters,
            columns=used_columns(self.pipeline),
            required=required_columns(self.pipeline),
            limits=self._limits,
            labels=label_columns(self.pipeline),
        )
        try:
            self._has = source.topics()
            self._check_copartitioned(url)
            own = sorted({p for numbers in self._has.values() for p in numbers if p % world == rank})
            self._partitions = {
                p: Partition(self.pipeline, p, state.partitions.get(p), dead_letters) for p in own
            }
            starts = {p: partition.positions() for p, partition in self._partitions.items()}
            places = [(topic, p) for topic, numbers in self._has.items() for p in numbers if p in starts]
            source.assign({(topic, p): starts[p][topic] for topic, p in places})
            self._last_news = time.monotonic()
            self._news = {(topic, p): self._last_news for topic in self._topics for p in own}
            source.start()
        except BaseException:
            source.close()
            raise
        return source

    # Reading

    def poll(self, max_wait_s: float) -> bool:
        """Move what has arrived into the ready queue, waiting up to `max_wait_s` for something to arrive.

        Returns whether anything moved.
        """
        self._lookups.follow()
        if not self._finished:
            self._hold()
            for chunk in self._source.poll(max_wait_s):
                self._partitions[chunk.partition].add(self._topics[chunk.topic], chunk)
                self._events[chunk.topic] += len(chunk)
                self._last_news = self._news[chunk.topic, chunk.partition] = time.monotonic()
            self._wait_for_unread()
        return self._advance()

    def finish(self) -> None:
        """Read no more: release all that waits, as at the end of the logs."""
        self._finished = True
        self._advance()

    def close(self) -> None:
        """Stop the reading threads."""
        self._lookups.close()
        self._source.close()

    @property
    def frontier(self) -> int:
        """Every later example has an order of at least this; int64 max when none comes for now."""
        return min((p.frontier for p in self._partitions.values()), default=LAST)

    @property
    def ended(self) -> bool:
        """Whether every example that will ever come is ready (or taken)."""
        return (self._finished or self._until_end) and all(p.ended for p in self._partitions.values())

    @property
    def idle(self) -> bool:
        """Whether every own topic partition has ended or is without news for `idle_partition_s`."""
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

    @property
    def behind(self) -> int:
        """About how many records of this rank's partitions are not read yet."""
        return sum(self._source.lag().values())

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
        rows = as_one([part.rows for part in parts])
        label = np.concatenate([part.label for part in parts])
        if len(self._partitions) > 1:
            rows, label = rows.take(pa.array(place)), label[place]
        self._examples, self._clicked = self._examples + k, self._clicked + int(np.count_nonzero(label))
        user, instance, time_ms, item = (
            rows.column(name).to_numpy() for name in (USER, INSTANCE, TIME, ITEM)
        )
        return Examples(self._columns(rows), label, user, instance, time_ms, item, order, partition)

    # State

    def snapshot(self) -> SourceState:
        """The state of this moment: a source that is restored from it goes on with the same examples as this
        one. Look-up tables are not part of it: they are read again."""
        return SourceState({number: partition.state() for number, partition in self._partitions.items()})

    def positions(self) -> dict[TopicPartition, Position]:
        """Position from which a source restored from this moment's snapshot reads on."""
        return {
            (topic, number): at
            for number, partition in self._partitions.items()
            for topic, at in partition.positions().items()
        }

    def counted(self) -> dict[str, Any]:
        """The counts of `OF_PROCESS` that go with `snapshot`: of events, those before `positions`."""
        stats = asdict(self.stats)
        for partition in self._partitions.values():
            for topic, waiting in zip(self._topics, partition.waiting_of(), strict=True):
                stats["events"][topic] -= waiting
        return {name: stats[name] for name in OF_PROCESS}

    @property
    def tables(self) -> Mapping[str, LookupTable]:
        """Latest rows of each look-up table, by topic."""
        return self._lookups.tables

    def mark(self) -> int:
        """Close the current generation of tables and histories and return its number g: `history_changes(g)`
        and each table's `changed(g)` give what changed after it. Numbers start at 1 in every process."""
        self._lookups.mark()
        for partition in self._partitions.values():
            partition.joiner.behaviors.mark()
        self._generation += 1
        return self._generation - 1

    def history_changes(self, since: int = 0) -> dict[str, Histories]:
        """Name of each recent() root → histories of this rank's users that changed after mark `since`."""
        changed: dict[str, list[Histories]] = {root.name: [] for root in self.pipeline.history_roots}
        for partition in self._partitions.values():
            for name, histories in partition.joiner.behaviors.changed(since).items():
                changed[name].append(histories)
        return {
            name: Histories(*(np.concatenate(column) for column in zip(*found, strict=True)))
            for name, found in changed.items()
            if found
        }

    @property
    def stats(self) -> SourceStats:
        """Counters over this rank's partitions."""
        bytes_read = self._lookups.bytes_read() | self._source.bytes_read()
        lookups = {
            topic: {"found": table.found, "missing": table.missing}
            for topic, table in self.tables.items()
            if topic in self._looked_up
        }
        return SourceStats.of(
            self._partitions.values(),
            self._events,
            bytes_read,
            examples=self._examples,
            clicked=self._clicked,
            lookups=lookups,
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

    def _wait_for_unread(self) -> None:
        """What is not read to its end is not silent, however long nothing comes: the broker may be away, and
        its producers with it. Their silence counts from when it answers again."""
        now = time.monotonic()
        for place in self._news:
            if not self._at_end(*place):
                self._last_news = self._news[place] = now

    def _free(self, partition: int) -> list[bool]:
        """Which topics of a partition hold nothing back."""
        if self._finished:
            return [True] * len(self._topics)
        since = time.monotonic() - (0.0 if self._until_end else self._idle_s)
        return [
            self._news[topic, partition] <= since and self._at_end(topic, partition) for topic in self._topics
        ]

    def _advance(self) -> bool:
        moved = False
        ends = self._until_end or self._finished
        now_ms = LAST if ends else time.time_ns() // 1_000_000
        frees = {number: self._free(number) for number in self._partitions}
        for number, partition in self._partitions.items():
            free = frees[number]
            moved |= partition.advance(free, ended=ends and all(free), now_ms=now_ms)
        if not self._finished and self._held_back.due(now_s := time.monotonic()):
            unread = {place for place in self._news if not self._at_end(*place)} - self._held
            self._held_back.look(self._partitions, unread, frees, now_s)
        if moved:
            self._selected = None
            self._reporter.report(self.stats)
        return moved

    def _hold(self) -> None:
        """Back-pressure: read no more of what runs ahead of the slowest topic or partition."""
        slowest = self.frontier
        share = READY_ROWS // max(1, len(self._partitions))
        held = {
            (topic, number)
            for number, partition in self._partitions.items()
            for topic, index in self._topics.items()
            if index in partition.ahead(WAITING_ROWS)
            or (len(partition.ready) >= share and partition.frontier > slowest)
        }
        if held != self._held:
            self._held = frozenset(held)
            self._source.hold(self._held)

    def _columns(self, rows: pa.RecordBatch) -> pa.RecordBatch:
        """The plan's roots, in their order."""
        found = dict(zip(rows.schema.names, rows.columns, strict=True))
        for topic, wanted in self._looked_up.items():
            keys = found[lookup_column(topic)].to_numpy()
            table = self.tables[topic]
            before = table.found, table.missing
            columns = table.columns(keys, list(wanted))
            found_rows, missing_rows = self._lookup_counts[topic]
            found_rows.inc(table.found - before[0])
            missing_rows.inc(table.missing - before[1])
            found |= {wanted[name]: column for name, column in columns.items()}
        if not self._roots:  # nothing is computed; the number of rows stays
            return rows.select([])
        return pa.RecordBatch.from_arrays([found[name] for name in self._roots], names=self._roots)

    def _nothing(self) -> Examples:
        empty = np.empty(0, np.int64)
        fields = [(root.name, dtypes.arrow_type(root.dtype)) for root in self.pipeline.plan.roots]
        columns = pa.RecordBatch.from_pylist([], schema=pa.schema(fields))
        label, partition = np.empty(0, np.float32), np.empty(0, np.int32)
        return Examples(columns, label, empty, empty, empty, empty, empty, partition)
