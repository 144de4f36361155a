"""Counters of an example source, for the trainer's report and for Prometheus."""

from __future__ import annotations

from collections.abc import Collection, Iterable, Mapping, Sequence
from dataclasses import asdict, dataclass, field
from itertools import product
from typing import Any

import numpy as np
import numpy.typing as npt

from livectr.ingest import metrics
from livectr.ingest.join.example_columns import Examples
from livectr.ingest.join.partition import Partition

Bools = npt.NDArray[np.bool_]
OF_PROCESS = ("events", "examples", "clicked", "lookups")
"""Counts that start at 0 in each process. A run adds up the counts of its processes: see `trainer.run`."""

LABEL_OUTCOMES = ("matched", "late", "unmatched")
"""Counts of a label that never fall."""


class Counts:
    """Counts of this process that no partition keeps; `SourceStats` describes them.

    Args:
        topics: of the event streams.
    """

    def __init__(self, topics: Iterable[str]) -> None:
        self.events = dict.fromkeys(topics, 0)
        self.examples = self.clicked = 0

    def read(self, topic: str, rows: int) -> None:
        """Count records of a topic that were read."""
        self.events[topic] += rows

    def left(self, examples: Examples) -> None:
        """Count examples that left through `pop`."""
        final = examples.final
        self.examples += int(np.count_nonzero(~examples.late & ~final))
        self.clicked += int(np.count_nonzero(examples.label[~final]))

    def set_aside(self, examples: Examples, rows: Bools) -> None:
        """Take back the clicks of rows bool[b] among examples that left."""
        self.clicked -= int(np.count_nonzero(examples.label[rows & ~examples.final]))


@dataclass(frozen=True)
class SourceStats:
    """Counters over this rank's partitions, since the start of the logs.

    Exceptions: events, late_events, overtaken, examples, clicked, lookups, bytes_read, history_expired and
    history_evicted count since the start of this process.
    """

    events: Mapping[str, int]
    """Topic → records read that pass the stream's filter."""
    duplicates: Mapping[str, int]
    """Topic → records that repeat an earlier one: of a label join's keys, or of a labelled log's `dedup`."""
    late_clicks: int
    unmatched_clicks: int
    matched_clicks: int
    """Clicks that label an impression."""
    behind_clicks: int
    """Clicks among them with a time before that of their impression, inside the join's clock_slack."""
    waiting_clicks: int
    """Clicks that have met no impression yet."""
    late_positives: int
    """Clicks inside the window whose impression had left as a provisional negative."""
    late_events: Mapping[str, int]
    """Topic → records whose time lies far in the past of their topic."""
    overtaken: Mapping[str, int]
    """Topic → records whose place had passed while their topic partition was idle."""
    full: int
    """Events for which the join had no room."""
    forgotten: int
    """Keys that the join dropped before their time, to make room."""
    join_bytes: int
    history_users: int
    """Behavior histories that are kept."""
    history_bytes: int
    history_expired: int
    """Histories of this process that expired: no impression would see them."""
    history_evicted: int
    """Histories of this process that were evicted for lack of room."""
    pending: int
    """Impressions that wait for the end of their label window."""
    ready: int
    waiting: int
    """Records that wait for records of another topic."""
    unreleased: Mapping[str, int]
    """Topic → its part of `waiting`."""
    examples: int
    """Examples that left through `pop`; an impression that leaves twice counts once."""
    clicked: int
    """Examples with label 1 among them, or with a late click, without those that were set aside."""
    lookups: Mapping[str, Mapping[str, int]]
    """Topic of a look-up table → look-ups with a row ("found") and without ("missing")."""
    bytes_read: Mapping[str, int]
    """Topic, look-up tables included → bytes read for the columns in use."""
    labels: Mapping[str, Mapping[str, int]] = field(default_factory=dict)
    """Label beside the click → `ingest.join.label_kind.LabelKind.counts`."""

    def counted(self, topics: Sequence[str], waiting: Iterable[Sequence[int]]) -> dict[str, Any]:
        """Counts of OF_PROCESS, without events that a restart reads again.

        Args:
            topics: of the event streams.
            waiting: records of each topic that were read and are not released, by partition.
        """
        stats = asdict(self)
        for of_partition in waiting:
            for topic, count in zip(topics, of_partition, strict=True):
                stats["events"][topic] -= count
        return {name: stats[name] for name in OF_PROCESS}

    @staticmethod
    def of(
        partitions: Collection[Partition],
        counts: Counts,
        bytes_read: Mapping[str, int],
        lookups: Mapping[str, Mapping[str, int]],
    ) -> SourceStats:
        """Sum over partitions, with the counts of the process."""
        events = counts.events
        waiting = np.array([partition.waiting_of() for partition in partitions], np.int64)
        waiting = waiting.reshape(len(partitions), len(events)).sum(axis=0)
        stats = [partition.joiner.stats for partition in partitions]
        behaviors = [partition.joiner.behaviors for partition in partitions]
        return SourceStats(
            events=dict(events),
            duplicates={topic: sum(s.duplicates.get(topic, 0) for s in stats) for topic in events},
            late_clicks=sum(s.late_clicks for s in stats),
            unmatched_clicks=sum(s.unmatched_clicks for s in stats),
            matched_clicks=sum(s.matched_clicks for s in stats),
            behind_clicks=sum(s.behind_clicks for s in stats),
            waiting_clicks=sum(partition.joiner.waiting_clicks for partition in partitions),
            late_positives=sum(s.late_positives for s in stats),
            late_events={
                topic: sum(partition.late[index] for partition in partitions)
                for index, topic in enumerate(events)
            },
            overtaken={
                topic: sum(partition.overtaken[index] for partition in partitions)
                for index, topic in enumerate(events)
            },
            full=sum(s.full for s in stats),
            forgotten=sum(s.forgotten for s in stats),
            join_bytes=sum(partition.joiner.bytes for partition in partitions),
            history_users=sum(b.users for b in behaviors),
            history_bytes=sum(b.bytes for b in behaviors),
            history_expired=sum(b.expired for b in behaviors),
            history_evicted=sum(b.evicted for b in behaviors),
            pending=sum(partition.joiner.pending for partition in partitions),
            ready=sum(len(partition.ready) for partition in partitions),
            waiting=int(waiting.sum()),
            unreleased=dict(zip(events, waiting.tolist(), strict=True)),
            examples=counts.examples,
            clicked=counts.clicked,
            lookups=dict(lookups),
            labels=_summed([partition.joiner.label_counts for partition in partitions]),
            bytes_read=dict(bytes_read),
        )


