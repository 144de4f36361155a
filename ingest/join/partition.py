"""State of one partition of the logs: event-time merge, label join, queue of ready examples."""

from __future__ import annotations

from collections.abc import Sequence

from livectr.ingest.chunks import Chunk, Position
from livectr.ingest.dead_letters.letters import DeadLetters, Reason
from livectr.ingest.dead_letters.row_text import row_text
from livectr.ingest.join.decisions import Decision, Follower, Recorder
from livectr.ingest.join.label_join import HISTORY
from livectr.ingest.join.labelled import joiner
from livectr.ingest.join.log_words import LOG, log_words
from livectr.ingest.join.merge import Merge
from livectr.ingest.join.ready import ReadyQueue
from livectr.ingest.join.reorder import Piece
from livectr.ingest.join.state import PartitionState
from livectr.ingest.language.streams import Stream
from livectr.ingest.pipeline import Pipeline
from livectr.kernels.stream.clock import LAST
from livectr.kernels.stream.known import joined


class Partition:
    """Stateful part of reading one partition.

    Its examples depend neither on time nor on how chunks were cut, but for the decisions of the clock
    (`ingest.join.decisions`).

    Args:
        pipeline: its streams and label join.
        number: of the partition.
        state: state to resume from; None starts at the beginning.
        letters: receives records whose time is wrong, or for which the join has no room; None drops them.
        recorded: keep the decisions of the clock for `take_decisions`.
        follows: decisions of another run, from its first one on, which are repeated until `release`; None:
            the clock decides.
    """

    def __init__(
        self,
        pipeline: Pipeline,
        number: int,
        state: PartitionState | None,
        letters: DeadLetters | None = None,
        *,
        recorded: bool = False,
        follows: Sequence[Decision] | None = None,
    ) -> None:
        self.number = number
        self._letters = DeadLetters(None) if letters is None else letters
        # Where the label is a column, nothing but its own features depends on an event's time.
        self._merge = Merge(
            pipeline.streams,
            None if state is None else state.values["merge"],
            keeps_all=pipeline.log.clicks is None,
            refused=self._refused,
        )
        self.joiner = joiner(pipeline, number, self._letters)
        self._log_words = log_words(pipeline)
        self.ready = ReadyQueue()
        self.frontier = self.held = self._passes = self._merge.bound([False] * len(pipeline.streams))
        """Watermark: every later example has an order of at least this.

        `held` is that of a log that goes on, where the partition has ended, too.
        """
        self.ended = False
        """True when no record will come any more, and no more examples become ready."""
        self._due = self._merge.mark
        self._changed = self._late = False
        decided = 0 if state is None else int(state.values.get("decided", 0))
        self._recorder = Recorder(decided, kept=recorded)
        self._follower = None
        if follows is not None:
            self._follower = Follower(follows[decided:], len(pipeline.streams))
        if state is not None:
            self.joiner.restore(state.values["join"], state.tables, state.known)
            self.ready.restore(state.tables["ready"], self.joiner.schema)

    def positions(self) -> dict[str, Position]:
        """Topic → position at which a restart from the current state starts to read."""
        return self._merge.positions()

    def add(self, topic: int, chunk: Chunk) -> None:
        """Add the next records of a topic; `advance` makes examples of them."""
        if self._follower is not None:
            self._follower.hold(topic, chunk)
        else:
            self.feed(topic, chunk)

    def feed(self, topic: int, chunk: Chunk) -> None:
        """Add the next records of a topic to the merge."""
        self._late |= self._merge.is_late(topic)
        self._merge.add(topic, chunk)
        self._changed = True

    @property
    def read(self) -> tuple[Position, ...]:
        """Position of each topic up to which the merge has its records."""
        return self._merge.read()

    @property
    def read_before(self) -> tuple[Position, ...]:
        """Position of each topic up to which the merge had its records before a restart."""
        return self._merge.read_before()

    @property
    def late_topics(self) -> bool:
        """True if some topic's next records may have a place that has passed."""
        return any(map(self._merge.is_late, range(len(self.bounds))))

    @property
    def follows(self) -> bool:
        """True while the clock decides nothing."""
        return self._follower is not None

    @property
    def decisions_left(self) -> int:
        """Decisions that are to be repeated."""
        return 0 if self._follower is None else self._follower.left

    @property
    def awaits(self) -> dict[int, tuple[Position, Position]]:
        """Topic → position up to which it was read, and up to which the next decision to repeat needs it."""
        return {} if self._follower is None else self._follower.awaits(self)

    def release(self) -> None:
        """Let the clock decide from here on."""
        if self._follower is not None:
            follower, self._follower = self._follower, None
            follower.release(self)

    def take_decisions(self) -> list[tuple[int, Decision]]:
        """Decisions of the clock since the last call, with their numbers."""
        return self._recorder.take()

    @property
    def waiting(self) -> int:
        """Records that wait for records of another topic."""
        return sum(self.waiting_of())

    def waiting_of(self) -> list[int]:
        """Records of each topic that were read and are not released: a restart reads them again."""
        waiting = self._merge.waiting()
        if self._follower is None:
            return list(waiting)
        return [rows + self._follower.rows(topic) for topic, rows in enumerate(waiting)]

    @property
    def after_ready(self) -> int:
        """Order above that of every ready example."""
        return min(self._due, LAST - 1) + 1

    @property
    def unconfirmed(self) -> list[int]:
        """Records of each topic whose time the log has not confirmed yet, with the records behind them."""
        return self._merge.unconfirmed()

    @property
    def late(self) -> list[int]:
        """Records of each topic, read by this process, whose time lies far in the past of their topic."""
        return self._merge.late()

    @property
    def overtaken(self) -> list[int]:
        """Records of each topic, read by this process, whose place had passed while the topic was idle."""
        return self._merge.overtaken

    @property
    def bounds(self) -> list[int]:
        """Watermark of each topic."""
        return self._merge.bounds()

    @property
    def holding(self) -> int:
        """Index of the topic with the lowest watermark: the others wait for it."""
        bounds = self._merge.bounds()
        return bounds.index(min(bounds))

    @property
    def strict_frontier(self) -> int:
        """Watermark that does not depend on the clock: no topic counts as idle."""
        return self._merge.bound([False] * len(self.bounds))

    def ahead(self, rows: int) -> list[int]:
        """Indices of topics with at least `rows` records that wait for a topic that is behind."""
        waiting, bounds, follower = self.waiting_of(), self._merge.bounds(), self._follower
        many = [t for t, count in enumerate(waiting) if count >= rows]
        if follower is None:
            return [t for t in many if bounds[t] > self._passes]
        lacking = self.awaits
        if not follower.left or self.holding in lacking:
            return [t for t in many if bounds[t] > self.frontier or follower.rows(t)]
        return [t for t in many if t not in lacking]  # the next decision needs the others

    def advance(
        self, idle: Sequence[bool], ended: bool, now_ms: int = LAST, *, quiet_ms: int | None = None
    ) -> bool:
        """Release the records below the watermark, and join them to examples.

        Args:
            idle: bool for each topic; topics that have ended or are idle do not hold the watermark back.
            ended: all topics have ended, so that impressions leave before their windows end.
            now_ms: current time of a live log. Unconfirmed event times beyond it stay unconfirmed although
                their topic is idle.
            quiet_ms: a later run reads on where the topics have ended. Impressions whose window has not
                passed wait for it, and so do records for those of a topic that is behind the others, but
                beyond this time. None: nothing waits.

        Returns:
            True when records or examples moved.
        """
        if self._follower is not None:
            return self._follower.advance(self)
        if self._merge.rereads(idle):  # the clock decides from where it had decided before
            idle, ended = [False] * len(idle), False
        if ended and self.ended and self.held == LAST and not self._changed:
            return False  # nothing waits, as a replay has repeated
        resolved = self._merge.resolve(idle, now_ms, goes_on=quiet_ms is not None)
        decision = Decision(self.read, tuple(idle), now_ms, ended, quiet_ms)
        by_clock = self._watermark(decision) > self.strict_frontier
        single = self._late or resolved or ended != self.ended
        moved, rows = self._move(decision, changed=self._changed or resolved)
        if single or (by_clock and rows is not None):
            self._recorder.note(decision, rows or 0, single=single)
        return moved

    def repeat(self, decision: Decision | None) -> bool:
        """Do what was decided; None: what needs no decision. Returns true when records or examples moved."""
        if decision is None:
            waits = Decision(self.read, (False,) * len(self.bounds), LAST, ended=False)
            return self._move(waits, changed=self._changed)[0]
        resolved = self._merge.resolve(decision.idle, decision.now_ms, goes_on=decision.quiet_ms is not None)
        moved, rows = self._move(decision, changed=self._changed or resolved)
        self._recorder.note(decision, rows or 0, single=True)
        return moved

    def _watermark(self, decision: Decision) -> int:
        return self._merge.bound(decision.idle, decision.quiet_ms)

    def _move(self, decision: Decision, *, changed: bool) -> tuple[bool, int | None]:
        """Release and join what a watermark allows: (something moved, records released or None)."""
        bound, ended = self._watermark(decision), decision.ended
        if not changed and bound == self.held and ended == self.ended:
            return False, None
        self._changed, self._late, self.ended = False, False, ended
        events = self._merge.release(bound)
        self.held, self.frontier = bound, LAST if ended else bound
        self._passes = self._merge.bound(decision.idle)
        # When all topics are idle, event time stays at the last event.
        self._due = bound if bound != LAST or (ended and decision.quiet_ms is None) else self._merge.mark
        moved = len(events)
        for part in events.parts():
            ready = self.joiner.advance(part, self._due)
            self.ready.append(ready)
            moved += len(ready)
        return moved > 0, len(events)

    def _refused(self, stream: Stream, piece: Piece, row: int, detail: str) -> None:
        at = piece.position(row)
        place = stream.topic, self.number, at.offset, at.index
        value = row_text(piece.batch, row)
        self._letters.rows.add(stream.topic, 0, {f"`{stream.time}` is no time near those of the log": 1})
        self._letters.write(place, Reason.BAD_TIME, detail, value)

    def state(self, *, whole: bool = True) -> PartitionState:
        """Copy the current state, with what is saved as changes (`ingest.join.state.Changes`) or without."""
        self._recorder.close()
        values, tables = self.joiner.export()
        index = self.joiner.index
        keys = index.known() if whole and index is not None else joined([])
        histories = self.joiner.behaviors.export() if whole else {}
        tables |= {HISTORY + name: table for name, table in histories.items()}
        return PartitionState(
            {
                "merge": self._merge.state(),
                "join": values,
                "decided": self._recorder.count,
                LOG: self._log_words,
            },
            {**tables, "ready": self.ready.export()},
            keys,
        )
