"""Example source: raw logs become labelled examples, in the same sequence however chunks arrive.

    tables ─► Lookups ────────────────────────────────────────────────────┐ look-up join
    streams ─► Source ─chunks─► Partition: merge ─► label join ─► ready ──┴─► pop(k) ─► Examples

Rank r of N owns the partitions p with p mod N = r. Reading threads only fetch and decode. All state belongs
to the caller's thread, so a snapshot between two calls is exact.
"""

from __future__ import annotations

import logging
import time
from collections.abc import Collection, Mapping, Sequence
from dataclasses import dataclass, replace
from typing import Any

import numpy as np
import numpy.typing as npt

from livectr.ingest.chunks import Files, Position, TopicPartition
from livectr.ingest.dead_letters.letters import DeadLetters
from livectr.ingest.dead_letters.usable import MIN_USABLE, judge
from livectr.ingest.join.apart import Sampled, together
from livectr.ingest.join.arrivals import Arrivals
from livectr.ingest.join.back_pressure import BackPressure
from livectr.ingest.join.counters import Counters, Gather
from livectr.ingest.join.decisions import Decision
from livectr.ingest.join.example_columns import ExampleColumns, Examples
from livectr.ingest.join.histories import BehaviorHistories, changes_of
from livectr.ingest.join.label_join import label_columns, required_columns, used_columns
from livectr.ingest.join.lookup import LookupTable
from livectr.ingest.join.lookups import Lookups
from livectr.ingest.join.partition import Partition
from livectr.ingest.join.ready import NO_EXAMPLES, ReadySequence
from livectr.ingest.join.short_logs import ReplayWatch
from livectr.ingest.join.stalls import StallWatch
from livectr.ingest.join.state import Changes, SourceState
from livectr.ingest.join.stats import Counts, Reporter, SourceStats
from livectr.ingest.limits import LIMITS, RecordLimits
from livectr.ingest.pipeline import Pipeline
from livectr.ingest.sources.source import Source, open_source
from livectr.kernels.stream.clock import FIRST, LAST
from livectr.kernels.stream.history import Histories
from livectr.system.errors import ConfigError

_log = logging.getLogger(__name__)
TELL_EVERY_S = 0.5
LONGEST_HOLD_MS = 3_600_000
"""Longest time by which what has ended holds others back in a log that goes on: further behind is quiet."""
FILES = "files"
"""Name, in the state of a partition, of the files in which its positions lie, by topic."""
PASSED = "passed"
"""Name, in the state of a partition, of the greatest order of the batches before."""
I64 = npt.NDArray[np.int64]
I32 = npt.NDArray[np.int32]
Bools = npt.NDArray[np.bool_]


@dataclass(frozen=True)
class ReadOptions:
    """Options of an `ExampleSource`.

    Args:
        until_end: read up to the end that the logs have at the start, then release all examples and end.
        until_idle_s: `ExampleSource.quiet` becomes true when nothing has arrived for this long; the caller
            then calls `finish` on every rank. None: never.
        idle_partition_s: in a live log, a topic partition without new records for this long stops blocking
            the others.
        full_tables: keep all rows and columns of look-up tables, as publishing needs them; False: only
            the columns that features read.
        limits: records beyond them become dead letters.
        min_usable: least share of a look-up table's rows that must be usable; see
            `ingest.dead_letters.usable.complaint`.
        keeps: at the end, impressions whose label window has not passed wait in the state for a later run,
            which reads on. No effect where the label is a column.
        pauses: they wait until `end_waiting`, before which the source is `paused` and has not ended.
    """

    until_end: bool
    until_idle_s: float | None = None
    idle_partition_s: float = 2.0
    full_tables: bool = True
    limits: RecordLimits = LIMITS
    min_usable: float = MIN_USABLE
    keeps: bool = False
    pauses: bool = False


