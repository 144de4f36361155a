"""Final labels of scored examples: quality is measured when an example's label window has passed.

With provisional negatives (`label_join(…, delayed="fnw")`) an example is scored and learned long before its
label is final. Its score waits here and meets its label as an impression meets its click, in the same state
machine (`kernels.stream.join.JoinIndex`) over the training order:

    first example of an impression ─► score  ─┐ waits until the order passes max(time + window, own order)
    positive, at once or late      ─► click  ─┴─► record with the score of then and the final label

No late positive comes after that, so labels are final. Records leave in the order in which their windows end,
clicked or not: a window of the newest positives and older negatives would show too many clicks. If a source
that was idle falls behind the watermark (`idle_partition_s`), its late positives may find no score; they are
left out.

A score waits on rank 0 for each impression whose window has not passed, so `max_bytes` of the label joins
bounds both. It takes about 50 bytes, 4 for each model, and 192 of the index.
"""

from __future__ import annotations

from collections.abc import Iterable
from functools import reduce

import numpy as np
import numpy.typing as npt
import pyarrow as pa

from livectr.ingest.join.row_log import RowLog
from livectr.ingest.plan.segments import NO_SEGMENT
from livectr.kernels.keys.keys import combine_keys
from livectr.kernels.stream.clock import LAST
from livectr.kernels.stream.join import ACCEPTED, CLICK, IMPRESSION, PENDING, JoinIndex
from livectr.kernels.stream.known import COLUMNS
from livectr.trainer.part import Arrays, Part
from livectr.trainer.quality.predictions import CALIBRATED, SEGMENT, WEIGHT, Records, layout
from livectr.trainer.setup import Setup

I64 = npt.NDArray[np.int64]
PART_ROWS = 1 << 16
UNBOUNDED = 1 << 60
"""Bytes: the label joins of the source bound what waits here."""
_JOIN, _ROWS, _KNOWN = "join.", "record.", "known."


