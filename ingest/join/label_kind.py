"""Join of one label beside the click: its events and the impressions that wait for them.

    impression, accepted by the join of clicks ─┬─► clicks: leaves as an example when their window has passed
                                                ├─► carts:  leaves again when theirs has, for this label alone
                                                └─► orders: …

Each join has an index and columns of its own, within `max_bytes` of its own. So a label is known when its own
window has passed, and the click waits for none of the others. Columns are those of the example, histories
included: what a label is learned of is what the click was learned of. Labels of equal windows leave together.
A column of a label's events that the value of its target reads, such as the amount of an order, is a number
in the join, and a column of the examples: null but in those that leave for this label, if it came.

An impression that has no room here is learned by its click alone, and becomes a dead letter of the label.
"""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any, NamedTuple

import numpy as np
import numpy.typing as npt
import pyarrow as pa

from livectr.ingest.join.window_join import WindowJoin
from livectr.ingest.language.expr import Expr
from livectr.ingest.language.keys import keys_of
from livectr.ingest.language.labels import EARLY_LABEL, LATE_LABEL, word
from livectr.ingest.language.streams import Label, View
from livectr.kernels.stream.join import (
    ACCEPTED,
    DUPLICATE,
    FINAL_NEGATIVE,
    FULL,
    LATE,
    LATE_POSITIVE,
    NEGATIVE,
    JoinIndex,
)
from livectr.kernels.stream.known import COLUMNS

I64 = npt.NDArray[np.int64]
F64 = npt.NDArray[np.float64]
Bools = npt.NDArray[np.bool_]

LEAST_DEDUP_MS = 600_000
"""Keys are remembered after their deadline for the window or the clock slack, and at least for this time."""
KNOWN = "known"


class Given(NamedTuple):
    """Next events of a label, with the impressions that the join of clicks has accepted, in sequence.

    Args:
        is_event: bool[n], events of the label; the others are impressions.
        ts, mark: int64[n], event times and watermarks.
        impressions, events: their rows, in sequence; None: no row.
        columns: rows of the impressions' examples.
        size: int64[m], bytes of these.
    """

    is_event: Bools
    ts: I64
    mark: I64
    impressions: pa.RecordBatch | None
    events: pa.RecordBatch | None
    columns: pa.RecordBatch
    size: I64


class Pushed(NamedTuple):
    """Answer to `Given`, of its n rows.

    Args:
        key: int64[n].
        full: bool[n], rows for which there was no room.
        repeats: number of events that repeat an earlier one.
    """

    key: I64
    full: Bools
    repeats: int


class Leaving(NamedTuple):
    """Impressions that leave for a label.

    Args:
        rows: m rows of examples.
        words: int64[m], words of the label.
        order: int64[m], places.
        stage: float32[m], FINAL_NEGATIVE, EARLY_LABEL or LATE_LABEL.
    """

    rows: pa.RecordBatch
    words: I64
    order: I64
    stage: npt.NDArray[np.float32]


