"""Counts of rows that were read and that were unusable, by topic, and the check of their share.

An unusable record is a dead letter and the stream continues. When most rows of a topic are unusable, the
mistake is in the pipeline or the producer, and the run ends with the most frequent complaint. Rows are
counted, not letters: a letter may stand for a whole Arrow message.
"""

from __future__ import annotations

import threading
from collections import Counter
from collections.abc import Iterable, Mapping
from dataclasses import dataclass, field
from typing import Any

from livectr.system.errors import DataError

MIN_USABLE = 0.5
"""Default for the least share of a topic's rows that must be usable."""
MOST_BAD = 0.01
"""Default for the largest share of a topic's rows that may be set aside in a whole input."""
JUDGED_ROWS = 10_000
"""Rows of a topic from which the share is checked; with fewer, only a topic without usable rows fails, at the
end."""
_MOST_COMPLAINTS = 64
OTHERS = "different reasons"
UNREADABLE = "a file of the log, or the rest of it, cannot be read"
"""Complaint about a file. It counts as a row, for nobody knows how many it has: so it is too many."""


@dataclass
class TopicRows:
    """Row counts of one topic.

    complaints: detail of a dead letter → its rows. Beyond a number of different details, more count as
    OTHERS.
    """

    rows: int = 0
    unusable: int = 0
    complaints: Counter[str] = field(default_factory=Counter)

    @property
    def commonest(self) -> str:
        """The complaint about most rows; of equal counts the alphabetically first."""
        ranked = sorted(self.complaints, key=lambda message: (-self.complaints[message], message))
        if len(ranked) > 1 and ranked[0] == OTHERS:
            return f"{OTHERS}, such as: {ranked[1]}"
        return ranked[0] if ranked else ""

    def as_json(self) -> dict[str, Any]:
        """Entries for a report; `unreadable_files` where there are some."""
        entries = {"rows": self.rows, "unusable": self.unusable, "commonest": self.commonest or None}
        files = self.complaints[UNREADABLE]
        return entries | ({"unreadable_files": files} if files else {})


class RowCounts:
    """Row counts of one process, by topic; thread-safe."""

    def __init__(self) -> None:
        self._topics: dict[str, TopicRows] = {}
        self._lock = threading.Lock()

    def add(self, topic: str, rows: int, complaints: Mapping[str, int]) -> None:
        """Add rows that were read, and the complaints about those that are unusable."""
        with self._lock:
            topic_rows = self._topics.setdefault(topic, TopicRows())
            topic_rows.rows += rows
            for message, count in complaints.items():
                topic_rows.unusable += count
                known = message in topic_rows.complaints or len(topic_rows.complaints) < _MOST_COMPLAINTS
                known |= message == UNREADABLE
                topic_rows.complaints[message if known else OTHERS] += count

    def topics(self) -> dict[str, TopicRows]:
        """Copy of the counts, by topic."""
        with self._lock:
            return {
                topic: TopicRows(topic_rows.rows, topic_rows.unusable, Counter(topic_rows.complaints))
                for topic, topic_rows in self._topics.items()
            }

    @property
    def totals(self) -> tuple[int, int]:
        """(rows read, rows unusable) over all topics."""
        with self._lock:
            topics = self._topics.values()
            return sum(topic.rows for topic in topics), sum(topic.unusable for topic in topics)

    @property
    def commonest(self) -> str:
        """The complaint about most rows of all topics; "" without complaints."""
        complaints: Counter[str] = Counter()
        with self._lock:
            for topic_rows in self._topics.values():
                complaints.update(topic_rows.complaints)
        return TopicRows(complaints=complaints).commonest

    def as_json(self) -> dict[str, Any]:
        """Counts in the form that `merged` reads."""
        return {
            topic: [topic_rows.rows, topic_rows.unusable, dict(topic_rows.complaints)]
            for topic, topic_rows in self.topics().items()
        }


def merged(shares: Iterable[Mapping[str, Any]]) -> dict[str, TopicRows]:
    """Sum of the counts of all ranks, by topic."""
    total: dict[str, TopicRows] = {}
    for share in shares:
        for topic, (rows, unusable, complaints) in share.items():
            topic_rows = total.setdefault(topic, TopicRows())
            topic_rows.rows += rows
            topic_rows.unusable += unusable
            topic_rows.complaints.update(complaints)
    return total


def complaint(
    topics: Mapping[str, TopicRows], letters: str | None, *, min_usable: float, final: bool
) -> str | None:
    """Sentence about the first topic with too few usable rows, or None.

    Args:
        topics: topic → counts.
        letters: place of the dead letters.
        min_usable: least share of usable rows, checked from JUDGED_ROWS rows on; 0: never.
        final: no more records are read, so that a topic without any usable row fails however few rows it has.
    """
    if min_usable <= 0:
        return None
    for topic, topic_rows in sorted(topics.items()):
        few = topic_rows.rows - topic_rows.unusable < min_usable * topic_rows.rows
        none = topic_rows.rows > 0 and topic_rows.unusable >= topic_rows.rows
        if (few and topic_rows.rows >= JUDGED_ROWS) or (none and final):
            return sentence(topic, topic_rows, letters)
    return None


def judge(counts: RowCounts, letters: str | None, *, final: bool, min_usable: float = MIN_USABLE) -> None:
    """Check the share of usable rows.

    Raises:
        DataError: with the sentence of `complaint`.
    """
    message = complaint(counts.topics(), letters, min_usable=min_usable, final=final)
    if message is not None:
        raise DataError(message)


def too_many(rows: Mapping[str, Mapping[str, Any]], most: float) -> str | None:
    """Sentence about the topics of a whole input of which more than a share `most` was set aside, or None.

    Clicks in another partition than their impression count as set aside, and so do all where none labels
    an impression. A file that cannot be read, or not to its end, is too many, unless `most` is more than
    MOST_BAD.

    Args:
        rows: topic → counts, as `TopicRows.as_json`.
        most: share of a topic's rows.
    """
    bad = [
        f"{topic}: {of['unusable']:,} of {of['rows']:,} rows set aside: {of['commonest']}"
        for topic, of in sorted(rows.items())
        if of["unusable"] > most * of["rows"]
    ]
    bad += [
        f"{topic}: {of['unreadable_files']:,} of its files cannot be read, or not to the end, so nobody "
        "knows how many rows they have"
        for topic, of in sorted(rows.items())
        if of.get("unreadable_files") and most <= MOST_BAD
    ]
    bad += [of["apart_words"] for _, of in sorted(rows.items()) if of.get("apart", 0.0) > most]
    bad += [of["unlabelling"] for _, of in sorted(rows.items()) if "unlabelling" in of and most < 1]
    return "; ".join(bad) or None


def sentence(topic: str, topic_rows: TopicRows, letters: str | None) -> str:
    """Sentence with a topic's unusable rows, most frequent complaint and place of the letters."""
    others = len(topic_rows.complaints) - 1
    more = f" (and {others} other complaint{'s' if others > 1 else ''})" if others > 0 else ""
    place = f" Dead letters: {letters}" if letters else ""
    message = topic_rows.commonest
    end = "" if message.endswith("?") and not more else "."
    return (
        f"{topic}: {topic_rows.unusable:,} of {topic_rows.rows:,} rows unusable: {message}{more}{end}{place}"
    )
