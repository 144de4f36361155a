"""Decisions of the clock about one partition: recorded by a live run, and followed by a replay.

The examples of a partition are a function of its log, except where the clock lets the merge continue without
an idle topic. The result then depends on how far each topic was read at that moment. So a decision is
the positions up to which the topics were read, and what the clock said there. A replay reads the topics up to
just these positions before it repeats the decision.

    live     advance ─► Recorder.note ─► Decision                 by the clock, or of records that come late
    replay   add ─► Follower (holds chunks beyond the next decision) ─► add ─► advance as decided

Between two decisions nothing depends on how chunks arrive, so they need not be recorded.
"""

from __future__ import annotations

from collections import deque
from collections.abc import Iterable, Sequence
from dataclasses import astuple, dataclass
from typing import Any, Protocol

from livectr.ingest.chunks import Chunk, Position

ROWS = 1 << 15
"""Records that one decision may release while it is extended: a replay holds as many in memory."""


@dataclass(frozen=True)
class Decision:
    """Answer of the clock at a moment of the log.

    Attributes:
        read: of each topic the position up to which it was read.
        idle: of each topic: the merge did not wait for it.
        now_ms: time by the clock, beyond which unconfirmed times stay unconfirmed.
        ended: the topics had ended.
        quiet_ms: waiting impressions stayed at the end, and topics that had ended held the others back,
            up to this time. None: they held nothing back, and impressions left before their windows ended.
    """

    read: tuple[Position, ...]
    idle: tuple[bool, ...]
    now_ms: int
    ended: bool
    quiet_ms: int | None = None

    def as_json(self) -> list[Any]:
        """JSON value."""
        read = [list(astuple(at)) for at in self.read]
        value = [read, [*map(int, self.idle)], self.now_ms, int(self.ended)]
        return value if self.quiet_ms is None else [*value, self.quiet_ms]

    @staticmethod
    def from_json(value: Sequence[Any]) -> Decision:
        """Decision of `as_json`."""
        read, idle, now_ms, ended, *quiet = value
        places = tuple(Position(*at) for at in read)
        return Decision(places, tuple(map(bool, idle)), now_ms, bool(ended), *quiet)


class Recorder:
    """Numbers the decisions of a partition, and keeps them until they are taken.

    A decision is extended while only topics that are not late continue: then the last moment says as much as
    all moments before it.

    Args:
        count: decisions that earlier processes of the run have made.
        kept: keep decisions for `take`.
    """

    def __init__(self, count: int = 0, *, kept: bool = False) -> None:
        self.count = count
        self._kept = kept
        self._made: list[tuple[int, Decision]] = []
        self._open: Decision | None = None
        self._rows = 0

    def note(self, decision: Decision, rows: int, *, single: bool) -> None:
        """Note a decision.

        Args:
            decision: of the clock, or of late records.
            rows: records that it has released.
            single: it says something that no later decision says, too.
        """
        if single or self._rows + rows > ROWS:
            self.close()
        self._open, self._rows = decision, self._rows + rows
        if single:
            self.close()

    def close(self) -> None:
        """Extend the newest decision no further."""
        if self._open is not None:
            if self._kept:
                self._made.append((self.count, self._open))
            self.count += 1
        self._open, self._rows = None, 0

    def take(self) -> list[tuple[int, Decision]]:
        """Decisions since the last call, with their numbers; none of them is extended any more."""
        self.close()
        made, self._made = self._made, []
        return made


class Follows(Protocol):
    """Partition, as its follower moves it."""

    @property
    def read(self) -> tuple[Position, ...]:
        """Position of each topic up to which the merge has its records."""

    @property
    def read_before(self) -> tuple[Position, ...]:
        """Position of each topic up to which the merge had its records before a restart."""

    @property
    def late_topics(self) -> bool:
        """True if some topic's next records may have a place that has passed."""

    def feed(self, topic: int, chunk: Chunk) -> None:
        """Add the next records of a topic to the merge."""

    def repeat(self, decision: Decision | None) -> bool:
        """Do what was decided; None: what needs no decision. True when records or examples moved."""


