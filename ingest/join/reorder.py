"""Reorder buffer of one topic partition: records are judged, sorted by event time and released to the merge.

    add ─► unconfirmed ─judge─► runs, each sorted by mark ─release─► events
                 │
                 └─► refused: a time that the log does not confirm

An unconfirmed record and all records behind it wait until enough of the log is read (see
`kernels.stream.clock`).
"""

from __future__ import annotations

from collections import deque
from collections.abc import Callable, Sequence
from dataclasses import astuple, dataclass, replace
from typing import Any

import numpy as np
import numpy.typing as npt
import pyarrow as pa

from livectr.ingest.chunks import BEGINNING, Chunk, Position
from livectr.ingest.dead_letters.complaints import no_time
from livectr.ingest.language.keys import key_of
from livectr.ingest.language.streams import Stream
from livectr.kernels.stream.clock import (
    AHEAD,
    BELIEVED,
    DOUBTED,
    FIRST,
    LAST,
    LATE,
    NO_TIME,
    Horizon,
    follow,
    judge,
    new_clock,
)
from livectr.system.errors import CheckpointError

I64 = npt.NDArray[np.int64]
I32 = npt.NDArray[np.int32]
U8 = npt.NDArray[np.uint8]

Refuse = Callable[["Piece", int, str], None]
"""Callback for an unused record: the piece and the row in it, and the reason."""


@dataclass(frozen=True)
class Piece:
    """Batch of n consecutive records.

    Args:
        batch: n rows.
        offset: int64[n], offset of each record.
        index: int32[n], index within the Arrow message.
        times: int64[n], event times in ms, or record numbers in a log without time.
        users: int64[n], user keys.
        left: records with a mark below it were released before a restart.
    """

    batch: pa.RecordBatch
    offset: I64
    index: I32
    times: I64
    users: I64
    left: int = FIRST

    def __len__(self) -> int:
        return len(self.times)

    def slice(self, start: int, stop: int) -> Piece:
        """Rows start to stop, without a copy."""
        part = slice(start, stop)
        return Piece(
            self.batch.slice(start, stop - start),
            self.offset[part],
            self.index[part],
            self.times[part],
            self.users[part],
            self.left,
        )

    def filter(self, keep: npt.NDArray[np.bool_]) -> Piece:
        """Rows where `keep` is true."""
        return Piece(
            self.batch.filter(pa.array(keep)),
            self.offset[keep],
            self.index[keep],
            self.times[keep],
            self.users[keep],
            self.left,
        )

    def position(self, row: int) -> Position:
        """Position of a row in its log."""
        return Position(int(self.offset[row]), int(self.index[row]))


@dataclass
class _Run:
    """Accepted records, sorted by mark; the first `start` of them are released.

    place, verdict: [n], the clock's answer for each row. marks: int64[n], sorted places; order: int64[n],
    their rows, or None when rows are already sorted. before: the clock before the run.
    """

    piece: Piece
    place: I64
    verdict: U8
    marks: I64
    order: I64 | None
    before: I64
    start: int = 0

    @property
    def waiting(self) -> int:
        return len(self.piece) - self.start

    def rows(self, start: int, stop: int) -> slice | I64:
        """Rows from place `start` to place `stop` of the order."""
        return slice(start, stop) if self.order is None else self.order[start:stop]

    @property
    def first(self) -> int:
        """The first row that is not released."""
        return self.start if self.order is None else int(self.order[self.start :].min())


@dataclass(frozen=True)
class Released:
    """Released records in order: marks, times and users int64[n], and their rows."""

    marks: I64
    times: I64
    users: I64
    batches: list[pa.RecordBatch]


