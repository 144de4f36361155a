"""Look-up rows and behaviour histories of a request, from Redis in one question.

Look-up rows (users, ads) are kept for `fresh_s`; when Redis cannot be asked, the rows that were kept longer
still answer. A history is one small value per request and always read.
"""

from __future__ import annotations

import base64
import threading
import time
from collections.abc import Sequence
from dataclasses import dataclass

import numpy as np
import pyarrow as pa

from ingest import dtypes
from ingest.expr import Expr, RecentRef
from ingest.streams import Table
from protos.store import I64, decode_facts, decode_history
from serving.reader import DownError, Reader

Row = list[object] | None
_NEVER: tuple[float, Row] = (float("-inf"), None)


@dataclass(frozen=True)
class Wanted:
    """Rows of `table` for keys i64[n]."""

    table: Table
    keys: I64


@dataclass(frozen=True)
class Found:
    """What Redis knows.

    rows: for each `Wanted`, a row (its columns in declared order) or None per key. histories: a value or None
    per name. asked: False when Redis could not be asked, so that something may be missing or old.
    """

    rows: list[list[Row]]
    histories: list[bytes | None]
    asked: bool


class Facts:
    """The latest look-up rows. fresh_s: how long a row is used before it is asked again.

    max_rows: when more are kept, all are dropped and asked again.
    """

    def __init__(self, reader: Reader, *, fresh_s: float = 1.0, max_rows: int = 500_000) -> None:
        self._reader = reader
        self._fresh_s = fresh_s
        self._max_rows = max_rows
        self._kept: dict[tuple[str, int], tuple[float, Row]] = {}
        self._lock = threading.Lock()

    def find(self, wanted: Sequence[Wanted], histories: Sequence[bytes] = ()) -> Found:
        """Look-up rows, and histories by their Redis names."""
        now = time.monotonic()
        oldest = now - self._fresh_s
        asked = [[(w.table.topic, key) for key in w.keys.tolist()] for w in wanted]
        entries = [[self._kept.get(name, _NEVER) for name in names] for names in asked]
        stale: list[tuple[str, int]] = []
        redis_names: list[bytes] = []
        for w, names, held in zip(wanted, asked, entries, strict=True):
            old = list({name for name, entry in zip(names, held, strict=True) if entry[0] < oldest})
            stale += old
            redis_names += self._reader.keyspace.facts(
                w.table.topic, np.array([key for _, key in old], np.int64)
            )
        if not redis_names and not histories:
            return Found([[row for _, row in held] for held in entries], [], True)
        try:
            values = self._reader.values([*redis_names, *histories])
        except DownError:
            return Found([[row for _, row in held] for held in entries], [None] * len(histories), False)
        decoded = iter(decode_facts([value for value in values[: len(stale)] if value is not None]))
        fresh: dict[tuple[str, int], tuple[float, Row]] = {
            name: (now, None if value is None else next(decoded))
            for name, value in zip(stale, values, strict=False)
        }
        self._keep(fresh)
        rows = [
            [(fresh.get(name) or entry)[1] for name, entry in zip(names, held, strict=True)]
            for names, held in zip(asked, entries, strict=True)
        ]
        return Found(rows, values[len(stale) :], True)

    def _keep(self, fresh: dict[tuple[str, int], tuple[float, Row]]) -> None:
        with self._lock:
            if len(self._kept) + len(fresh) > self._max_rows:
                self._kept.clear()
            self._kept.update(fresh)


def fact_columns(table: Table, rows: Sequence[Row], roots: Sequence[Expr]) -> dict[str, pa.Array]:
    """The roots of `table` as arrays of n values; a row that is None gives nulls."""
    position = {name: i for i, name in enumerate(table.columns)}
    arrays = {}
    for root in roots:
        at = position[root.ref.column]
        values = [None if row is None else row[at] for row in rows]
        if root.dtype == "binary":
            values = [base64.b64decode(v) if isinstance(v, str) else v for v in values]
        arrays[root.name] = pa.array(values, dtypes.arrow_type(root.dtype))
    return arrays


def recent_items(ref: RecentRef, value: bytes | None, now_ms: int) -> I64:
    """Items of a history as of `now_ms`, newest last: the last n that are no older than `within_ms`."""
    items, times = decode_history(value or b"")
    recent = (times <= now_ms) & (now_ms - times <= ref.within_ms)
    return items[recent][-ref.n :]