class Follower:
    """Holds the records of a partition back so that decisions are repeated where they were made.

    Args:
        decisions: those that the partition's state does not hold yet, in order.
        topics: number of topics.
    """

    def __init__(self, decisions: Iterable[Decision], topics: int) -> None:
        self._decisions = deque(decisions)
        self._held: list[deque[Chunk]] = [deque() for _ in range(topics)]
        self._rows = [0] * topics

    @property
    def left(self) -> int:
        """Decisions that were not repeated yet."""
        return len(self._decisions)

    def hold(self, topic: int, chunk: Chunk) -> None:
        """Take the next records of a topic."""
        self._held[topic].append(chunk)
        self._rows[topic] += len(chunk)

    def rows(self, topic: int) -> int:
        """Records of a topic that are held back."""
        return self._rows[topic]

    def awaits(self, partition: Follows) -> dict[int, tuple[Position, Position]]:
        """Topic → position up to which it was read, and up to which the next decision needs it."""
        if not self._decisions:
            return {}
        each = zip(self._seen(partition), self._decisions[0].read, strict=True)
        return {topic: (at, wanted) for topic, (at, wanted) in enumerate(each) if at < wanted}

    def advance(self, partition: Follows) -> bool:
        """Repeat the decisions whose moment is read, and advance towards the next; True: something moved."""
        moved = False
        while self._decisions:
            decision, seen = self._decisions[0], self._seen(partition)
            if any(at < wanted for at, wanted in zip(seen, decision.read, strict=True)):
                break
            self._feed(partition, decision.read)
            moved |= partition.repeat(self._decisions.popleft())
        limits = self._decisions[0].read if self._decisions else None
        if partition.late_topics:
            # Records that were read before a restart are decided. Their topic looks late until they are read
            # again, since its clock begins before the first of them that was not released.
            again = partition.read_before
            self._feed(partition, again if limits is None else tuple(map(min, again, limits)))
        # Late records wait for their decision: it depends on when they come.
        if not partition.late_topics:
            self._feed(partition, limits)
            moved |= partition.repeat(None)
        return moved

    def release(self, partition: Follows) -> None:
        """Give the partition all that is held."""
        self._decisions.clear()
        self._feed(partition, None)

    def _seen(self, partition: Follows) -> tuple[Position, ...]:
        return tuple(
            held[-1].next if held else at for held, at in zip(self._held, partition.read, strict=True)
        )

    def _feed(self, partition: Follows, limits: Sequence[Position] | None) -> None:
        """Give the partition what is held, each topic up to a limit."""
        for topic, held in enumerate(self._held):
            while held:
                chunk = held.popleft()
                self._rows[topic] -= len(chunk)
                if limits is None or chunk.next <= limits[topic]:
                    partition.feed(topic, chunk)
                    continue
                first, rest = split(chunk, limits[topic])
                held.appendleft(rest)
                self._rows[topic] += len(rest)
                if first.next > partition.read[topic]:
                    partition.feed(topic, first)
                break


def split(chunk: Chunk, at: Position) -> tuple[Chunk, Chunk]:
    """Split a chunk that goes beyond a position in front of it."""
    before = (chunk.offset < at.offset) | ((chunk.offset == at.offset) & (chunk.index < at.index))
    count = int(before.sum())
    deleted = chunk.deleted
    parts = [
        Chunk(
            chunk.topic,
            chunk.partition,
            chunk.batch.slice(begin, end - begin),
            chunk.offset[begin:end],
            chunk.index[begin:end],
            following,
            None if deleted is None else deleted[begin:end],
        )
        for begin, end, following in ((0, count, at), (count, len(chunk), chunk.next))
    ]
    return parts[0], parts[1]