def _summed(parts: Iterable[Mapping[str, Mapping[str, int]]]) -> dict[str, dict[str, int]]:
    """Sums of counts by label, over partitions."""
    found: dict[str, dict[str, int]] = {}
    for part in parts:
        for label, counts in part.items():
            sums = found.setdefault(label, dict.fromkeys(counts, 0))
            for name, count in counts.items():
                sums[name] += count
    return found


class Reporter:
    """Adds the changes of the counters to Prometheus, whose counters start with the process."""

    def __init__(self, start: SourceStats) -> None:
        self._last = start
        for topic in start.events:
            metrics.events.labels(topic)
            metrics.late_events.labels(topic)
            metrics.overtaken_events.labels(topic)
            metrics.duplicate_events.labels(topic)
        for label, outcome in product(start.labels, LABEL_OUTCOMES):
            metrics.label_events.labels(label, outcome)

    def report(self, stats: SourceStats) -> None:
        """Add the difference to the previous report."""
        metrics.pending_joins.set(stats.pending)
        metrics.join_bytes.set(stats.join_bytes)
        metrics.histories.set(stats.history_users)
        metrics.history_bytes.set(stats.history_bytes)
        metrics.history_expired.inc(stats.history_expired - self._last.history_expired)
        metrics.history_evicted.inc(stats.history_evicted - self._last.history_evicted)
        metrics.join_refused_events.inc(stats.full - self._last.full)
        metrics.join_evicted_keys.inc(stats.forgotten - self._last.forgotten)
        for topic, count in stats.late_events.items():
            metrics.late_events.labels(topic).inc(count - self._last.late_events[topic])
        for topic, count in stats.overtaken.items():
            metrics.overtaken_events.labels(topic).inc(count - self._last.overtaken[topic])
        metrics.late_clicks.inc(stats.late_clicks - self._last.late_clicks)
        metrics.late_positives.inc(stats.late_positives - self._last.late_positives)
        metrics.unmatched_clicks.inc(stats.unmatched_clicks - self._last.unmatched_clicks)
        metrics.waiting_clicks.set(stats.waiting_clicks)
        metrics.matched_clicks.inc(stats.matched_clicks - self._last.matched_clicks)
        metrics.behind_clicks.inc(stats.behind_clicks - self._last.behind_clicks)
        for topic, count in stats.duplicates.items():
            metrics.duplicate_events.labels(topic).inc(count - self._last.duplicates[topic])
        for label, outcome in product(stats.labels, LABEL_OUTCOMES):
            more = stats.labels[label][outcome] - self._last.labels[label][outcome]
            metrics.label_events.labels(label, outcome).inc(more)
        self._last = stats
