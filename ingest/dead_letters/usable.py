"""Rows that were read and rows that could not be used, by topic.

A record that cannot be used is a dead letter and the stream goes on. When most rows of a topic are, that is
no bad record but a mistake in the pipeline or the producer, and the run ends with the commonest complaint.
Rows are counted, not letters: a letter may stand for a whole Arrow message.
"""

from __future__ import annotations

import threading
from collections import Counter
from collections.abc import Iterable, Mapping
from dataclasses import dataclass, field
from typing import Any

from livectr.kernels.errors import DataError

MIN_USABLE = 0.5
"""The least share of a topic's rows that must be usable."""
SETTLED_ROWS = 10_000
"""Rows of a topic from which the share counts; with fewer only "none at all" is told, at the end."""
_MOST_COMPLAINTS = 64
OTHERS = "different reasons"


@dataclass
class TopicRows:
    """Rows of one topic. complaints: detail of a dead letter → its rows; when there are too many different,
    later ones count as OTHERS."""

    rows: int = 0
    unusable: int = 0
    complaints: Counter[str] = field(default_factory=Counter)

    @property
    def commonest(self) -> str:
        """The complaint about most rows (of equal ones the first in the alphabet)."""
        ranked = sorted(self.complaints, key=lambda told: (-self.complaints[told], told))
        if len(ranked) > 1 and ranked[0] == OTHERS:
            return f"{OTHERS}, such as: {ranked[1]}"
        return ranked[0] if ranked else ""

    def as_json(self) -> dict[str, Any]:
        """For a report."""
        return {"rows": self.rows, "unusable": self.unusable, "commonest": self.commonest or None}


class RowCounts:
    """Counts of one process; safe to use from several threads."""

    def __init__(self) -> None:
        self._topics: dict[str, TopicRows] = {}
        self._lock = threading.Lock()

    def add(self, topic: str, rows: int, complaints: Mapping[str, int]) -> None:
        """Count rows that came, all of them, and the complaints about those that cannot be used."""
        with self._lock:
            found = self._topics.setdefault(topic, TopicRows())
            found.rows += rows
            for told, count in complaints.items():
                found.unusable += count
                known = told in found.complaints or len(found.complaints) < _MOST_COMPLAINTS
                found.complaints[told if known else OTHERS] += count

    def topics(self) -> dict[str, TopicRows]:
        """A copy, by topic."""
        with self._lock:
            return {
                topic: TopicRows(found.rows, found.unusable, Counter(found.complaints))
                for topic, found in self._topics.items()
            }

    @property
    def totals(self) -> tuple[int, int]:
        """(rows read, rows unusable) of all topics."""
        with self._lock:
            found = self._topics.values()
            return sum(one.rows for one in found), sum(one.unusable for one in found)

    @property
    def commonest(self) -> str:
        """The complaint about most rows of any topic; "" while there is none."""
        complaints: Counter[str] = Counter()
        with self._lock:
            for found in self._topics.values():
                complaints.update(found.complaints)
        return TopicRows(complaints=complaints).commonest

    def as_json(self) -> dict[str, Any]:
        """What `merged` takes."""
        return {
            topic: [found.rows, found.unusable, dict(found.complaints)]
            for topic, found in self.topics().items()
        }


def merged(shares: Iterable[Mapping[str, Any]]) -> dict[str, TopicRows]:
    """The counts of all ranks added up, by topic."""
    total: dict[str, TopicRows] = {}
    for share in shares:
        for topic, (rows, unusable, complaints) in share.items():
            found = total.setdefault(topic, TopicRows())
            found.rows += rows
            found.unusable += unusable
            found.complaints.update(complaints)
    return total


def complaint(
    topics: Mapping[str, TopicRows], letters: str | None, *, min_usable: float, final: bool
) -> str | None:
    """The sentence about the first topic of which too few rows are usable, or None.

    letters: where the dead letters are. min_usable: the least share, judged from SETTLED_ROWS on; 0: never.
    final: nothing more is read, so that a topic of which no row at all was usable is told however few it has.
    """
    if min_usable <= 0:
        return None
    for topic, found in sorted(topics.items()):
        few = found.rows - found.unusable < min_usable * found.rows
        none = found.rows > 0 and found.unusable >= found.rows
        if (few and found.rows >= SETTLED_ROWS) or (none and final):
            return sentence(topic, found, letters)
    return None


def judge(counts: RowCounts, letters: str | None, *, final: bool, min_usable: float = MIN_USABLE) -> None:
    """Raises DataError with the sentence of `complaint`, if there is one."""
    told = complaint(counts.topics(), letters, min_usable=min_usable, final=final)
    if told is not None:
        raise DataError(told)


def sentence(topic: str, found: TopicRows, letters: str | None) -> str:
    """How many rows of a topic are unusable, the commonest complaint, and where to look."""
    others = len(found.complaints) - 1
    more = f" (and {others} other complaint{'s' if others > 1 else ''})" if others > 0 else ""
    place = f" Dead letters: {letters}" if letters else ""
    told = found.commonest
    end = "" if told.endswith("?") and not more else "."
    return f"{topic}: {found.unusable:,} of {found.rows:,} rows unusable: {told}{more}{end}{place}"