class Topic:
    """Reorder buffer: records of one topic partition that wait for their release.

    Args:
        stream: declaration of the topic.
        refuse: called for each record that is not used.
        keeps_all: a record with a wrong time is used at the log's current event time instead of being
            refused.
    """

    def __init__(self, stream: Stream, refuse: Refuse, *, keeps_all: bool = False) -> None:
        self.stream, self.late = stream, 0
        self._refuse, self._keeps_all = refuse, keeps_all
        self._timed = stream.time is not None
        self._runs: deque[_Run] = deque()
        self._unconfirmed: list[Piece] = []
        self._clock = new_clock() if self._timed else np.zeros(1, np.int64)
        self._next = BEGINNING  # position after the last record that was read
        self._again: tuple[Position, int] | None = None
        self._read_before = BEGINNING

    @property
    def bound(self) -> int:
        """Watermark: least mark of the records to come, unconfirmed records included."""
        mark = int(self._clock[0])
        return mark if mark == FIRST or not self._timed else mark - self.stream.max_disorder_ms

    @property
    def read(self) -> Position:
        """Position after the last record that was added."""
        return self._next

    @property
    def read_before(self) -> Position:
        """Position after the last record that was added before a restart."""
        return self._read_before

    @property
    def rereads(self) -> bool:
        """True while records that were read before a restart have not come again."""
        return self._next < self._read_before

    @property
    def unconfirmed(self) -> int:
        """Records whose time the log has not confirmed yet, with the records behind them."""
        return sum(map(len, self._unconfirmed)) if self._unconfirmed else 0

    @property
    def claimed(self) -> int:
        """Greatest time that two unconfirmed records reach, of two users if there are two; FIRST: none."""
        times = np.concatenate([piece.times for piece in self._unconfirmed])
        users = np.concatenate([piece.users for piece in self._unconfirmed])
        newest = int(times.argmax())
        others = times[users != users[newest]]
        others = others if len(others) else np.delete(times, newest)
        return int(others.max(initial=FIRST))

    @property
    def waiting(self) -> int:
        """Records that are not released."""
        return sum(run.waiting for run in self._runs) + self.unconfirmed

    def add(self, chunk: Chunk) -> None:
        """Add the next records."""
        self._next = chunk.next
        if not len(chunk):
            return
        users = np.ascontiguousarray(key_of(chunk.batch.column(self.stream.key)))
        if self._timed:
            times = np.ascontiguousarray(chunk.batch.column(self.stream.time).to_numpy())
            self._unconfirmed += self._split(Piece(chunk.batch, chunk.offset, chunk.index, times, users))
        else:
            before = self._clock
            numbers = int(before[0]) + np.arange(len(chunk))
            piece = Piece(chunk.batch, chunk.offset, chunk.index, numbers, users)
            self._keep(piece, numbers, np.zeros(len(chunk), np.uint8), before)
            self._clock = before + len(chunk)

    def _split(self, piece: Piece) -> list[Piece]:
        """Split off the records that were read before the restart: some of them were released."""
        if self._again is None:
            return [piece]
        read, left = self._again
        known = (piece.offset < read.offset) | ((piece.offset == read.offset) & (piece.index < read.index))
        count = int(np.count_nonzero(known))
        if count < len(piece):
            self._again = None
        parts = replace(piece.slice(0, count), left=left), piece.slice(count, len(piece))
        return [part for part in parts if len(part)]

    def judge(self, floor: int, *, ended: bool = False, limit: int = LAST) -> None:
        """Accept or refuse unconfirmed records as far as possible.

        See `kernels.stream.clock.judge` for the arguments.
        """
        if not self._unconfirmed:
            return
        pieces = self._unconfirmed
        times, users = (
            getattr(pieces[0], name)
            if len(pieces) == 1
            else np.concatenate([getattr(piece, name) for piece in pieces])
            for name in ("times", "users")
        )
        ahead, disorder = self.stream.max_ahead_ms, self.stream.max_disorder_ms
        before = self._clock
        marks, verdict, after = judge(
            *(before, times, users),
            max_ahead_ms=ahead,
            max_disorder_ms=disorder,
            horizon=Horizon(floor if floor > before[0] else FIRST, ended, limit),
        )
        self._clock, self._unconfirmed = after, []
        done = 0
        for piece in pieces:
            judged = max(0, min(len(piece), len(marks) - done))
            if judged:
                part = slice(done, done + judged)
                own = piece if judged == len(piece) else piece.slice(0, judged)
                self._judged(own, marks[part], verdict[part], before)
                if piece is not pieces[-1]:
                    before = self._followed(before, own.times, own.users, marks[part], verdict[part])
            if judged < len(piece):
                self._unconfirmed.append(piece.slice(judged, len(piece)))
            done += len(piece)

    def _judged(self, piece: Piece, marks: I64, verdict: U8, before: I64) -> None:
        if verdict.max() > BELIEVED:
            self.late += int(np.count_nonzero(verdict == LATE))
            used = verdict <= (AHEAD if self._keeps_all else DOUBTED)
            for row in np.flatnonzero(~used).tolist():
                complaint = self._complaint(int(piece.times[row]), int(marks[row]), int(verdict[row]))
                self._refuse(piece, row, complaint)
            if not used.all():
                piece, marks, verdict = piece.filter(used), marks[used], verdict[used]
        if len(piece):
            self._keep(piece, marks, verdict, before)

    def _keep(self, piece: Piece, place: I64, verdict: U8, before: I64) -> None:
        order, marks = None, place
        # Without disorder marks never fall: only a refused record has a place ahead of its log.
        if (self.stream.max_disorder_ms or self._keeps_all) and np.any(marks[1:] < marks[:-1]):
            order = np.argsort(marks, kind="stable")
            marks = marks[order]
        start = 0 if piece.left == FIRST else int(np.searchsorted(marks, piece.left))
        if start < len(piece):
            self._runs.append(_Run(piece, place, verdict, marks, order, before, start))

    def _complaint(self, time: int, mark: int, verdict: int) -> str:
        if verdict == NO_TIME:
            return no_time(str(self.stream.time), time)
        return (
            f"{self.stream.time} is {time}, {(time - mark) / 1000:.3f} s after the log, which stands at "
            f"{mark} and continues without it (max_ahead {self.stream.max_ahead_ms / 1000:g} s)"
        )

    def release(self, bound: int) -> Released:
        """Remove and return the records with a mark below `bound`."""
        marks: list[I64] = []
        times: list[I64] = []
        users: list[I64] = []
        batches: list[pa.RecordBatch] = []
        rising, emptied = True, False
        for run in self._runs:
            stop = int(np.searchsorted(run.marks, bound)) if bound != LAST else len(run.piece)
            if stop > run.start:
                rows, piece = run.rows(run.start, stop), run.piece
                rising &= not marks or marks[-1][-1] <= run.marks[run.start]
                marks.append(run.marks[run.start : stop])
                times.append(piece.times[rows])
                users.append(piece.users[rows])
                batches.append(
                    piece.batch.slice(run.start, stop - run.start)
                    if isinstance(rows, slice)
                    else piece.batch.take(pa.array(rows))
                )
                run.start = stop
                emptied |= not run.waiting
            elif not self.stream.max_disorder_ms and run.waiting:
                break  # marks never fall from one run to the next
        if emptied:
            self._runs = deque(run for run in self._runs if run.waiting)
        out = Released(concatenated(marks), concatenated(times), concatenated(users), batches)
        if rising:
            return out
        order = np.argsort(out.marks, kind="stable")
        rows = pa.concat_batches(batches).take(pa.array(order))
        return Released(out.marks[order], out.times[order], out.users[order], [rows])

    def position(self) -> Position:
        """Position of the first record that is not released."""
        if self._runs:
            return self._runs[0].piece.position(self._runs[0].first)
        return self._unconfirmed[0].position(0) if self._unconfirmed else self._next

    def state(self) -> dict[str, Any]:
        """State for a restart: position, the clock before it, and the end of the records read.

        Some records between position and end are released already.
        """
        clock = self._clock
        if self._runs:
            run = self._runs[0]
            part = slice(0, run.first)
            times, users = run.piece.times[part], run.piece.users[part]
            clock = self._followed(run.before, times, users, run.place[part], run.verdict[part])
        read = max(self._next, self._read_before)
        return {
            "position": list(astuple(self.position())),
            "clock": clock.tolist(),
            "read": list(astuple(read)),
        }

    def restore(self, state: dict[str, Any], released: int) -> None:
        """Load state from `state`. Records that it had read and whose mark is below `released` have left."""
        if len(state["clock"]) != len(self._clock) or "read" not in state:
            raise CheckpointError(
                f"the checkpoint's event time of {self.stream.topic} is of another version of LiveCTR; "
                "start with a new --checkpoint folder"
            )
        self._next = Position(*state["position"])
        self._clock = np.array(state["clock"], np.int64)
        self._read_before = Position(*state["read"])
        if self.stream.max_disorder_ms and self.rereads:
            self._again = self._read_before, released

    def _followed(self, clock: I64, times: I64, users: I64, place: I64, verdict: U8) -> I64:
        if not self._timed:
            return clock + len(times)
        return follow(clock, times, users, place, verdict, max_ahead_ms=self.stream.max_ahead_ms)


def concatenated(parts: Sequence[I64]) -> I64:
    """Concatenate arrays; a single array is returned without a copy."""
    if len(parts) == 1:
        return parts[0]
    return np.concatenate(parts) if parts else np.empty(0, np.int64)
