"""Windowed join of one kind of events to impressions, with the columns of the impressions that wait.

It is `kernels.stream.join.JoinIndex` and the rows that it numbers.
"""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

import numpy as np
import numpy.typing as npt
import pyarrow as pa

from livectr.ingest.join.payload import cast_saved
from livectr.ingest.join.row_log import RowLog
from livectr.kernels.runtime.offsets import offsets_of
from livectr.kernels.stream.join import AFTER_WAIT, IN_WINDOW, PENDING, PROVISIONAL, WAITING_AMOUNT, JoinIndex
from livectr.kernels.stream.known import Columns

I64 = npt.NDArray[np.int64]
F64 = npt.NDArray[np.float64]
Bools = npt.NDArray[np.bool_]

PART_ROWS = 16_384


class WindowJoin:
    """Join of one kind of events, and the columns of its impressions.

    Args:
        index: new, of a window of `window_ms`.
        window_ms: time for which an impression's columns are kept, at least.
        schema: of these columns.
        finals: the index has finals.
    """

    def __init__(self, index: JoinIndex, window_ms: int, schema: pa.Schema, *, finals: bool = False) -> None:
        self.index, self.schema = index, schema
        self._window_ms, self._finals = window_ms, finals
        self._columns = RowLog(schema, part_rows=PART_ROWS)

    def keep(self, rows: pa.RecordBatch, ts: I64, mark: I64) -> None:
        """Keep the columns of the impressions that the index has accepted since the last call.

        Args:
            rows: n rows of the schema.
            ts: int64[n], event times in ms.
            mark: int64[n], watermarks in ms.
        """
        if len(rows):
            self._columns.append(rows, until=int(np.maximum(ts + self._window_ms, mark).max()))

    def release(self, bound: int) -> tuple[pa.RecordBatch, npt.NDArray[np.uint8], I64, F64]:
        """Impressions that leave.

        Returns:
            Rows, labels uint8[m], places int64[m] and amounts float64[m] (`JoinIndex.release_with_amounts`).
        """
        (slot, label, _, order), amount = self.index.release_with_amounts(bound)
        rows = self._columns.take(slot)
        self._columns.drop(bound)
        return rows, label, order, amount

    def export(self) -> tuple[list[int], dict[str, pa.Table]]:
        """Counters, and tables "join" and "payload": all state but known keys.

        They have the columns of impressions that may still leave. Slots are renumbered from 0, because
        restored columns start there.
        """
        join = self.index.export()
        kept = np.flatnonzero(self._may_leave(join))
        kept = kept[np.argsort(join["slot"][kept])]
        payload = self._columns.take(join["slot"][kept].astype(np.int64))
        slot = np.full(len(join["key"]), -1, np.int64)
        slot[kept] = np.arange(len(kept))
        counters = join.pop("counters")
        counters[0] = len(kept)
        clicks, waiting = join.pop("clicks"), join.pop("waiting")
        amounts = join.pop(WAITING_AMOUNT, None)
        offsets = pa.array(offsets_of(clicks, "clicks that wait for an impression"))
        columns = {name: pa.array(values) for name, values in {**join, "slot": slot}.items()}
        columns["clicks"] = pa.ListArray.from_arrays(offsets, pa.array(waiting))
        if amounts is not None:
            columns[WAITING_AMOUNT] = pa.ListArray.from_arrays(offsets, pa.array(amounts))
        return counters.tolist(), {
            "join": pa.table(columns),
            "payload": pa.Table.from_batches([payload]),
        }

    def restore(self, counters: list[int], tables: Mapping[str, pa.Table], known: Columns) -> None:
        """Load state from `export`, and known keys, into a new join."""
        saved = tables["join"].combine_chunks()
        clicks = saved.column("clicks").combine_chunks()
        join: dict[str, npt.NDArray[Any]] = {
            name: saved.column(name).to_numpy()
            for name in saved.column_names
            if name not in ("clicks", WAITING_AMOUNT)
        }
        join["clicks"] = np.diff(clicks.offsets.to_numpy()).astype(np.int32)
        join["waiting"] = np.array(clicks.flatten().to_numpy(), np.int64)
        if WAITING_AMOUNT in saved.column_names:
            amounts = saved.column(WAITING_AMOUNT).combine_chunks()
            join[WAITING_AMOUNT] = np.array(amounts.flatten().to_numpy(), np.float64)
        join["counters"] = np.array(counters, np.int64)
        self.index.restore(join, known)
        kept = np.flatnonzero(join["slot"] >= 0)
        kept = kept[np.argsort(join["slot"][kept])]
        ends = np.maximum(join["deadline"][kept], join["ts"][kept] + self._window_ms)
        for start in range(0, len(kept), PART_ROWS):
            rows = cast_saved(tables["payload"].slice(start, PART_ROWS), self.schema).combine_chunks()
            until = int(ends[start : start + PART_ROWS].max())
            self._columns.append(rows.to_batches()[0], until=until)

    def _may_leave(self, join: Mapping[str, npt.NDArray[Any]]) -> Bools:
        """Mask bool[n] of the keys whose impression waits, or may leave once more.

        It may leave by a late click or as a final.
        """
        leaves: Bools = join["state"] == PENDING
        open_ = self._finals | ~np.isin(join["clicked"], (IN_WINDOW, AFTER_WAIT))
        leaves |= (join["state"] == PROVISIONAL) & open_
        # A state of a join without finals has no columns of what has got its click: it leaves no more.
        return leaves & (join["slot"] >= 0)
