"""One partition of the stream: merge, join, and a queue of examples that are ready for training."""

from __future__ import annotations

from collections import deque
from collections.abc import Sequence

import numpy as np
import numpy.typing as npt
import pyarrow as pa

from livectr.ingest.chunks import Chunk, Position
from livectr.ingest.dead_letters.letters import DeadLetters, Reason
from livectr.ingest.dead_letters.row_text import row_text
from livectr.ingest.join.label_join import Ready, fitted, joiner
from livectr.ingest.join.merge import Merge
from livectr.ingest.join.reorder import Piece
from livectr.ingest.join.state import PartitionState
from livectr.ingest.language.streams import Stream
from livectr.ingest.pipeline import Pipeline
from livectr.kernels.stream.clock import LAST

I64 = npt.NDArray[np.int64]
F32 = npt.NDArray[np.float32]


class ReadyQueue:
    """Examples in order; they leave from the front."""

    def __init__(self) -> None:
        self._parts: deque[Ready] = deque()
        self._start = 0
        self._rows = 0

    def __len__(self) -> int:
        return self._rows

    def append(self, ready: Ready) -> None:
        if len(ready):
            self._parts.append(ready)
            self._rows += len(ready)

    def orders(self, limit: int) -> I64:
        """Orders of the first examples, int64[min(limit, ready)]."""
        found, rows, start = [], 0, self._start
        for part in self._parts:
            if rows >= limit:
                break
            found.append(part.order[start : start + limit - rows])
            rows += len(found[-1])
            start = 0
        return np.concatenate(found) if found else np.empty(0, np.int64)

    def slices(self, count: int) -> list[Ready]:
        """The first `count` examples, which stay."""
        found, start = [], self._start
        for part in self._parts:
            if count <= 0:
                break
            stop = min(start + count, len(part))
            rows = part.rows.slice(start, stop - start)
            found.append(Ready(rows, part.label[start:stop], part.order[start:stop]))
            count -= stop - start
            start = 0
        return found

    def pop(self, count: int) -> list[Ready]:
        """Remove the first `count` examples."""
        popped = self.slices(count)
        self._rows -= sum(map(len, popped))
        self._start += count
        while self._parts and self._start >= len(self._parts[0]):
            self._start -= len(self._parts.popleft())
        return popped


class Partition:
    """The stateful part of reading one partition. Nothing in it depends on time or on how chunks were cut.

    letters: where records go that lie ahead of their log, or for which the join has no room.
    """

    def __init__(
        self,
        pipeline: Pipeline,
        number: int,
        state: PartitionState | None,
        letters: DeadLetters | None = None,
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
        self.ready = ReadyQueue()
        self.frontier = self._merge.bound([False] * len(pipeline.streams))
        """Every later example has an order of at least this."""
        self.ended = False
        """Whether nothing will come any more, and all that waited is ready."""
        self._news = False
        if state is not None:
            self.joiner.restore(state.values["join"], state.tables)
            saved = state.tables["ready"].combine_chunks()
            rows = fitted(saved, self.joiner.schema).to_batches()
            for batch, meta in zip(rows, saved.select(["#label", "#order"]).to_batches(), strict=False):
                label, order = (np.array(column.to_numpy()) for column in meta.columns)
                self.ready.append(Ready(batch, label, order))

    def positions(self) -> dict[str, Position]:
        """Topic → where to read on after a restart from the state of this moment."""
        return self._merge.positions()

    def add(self, topic: int, chunk: Chunk) -> None:
        """Take the next records of a topic; `advance` makes examples of them."""
        self._merge.add(topic, chunk)
        self._news = True

    @property
    def waiting(self) -> int:
        """Records that wait for those of another topic."""
        return sum(self._merge.waiting())

    def waiting_of(self) -> list[int]:
        """Records of each topic that were read and not yet released: a restart reads them again."""
        return list(self._merge.waiting())

    @property
    def doubtful(self) -> list[int]:
        """Records of each topic whose time the log has not confirmed yet, with those behind them."""
        return self._merge.doubtful()

    @property
    def late(self) -> list[int]:
        """Records of each topic that came with a time far in the past, since this process began."""
        return self._merge.late()

    @property
    def holding(self) -> int:
        """The topic that holds the others back: that of the least mark."""
        bounds = self._merge.bounds()
        return bounds.index(min(bounds))

    def ahead(self, rows: int) -> list[int]:
        """Topics of which at least so many records wait for another topic, which is behind."""
        waiting, bounds = self._merge.waiting(), self._merge.bounds()
        return [t for t, count in enumerate(waiting) if count >= rows and bounds[t] > self.frontier]

    def advance(self, idle: Sequence[bool], ended: bool, now_ms: int = LAST) -> bool:
        """Release what nothing can come before any more. Returns whether anything moved.

        idle: topics that hold nothing back, because they have ended or are idle. ended: all topics have
        ended, so that impressions leave without waiting for their windows. now_ms: the time of a live log,
        beyond which nothing is believed because its topic is idle.
        """
        self._news |= self._merge.settle(idle, now_ms)
        bound = self._merge.bound(idle)
        if not self._news and bound == self.frontier and ended == self.ended:
            return False
        self._news, self.ended = False, ended
        events = self._merge.release(bound)
        # When all is idle, event time stands where the last event left it.
        self.frontier = bound
        due = bound if ended or bound != LAST else self._merge.mark
        ready = self.joiner.advance(events, due)
        self.ready.append(ready)
        return bool(len(events) or len(ready))

    def _refused(self, stream: Stream, piece: Piece, row: int, detail: str) -> None:
        at = piece.position(row)
        value = row_text(piece.batch, row)
        self._letters.write(stream.topic, self.number, at.offset, at.index, Reason.BAD_TIME, detail, value)

    def state(self) -> PartitionState:
        """All state of this moment."""
        values, tables = self.joiner.export()
        parts = self.ready.slices(len(self.ready))
        batches = [
            pa.RecordBatch.from_arrays(
                [*part.rows.columns, pa.array(part.label), pa.array(part.order)],
                names=[*part.rows.schema.names, "#label", "#order"],
            )
            for part in parts
        ]
        empty = pa.schema([("#label", pa.float32()), ("#order", pa.int64())])
        ready = pa.Table.from_batches(batches, None if batches else empty)
        return PartitionState({"merge": self._merge.state(), "join": values}, {**tables, "ready": ready})