class ExampleSource:
    """Labelled examples of this rank's partitions of a pipeline's logs.

    The constructor reads look-up tables completely; `poll` follows their changes. An example gets its look-up
    rows when it leaves through `pop`: those that were valid at its impression's time. It leaves only when the
    tables are read far enough, which `frontier` waits for.

    Attributes:
        counters: of the examples that were popped.

    Args:
        pipeline: streams, tables and features to read for.
        url: `kafka://…` or `file:…`.
        options: see `ReadOptions`.
        rank, world: this process, 0 to N - 1, and the number of ranks N.
        dead_letters: receives bad records.
        state: state to resume from; partitions that it does not know start at the beginning.
        recorded: keep the decisions of the clock for `take_decisions`.
        follows: partition → decisions of another run, which are repeated until `release`; a partition without
            any had none. None: the clock decides.

    Raises:
        ConfigError: topics that are joined have different numbers of partitions.
        ConnectError: the brokers cannot be reached.
        DataError: too few rows of a look-up table are usable.
    """

    def __init__(
        self,
        pipeline: Pipeline,
        url: str,
        options: ReadOptions,
        *,
        rank: int,
        world: int,
        dead_letters: DeadLetters,
        state: SourceState | None = None,
        recorded: bool = False,
        follows: Mapping[int, Sequence[Decision]] | None = None,
    ) -> None:
        self.pipeline, self._options = pipeline, options
        self._recorded, self._follows = recorded, follows
        self._topics = {stream.topic: i for i, stream in enumerate(pipeline.streams)}
        self._leaves_ms = pipeline.log.soonest_ms
        self._finished, self._generation = False, 1
        self._reached = FIRST  # by partitions of any rank
        self._kept = options.keeps and pipeline.log.clicks is not None
        self._told_s = float("-inf")
        self._share, self._tables_reach = (rank, world), FIRST
        self._asked: Mapping[int, int] = {}
        self._counts = Counts(self._topics)
        known = state.partitions.values() if state is not None else ()
        self._passed = max((int(each.values.get(PASSED, FIRST)) for each in known), default=FIRST)
        letters = dead_letters if rank == 0 else DeadLetters(None)  # every rank reads every table
        self._lookups = Lookups(
            pipeline.tables if options.full_tables else pipeline.narrow_tables,
            url,
            until_end=options.until_end,
            dead_letters=letters,
            limits=options.limits,
            versioned=pipeline.versioned,
            saved=state,
        )
        self._columns = ExampleColumns(pipeline, self._lookups.tables)
        self.counters = Counters(pipeline)
        try:
            judge(letters.rows, dead_letters.place, min_usable=options.min_usable, final=True)
            self._source, self._partitions = self._open(url, dead_letters, rank, world, state)
        except BaseException:
            self._lookups.close()
            raise
        self._ready = ReadySequence({number: each.ready for number, each in self._partitions.items()})
        self._back_pressure = BackPressure(self._source, self._topics, self._partitions)
        self._reporter = Reporter(self.stats)
        self._stalls = StallWatch(pipeline.streams, time.monotonic())
        self._replay = None if follows is None else ReplayWatch([*self._topics], time.monotonic())
        self._advance()

    @property
    def remarks(self) -> list[str]:
        """Sentences on what of the log is left out."""
        return self._source.remarks

    def _open(
        self, url: str, dead_letters: DeadLetters, rank: int, world: int, state: SourceState | None
    ) -> tuple[Source, dict[int, Partition]]:
        """Find and restore this rank's partitions, and start to read at their positions."""
        pipeline, saved = self.pipeline, state or SourceState()
        source = open_source(
            url,
            pipeline.streams,
            until_end=self._options.until_end,
            dead_letters=dead_letters,
            columns=used_columns(pipeline),
            required=required_columns(pipeline),
            limits=self._options.limits,
            labels=label_columns(pipeline),
        )
        try:
            available = source.topics()
            _check_copartitioned(url, available)
            own = sorted({p for numbers in available.values() for p in numbers if p % world == rank})
            partitions = {
                p: Partition(
                    pipeline,
                    p,
                    saved.partitions.get(p),
                    dead_letters,
                    recorded=self._recorded,
                    follows=None if self._follows is None else self._follows.get(p, ()),
                )
                for p in own
            }
            starts = {p: partition.positions() for p, partition in partitions.items()}
            places = [(topic, p) for topic, numbers in available.items() for p in numbers if p in starts]
            source.assign(
                {(topic, p): starts[p][topic] for topic, p in places},
                {
                    (topic, p): saved.partitions[p].values.get(FILES, {}).get(topic, ())
                    for topic, p in places
                    if p in saved.partitions
                },
            )
            idle_s = 0.0 if self._options.until_end else self._options.idle_partition_s
            self._arrivals = Arrivals(source, list(self._topics), own, set(places), idle_s=idle_s)
            source.start()
        except BaseException:
            source.close()
            raise
        return source, partitions

    # Reading

    def poll(self, max_wait_s: float, rows: int | None = None) -> bool:
        """Read what has arrived and move finished examples into the ready queues.

        Args:
            max_wait_s: seconds to wait for the first record.
            rows: leave further records to the next call once there are so many; None: take all.

        Returns:
            True when records or examples moved.
        """
        self._lookups.follow(max_wait_s if self._finished else 0.0)
        if not self._finished:
            self._back_pressure.apply(self._bound)
            for chunk in self._source.poll(max_wait_s, rows):
                self._partitions[chunk.partition].add(self._topics[chunk.topic], chunk)
                self._counts.read(chunk.topic, len(chunk))
                self._arrivals.add(chunk.topic, chunk.partition)
            self._arrivals.await_unread()
        moved = self._advance()
        self.tell()
        return moved

    def tell(self) -> None:
        """Bring the gauges of reading up to date: a caller that has enough examples does not poll."""
        if time.monotonic() - self._told_s < TELL_EVERY_S:
            return
        self._told_s = time.monotonic()
        self._source.tell(self._held())
        self._lookups.tell()
        self.counters.tell()
        if not self._finished:
            self._stalls.tell(self._partitions, self._unread())

    def finish(self) -> None:
        """Stop reading, and do with waiting examples as at the end of the logs."""
        self._finished = True
        self.release()
        self._advance()

    def end_waiting(self) -> None:
        """Release the impressions that wait at the end, with the labels that are known."""
        self._kept = False
        self._advance()

    def close(self) -> None:
        """Stop the reading threads."""
        self._lookups.close()
        self._source.close()

    @property
    def frontier(self) -> int:
        """Watermark: later examples have at least this order, tables are read for all before; LAST: none.

        Of a log that goes on, partitions that have ended hold the others back, as in the run that reads on.
        """
        held = min((p.held for p in self._partitions.values()), default=LAST)
        return min(held if self._kept else self._bound, self._tables_reach)

    @property
    def strict_frontier(self) -> int:
        """Frontier that does not depend on the clock: no topic partition counts as idle or ended."""
        bound = min((p.strict_frontier for p in self._partitions.values()), default=LAST)
        return min(bound, self._tables_reach)

    @property
    def topic_count(self) -> int:
        """Number of event topics."""
        return len(self._topics)

    def release(self) -> None:
        """Let the clock decide from here on."""
        self._asked = {}
        for partition in self._partitions.values():
            partition.release()

    def take_decisions(self) -> dict[int, list[tuple[int, Decision]]]:
        """Partition → decisions of the clock since the last call, with their numbers."""
        made = {number: partition.take_decisions() for number, partition in self._partitions.items()}
        return {number: decisions for number, decisions in made.items() if decisions}

    @property
    def ended(self) -> bool:
        """True when no example will become ready any more."""
        return self._at_end and not (self._kept and self._options.pauses)

    @property
    def paused(self) -> bool:
        """True when no example will become ready before `end_waiting`."""
        return self._at_end and self._kept and self._options.pauses

    @property
    def _at_end(self) -> bool:
        ended = all(p.ended for p in self._partitions.values()) and self._tables_reach == LAST
        return ended and (self._finished or self._options.until_end)

    @property
    def _bound(self) -> int:
        """Watermark of the partitions."""
        return min((p.frontier for p in self._partitions.values()), default=LAST)

    @property
    def _quiet_ms(self) -> int:
        """Time up to which topics and partitions that have ended hold nothing back: others are further."""
        newest = max(self.newest_ms, self._reached)
        return max(newest - min(self.pipeline.log.window_ms, LONGEST_HOLD_MS), FIRST)

    @property
    def newest_ms(self) -> int:
        """Event time that the newest topic of this rank's partitions has reached."""
        return max((max(p.bounds) for p in self._partitions.values()), default=FIRST)

    def reached(self, newest_ms: int) -> bool:
        """Note the event time that partitions of any rank have reached; True: it is new, and moves ends."""
        known, self._reached = self._reached, max(self._reached, newest_ms)
        ends = self._options.until_end or self._finished
        if newest_ms <= known or not ends or not self._kept or self._share[1] == 1:
            return False
        self._advance()
        return True

    @property
    def idle(self) -> bool:
        """True when each own topic partition has ended, or was idle for `idle_partition_s`."""
        return all(all(self._idle(p)) for p in self._partitions)

    @property
    def quiet_s(self) -> float:
        """Seconds since the last record arrived; 0 while there is more to read."""
        return self._arrivals.quiet_s

    @property
    def quiet(self) -> bool:
        """True when no record has arrived for `until_idle_s`."""
        until_idle_s = self._options.until_idle_s
        return until_idle_s is not None and self.quiet_s >= until_idle_s

    @property
    def behind(self) -> int:
        """Approximate count of records of this rank's partitions that are not read yet."""
        return sum(self._source.lag().values())

    @property
    def held(self) -> int:
        """Records that wait for those of another topic, and examples that are ready."""
        return sum(self._held().values())

    def _held(self) -> dict[TopicPartition, int]:
        """Topic partition → its part of `held`; an example counts as a record of the first topic."""
        return {
            (topic, number): rows + (0 if index else len(partition.ready))
            for number, partition in self._partitions.items()
            for (topic, index), rows in zip(self._topics.items(), partition.waiting_of(), strict=True)
        }

    @property
    def delivered(self) -> int:
        """Records that this process has read."""
        return sum(self._counts.events.values())

    @property
    def unread(self) -> int:
        """`behind`, without topic partitions that are paused."""
        paused = self._back_pressure.paused
        return sum(rows for place, rows in self._source.lag().items() if place not in paused)

    # Ready examples

    def orders(self, limit: int) -> tuple[I64, I32]:
        """Look at the first k = min(limit, ready) examples in the global sequence; they stay in the queues.

        The sequence is sorted by (order, partition, number in the partition).

        Returns:
            Their orders int64[k] and partitions int32[k].
        """
        return self._ready.orders(limit)

    def finals(self, limit: int) -> Bools:
        """bool[k], finals among the first k examples in the global sequence (see `orders`)."""
        return self._ready.finals(limit)

    def first_of(self, counts: Mapping[int, int]) -> tuple[I64, I32, Bools] | None:
        """Look at the first examples of some partitions, in the order of the global sequence.

        Args:
            counts: partition → number of examples; of partitions of other ranks, too.

        Returns:
            Their orders int64[k], partitions int32[k] and finals bool[k]; None while they are not ready, or
            tables are not read far enough for them.
        """
        self._back_pressure.allow(counts.values())
        self._asked = counts
        first = self._ready.first_of(counts)
        if first is None:
            return None
        self._asked = {}
        order = first[0]
        return None if len(order) and order[-1] >= self._tables_reach else first

    def pop(
        self,
        k: int,
        passed: int | None = None,
        counts: Mapping[int, int] | None = None,
        gather: Gather | None = None,
    ) -> Examples:
        """Remove the first k examples of the global sequence and join their look-up rows. Collective.

        Args:
            k: at most as many as are ready.
            passed: least order of the examples that any rank pops later; by default that of the last of the
                k. Rows that only earlier examples could look up are dropped.
            counts: partition → how many of the k are its examples, where they are not the first k of all.
            gather: gives the examples that all ranks pop at once, for counters; None: this rank is alone.

        Raises:
            ValueError: fewer than k examples are ready.
        """
        first = self.orders(k) if counts is None else self.first_of(counts)
        order, partition = NO_EXAMPLES if first is None else first[:2]
        if len(order) < k:
            raise ValueError(f"cannot pop {k} examples: {len(order)} are ready")
        if k == 0:
            if self.counters:
                self.counters.count(None, gather)
            self._pass(FIRST if passed is None else passed)
            return self._columns.no_examples()
        popped = self._ready.pop(order, partition)
        if counts is not None:
            self._ready.sort_again()
        counted = self.counters.count(popped, gather) if self.counters else {}
        examples = self._columns.examples(popped, self._passed, counted)
        self._counts.left(examples)
        self._pass(int(order[-1]) if passed is None else passed)
        return examples

    def _pass(self, order: int) -> None:
        """Drop the look-up rows that examples of at least this order do not see."""
        self._passed = max(self._passed, order)
        if self._columns.versioned:
            least = min(order, self._bound) - self._columns.span_ms
            self._lookups.forget(least, order - self._leaves_ms)

    def set_aside(self, examples: Examples, rows: Bools) -> None:
        """Note that rows bool[b] of examples that left cannot be learned."""
        self._counts.set_aside(examples, rows)

    def snapshot(self, *, whole: bool = True) -> SourceState:
        """Copy the current state: a source restored from it continues with the same examples.

        A look-up table is read again after a restart. The rows that its topic may lack by then are in the
        state, for this rank's share of the keys. Without `whole` it lacks what is saved as `changes`.
        """
        states = {number: each.state(whole=whole) for number, each in self._partitions.items()}
        files: dict[int, dict[str, Files]] = {number: {} for number in states}
        for (topic, number), found in self._source.files(self.positions()).items():
            files[number][topic] = found
        partitions = {
            number: replace(state, values={**state.values, PASSED: self._passed, FILES: files[number]})
            for number, state in states.items()
        }
        return replace(self._lookups.state(self._share, whole=whole), partitions=partitions)

    def changes(self) -> Changes:
        """Known keys, histories, and rows of look-up tables."""
        return Changes({n: p.joiner for n, p in self._partitions.items()}, self._lookups.timed, self._share)

    def positions(self) -> dict[TopicPartition, Position]:
        """Positions at which a source restored from a snapshot of this moment starts to read."""
        return {
            (topic, number): at
            for number, partition in self._partitions.items()
            for topic, at in partition.positions().items()
        }

    def counted(self) -> dict[str, Any]:
        """Counts of `stats.OF_PROCESS` that belong to a `snapshot`; events are counted up to `positions`."""
        waiting = [partition.waiting_of() for partition in self._partitions.values()]
        return self.stats.counted(list(self._topics), waiting)

    @property
    def tables(self) -> Mapping[str, LookupTable]:
        """Topic → latest rows of each look-up table."""
        return self._lookups.tables

    def mark(self) -> int:
        """Close the current generation of look-up tables, counters and histories.

        Returns:
            Number of the generation, from 1 in each process, for `history_changes` and tables' `changed`.
        """
        self._lookups.mark()
        for rows in self.counters.rows.values():
            rows.mark()
        for behaviors in self.behaviors:
            behaviors.mark()
        self._generation += 1
        return self._generation - 1

    def history_changes(self, since: int = 0) -> dict[str, Histories]:
        """Name of each recent() root → histories of this rank's users with a click after generation `since`.

        Args:
            since: number from `mark`; 0: all.
        """
        return changes_of(self.behaviors, since)

    @property
    def behaviors(self) -> list[BehaviorHistories]:
        """Behavior histories of each partition."""
        return [partition.joiner.behaviors for partition in self._partitions.values()]

    @property
    def stats(self) -> SourceStats:
        """Counters over this rank's partitions."""
        bytes_read = self._lookups.bytes_read() | self._source.bytes_read()
        read = {topic: table for topic, table in self.tables.items() if topic in self._columns.topics}
        lookups = {topic: {"found": table.found, "missing": table.missing} for topic, table in read.items()}
        return SourceStats.of(self._partitions.values(), self._counts, bytes_read, lookups)

    @property
    def ahead_ms(self) -> npt.NDArray[np.int64]:
        """Times int64[n] by which the last clicks were before their impressions, too much to label them."""
        parts = [partition.joiner.ahead_ms for partition in self._partitions.values()]
        return np.concatenate([np.empty(0, np.int64), *parts])

    @property
    def sampled(self) -> Sampled:
        """Sample of this rank's events by join key, which tells of clicks that are apart."""
        samples = [partition.joiner.sample for partition in self._partitions.values()]
        return together(sample.found for sample in samples if sample is not None)

    def _idle(self, partition: int) -> list[bool]:
        """Topics of a partition that no longer block the others: bool for each topic."""
        return [True] * len(self._topics) if self._finished else self._arrivals.idle(partition)

    def _advance(self) -> bool:
        moved = False
        ends = self._options.until_end or self._finished
        quiet_ms = self._quiet_ms if ends and self._kept else None
        now_ms = LAST if ends else time.time_ns() // 1_000_000
        idle = {number: self._idle(number) for number in self._partitions}
        for number, partition in self._partitions.items():
            ended = ends and all(idle[number])
            moved_here = partition.advance(idle[number], ended=ended, now_ms=now_ms, quiet_ms=quiet_ms)
            if ended and partition.follows and not moved_here:  # the log holds no more to follow with
                self._give_up(number, partition)
                moved_here = partition.advance(idle[number], ended=ended, now_ms=now_ms, quiet_ms=quiet_ms)
            moved |= moved_here
        moved |= self._await_tables()
        if not self._finished and self._stalls.due(now_s := time.monotonic()):
            unread = self._arrivals.unread
            self._stalls.check(self._partitions, self._unread(), idle, now_s)
            if self._replay is not None:
                self._replay.check(self._partitions, unread, self._asked, now_s)
        if moved:
            self._ready.sort_again()
            self._reporter.report(self.stats)
        return moved

    def _unread(self) -> set[TopicPartition]:
        """Topic partitions with more to read that are not paused."""
        return self._arrivals.unread - self._back_pressure.paused

    def _give_up(self, number: int, partition: Partition) -> None:
        if partition.decisions_left:
            _log.warning(
                "partition %d ends before %d decisions of the order log, which are left out",
                number,
                partition.decisions_left,
            )
        partition.release()

    def _await_tables(self) -> bool:
        """Let examples leave as far as the tables are read for them; true: this is further.

        An example leaves the label wait after its impression: half is there to ask, half for late rows.
        """
        bound, before = self._bound, self._tables_reach
        if bound == LAST:
            bound = max((p.after_ready for p in self._partitions.values()), default=LAST)
        self._tables_reach = self._lookups.reach(bound, slack_ms=self._leaves_ms // 2)
        return self._tables_reach != before


def _check_copartitioned(url: str, available: Mapping[str, Collection[int]]) -> None:
    """Check that Kafka topics agree in their number of partitions; a folder may lack files of some.

    Raises:
        ConfigError: they do not.
    """
    counts = {topic: len(numbers) for topic, numbers in available.items()}
    if url.startswith("kafka:") and len(set(counts.values())) > 1:
        each = " and ".join(f"{topic} has {count}" for topic, count in counts.items())
        raise ConfigError(f"topics that are joined must have equally many partitions, but {each}")