class FinalLabels(Part):
    """Scores that wait for the end of their label windows.

    Args:
        window_ms: label window.
        roles: models that score.
        weighted: examples have weights.
        worths: names of measured worths (`Worths.measured`).
    """

    kind = "scores"

    def __init__(
        self, window_ms: int, roles: Iterable[str], *, weighted: bool = False, worths: Iterable[str] = ()
    ) -> None:
        self._window_ms = window_ms
        self._columns = layout(roles, weighted=weighted, worths=worths)
        # A key need not be known after its window: the source has dropped duplicates.
        self._join = JoinIndex(window_ms, 0, max_bytes=UNBOUNDED)
        kinds = {name: pa.from_numpy_dtype(self._columns[name]) for name in self._columns.names or ()}
        self._schema = pa.schema(list(kinds.items()))
        self._rows = RowLog(self._schema, part_rows=PART_ROWS)
        self._order = -LAST

    @staticmethod
    def of(setup: Setup, roles: Iterable[str]) -> FinalLabels | None:
        """Labels of a run on rank 0; None where every label is final at once, and on other ranks."""
        view, weighted = setup.pipeline.log, setup.pipeline.example_weights is not None
        if setup.rank != 0 or not view.provisional:
            return None
        worths = () if setup.pipeline.worths is None else setup.pipeline.worths.measured
        return FinalLabels(view.window_ms, roles, weighted=weighted, worths=worths)

    def __len__(self) -> int:
        return self._join.counts.pending

    def add(self, scored: Records, late: npt.NDArray[np.bool_], order: I64) -> Records:
        """Add a batch in training order.

        Args:
            scored: records[B] with the labels of the batch.
            late: bool[B], late positives.
            order: int64[B], places in the global sequence.

        Returns:
            Records whose windows have ended before the last order, with their scores and final labels.
        """
        return self.add_block(scored, late, order, np.array([0, len(scored)]))[0]

    def add_block(
        self, scored: Records, late: npt.NDArray[np.bool_], order: I64, bounds: I64
    ) -> tuple[Records, I64]:
        """Add batches in training order.

        Args:
            scored: see `add`.
            late: see `add`.
            order: see `add`.
            bounds: int64[P + 1], of the batches.

        Returns:
            See `add`; bounds int64[P + 1] of the records that each batch let out.
        """
        if not len(scored):
            return scored, np.zeros(len(bounds), np.int64)
        order = np.maximum(np.maximum.accumulate(order), self._order)
        reached = np.append(self._order, order)[bounds]
        self._order = int(order[-1])
        first, clicked = np.flatnonzero(~late), np.flatnonzero(scored["label"])
        place = np.concatenate([first, clicked])
        kind = np.repeat(np.array([IMPRESSION, CLICK], np.uint8), [len(first), len(clicked)])
        sequence = np.lexsort((kind, place))  # an example first, then its click
        place, kind = place[sequence], kind[sequence]
        key = combine_keys(scored["instance"][place], scored["user"][place])
        time_ms = np.ascontiguousarray(scored["time_ms"][place])
        status = self._join.push(kind, key, time_ms, order[place]).status
        waits = place[(kind == IMPRESSION) & (status == ACCEPTED)]
        if len(waits):
            ends = np.maximum(scored["time_ms"][waits] + self._window_ms, order[waits])
            self._rows.append(self._batch(scored[waits]), until=int(ends.max()))
        records, deadline = self._release(self._order)
        return records, deadline.searchsorted(reached)

    def finish(self) -> Records:
        """All records that wait: at the end of the logs no more clicks come."""
        return self._release(LAST)[0]

    def _release(self, bound: int) -> tuple[Records, I64]:
        """Records whose windows end before a bound, and these ends."""
        released = self._join.release(bound)
        records = self._records(self._rows.take(released.slot))
        records["label"] = released.label
        self._rows.drop(bound)
        return records, released.deadline

    def state(self) -> Arrays:
        """State for a checkpoint: equal for equal states."""
        join = self._join.export()
        waits = np.flatnonzero(join["state"] == PENDING)
        waits = waits[np.argsort(join["slot"][waits])]
        records = self._records(self._rows.take(join["slot"][waits].astype(np.int64)))
        slot = np.full(len(join["key"]), -1, np.int64)
        slot[waits] = np.arange(len(waits))
        counters = join["counters"].copy()
        counters[0] = len(waits)
        join |= {"slot": slot, "counters": counters, "order": np.array([self._order])}
        state = {_JOIN + name: np.ascontiguousarray(values) for name, values in join.items()}
        state |= {_KNOWN + name: values for name, values in self._join.known().items()}
        return state | {_ROWS + name: np.ascontiguousarray(records[name]) for name in self._schema.names}

    def load(self, state: Arrays) -> None:
        """Resume from a `state`: pending joins, and the scores that wait for them."""
        join = {name.removeprefix(_JOIN): v for name, v in state.items() if name.startswith(_JOIN)}
        self._order = int(join.pop("order")[0])
        self._join.restore(join, {name: state[_KNOWN + name] for name in COLUMNS})
        rows = {name.removeprefix(_ROWS): v for name, v in state.items() if name.startswith(_ROWS)}
        if CALIBRATED in self._schema.names and CALIBRATED not in rows:  # of a run that was not calibrated
            rows |= {CALIBRATED: rows["rank"], SEGMENT: np.full(len(rows["rank"]), NO_SEGMENT)}
        if WEIGHT not in rows:  # of a run in which each example counted once
            rows |= {WEIGHT: np.ones(len(rows["instance"]), np.float32)}
        columns = {name: rows[name] for name in self._schema.names}
        records = np.empty(len(columns["instance"]), self._columns)
        for name, values in columns.items():
            records[name] = values
        by_slot = np.argsort(join["slot"])[len(join["slot"]) - len(records) :]
        ends = np.maximum(join["deadline"][by_slot], records["time_ms"] + self._window_ms)
        for start in range(0, len(records), PART_ROWS):
            part = slice(start, start + PART_ROWS)
            self._rows.append(self._batch(records[part]), until=int(ends[part].max()))

    def _batch(self, records: Records) -> pa.RecordBatch:
        arrays = [pa.array(np.ascontiguousarray(records[name])) for name in self._schema.names]
        return pa.RecordBatch.from_arrays(arrays, schema=self._schema)

    def _records(self, rows: pa.RecordBatch) -> Records:
        records = np.empty(rows.num_rows, self._columns)
        for name, column in zip(self._schema.names, rows.columns, strict=True):
            records[name] = column.to_numpy()
        return records


def with_final_labels(scored: Records, late: npt.NDArray[np.bool_]) -> npt.NDArray[np.bool_]:
    """Give examples of a whole log their final labels, in place.

    Args:
        scored: records[n].
        late: bool[n], late positives.

    Returns:
        bool[n], records that count as examples: all but the late positives.
    """
    key = reduce(
        combine_keys, (np.ascontiguousarray(scored[name]) for name in ("instance", "user", "time_ms"))
    )
    scored["label"][np.isin(key, key[late])] = 1
    return ~late