class LabelKind:
    """Join of one label.

    Args:
        label: its window and columns.
        bit: number of its target.
        view: columns of the clicks, slack and room.
        schema: of the examples' columns.
        amount: column of its events that examples keep; None: there is none.
    """

    def __init__(
        self, label: Label, bit: int, view: View, schema: pa.Schema, amount: Expr | None = None
    ) -> None:
        self.label, self._bit, self._amount = label, bit, amount
        self._on = label.columns(view.on)
        index = JoinIndex(
            label.window_ms,
            # Impressions come once, as the join of clicks lets them through: events alone repeat.
            max(view.clock_slack_ms, view.dedup_ms, LEAST_DEDUP_MS),
            wait_ms=label.leaves_ms,
            finals=label.provisional,
            slack_ms=view.clock_slack_ms,
            amounts=amount is not None,
            max_bytes=view.join_bytes,
        )
        self._join = WindowJoin(index, label.window_ms, schema, finals=label.provisional)
        self._late = 0

    def push(self, given: Given) -> Pushed:
        """Join the next events."""
        keys = keys_of(given.impressions, self._on), keys_of(given.events, self._on)
        key = np.empty(len(given.ts), np.int64)
        key[~given.is_event], key[given.is_event] = keys
        kind = given.is_event.astype(np.uint8)
        amount = None if self._amount is None else _numbers(given.events, self._amount.ref.column)
        status = self._join.index.push(kind, key, given.ts, given.mark, given.size, amount).status
        self._late += int(np.count_nonzero(status == LATE))
        waits = (status == ACCEPTED) & ~given.is_event
        if waits.any():
            rows = given.columns
            if not (of := waits[~given.is_event]).all():
                rows = rows.filter(pa.array(of))
            self._join.keep(rows, given.ts[waits], given.mark[waits])
        repeats = int(np.count_nonzero((status == DUPLICATE) & given.is_event))
        return Pushed(key, status == FULL, repeats)

    def release(self, bound: int) -> Leaving:
        """Impressions that leave."""
        rows, label, order, amount = self._join.release(bound)
        if self._amount is not None:
            rows = _with_numbers(rows, self._amount.name, amount)
        if not self.label.provisional:
            stage = np.full(len(order), FINAL_NEGATIVE, np.float32)
            return Leaving(rows, word(label > 0, self._bit), order, stage)
        stage = np.where(label >= FINAL_NEGATIVE, FINAL_NEGATIVE, EARLY_LABEL).astype(np.float32)
        stage[label == LATE_POSITIVE] = LATE_LABEL
        came = (label != NEGATIVE) & (label != FINAL_NEGATIVE)
        return Leaving(rows, word(came, self._bit), order, stage)

    @property
    def bytes(self) -> int:
        """Bytes of the index, with the columns of impressions that wait."""
        return self._join.index.counts.bytes

    @property
    def counts(self) -> dict[str, int]:
        """Counts of the log so far.

        Events that label an impression, that came after its window, that have no impression, and that may
        still meet one; and impressions that wait.
        """
        counts = self._join.index.counts
        return {
            "matched": counts.matched,
            "late": self._late,
            "unmatched": counts.unmatched,
            "waiting": counts.waiting,
            "pending": counts.pending,
        }

    def export(self) -> tuple[dict[str, Any], dict[str, pa.Table]]:
        """Copy all state, as JSON types and Arrow tables by `names`."""
        counters, tables = self._join.export()
        tables[KNOWN] = pa.table(dict(self._join.index.known()))
        named = {f"{self._begin}{name}": table for name, table in tables.items()}
        return {"counters": counters, "late": self._late}, named

    def restore(self, state: Mapping[str, Any], tables: Mapping[str, pa.Table]) -> None:
        """Load state from `export` into a new join."""
        begin = self._begin
        own = {name.removeprefix(begin): table for name, table in tables.items() if name.startswith(begin)}
        known = own.pop(KNOWN)
        self._join.restore(state["counters"], own, {name: known[name].to_numpy() for name in COLUMNS})
        self._late = state["late"]

    @property
    def _begin(self) -> str:
        """Beginning of the names of its saved tables."""
        return f"label.{self.label.name}."


def _numbers(events: pa.RecordBatch | None, column: str) -> F64:
    """Numbers float64[n] of events, NaN for null."""
    if events is None:
        return np.empty(0)
    return np.asarray(events.column(column).cast(pa.float64()).fill_null(np.nan).to_numpy(), np.float64)


def _with_numbers(rows: pa.RecordBatch, column: str, numbers: F64) -> pa.RecordBatch:
    """Rows with numbers float64[n] in a column, null for NaN."""
    place = rows.schema.get_field_index(column)
    field = rows.schema.field(place)
    found = pa.array(numbers, mask=np.isnan(numbers)).cast(field.type, safe=False)
    return rows.set_column(place, field, found)
