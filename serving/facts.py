"""Look-up rows and behaviour histories of a request, from Redis.

Look-up rows (users, ads) are kept for `fresh_s`; when Redis cannot be asked, the rows that were kept longer
still answer. Histories are one small value per request and always read.
"""

from __future__ import annotations

import base64
import threading
import time
from collections.abc import Sequence

import numpy as np
import pyarrow as pa

from ingest import dtypes
from ingest.expr import Expr, RecentRef
from ingest.streams import Table
from protos.store import I64, decode_fact, decode_history
from serving.reader import DownError, Reader

_Row = list[object] | None
_NEVER: tuple[float, _Row] = (float("-inf"), None)


class Facts:
    """The latest rows of the look-up tables. fresh_s: how long a row is used before it is asked again.

    max_rows: when more are kept, all are dropped and asked again.
    """

    def __init__(self, reader: Reader, *, fresh_s: float = 1.0, max_rows: int = 500_000) -> None:
        self._reader = reader
        self._fresh_s = fresh_s
        self._max_rows = max_rows
        self._rows: dict[str, dict[int, tuple[float, _Row]]] = {}
        self._lock = threading.Lock()

    def columns(self, table: Table, keys: I64, roots: Sequence[Expr]) -> tuple[dict[str, pa.Array], bool]:
        """The roots of `table` for keys i64[n], as arrays of n values; unknown keys give nulls.

        Also whether every row could be asked (False: Redis is away).
        """
        rows, asked = self._lookup(table.topic, keys.tolist())
        position = {name: i for i, name in enumerate(table.columns)}
        arrays = {}
        for root in roots:
            at = position[root.ref.column]
            values = [None if row is None else row[at] for row in rows]
            if root.dtype == "binary":
                values = [base64.b64decode(v) if isinstance(v, str) else v for v in values]
            arrays[root.name] = pa.array(values, dtypes.arrow_type(root.dtype))
        return arrays, asked

    def _lookup(self, table: str, keys: list[int]) -> tuple[list[_Row], bool]:
        kept = self._rows.setdefault(table, {})
        now = time.monotonic()
        oldest = now - self._fresh_s
        entries = [kept.get(key, _NEVER) for key in keys]
        stale = list({key for key, entry in zip(keys, entries, strict=True) if entry[0] < oldest})
        if not stale:
            return [row for _, row in entries], True
        try:
            names = self._reader.keyspace.facts(table, np.array(stale, np.int64))
            values = self._reader.values(names)
        except DownError:
            return [row for _, row in entries], False
        fresh = {
            key: (now, None if value is None else decode_fact(value))
            for key, value in zip(stale, values, strict=True)
        }
        with self._lock:
            if len(kept) + len(fresh) > self._max_rows:
                kept.clear()
            kept.update(fresh)
        return [(fresh.get(key) or entry)[1] for key, entry in zip(keys, entries, strict=True)], True


def histories(reader: Reader, user: int, roots: Sequence[Expr], now_ms: int) -> tuple[dict[str, I64], bool]:
    """Items of each recent() root for a user's key at `now_ms`, newest last; and whether Redis was asked."""
    key = np.array([user], np.int64)
    names = [name for root in roots for name in reader.keyspace.histories(root.name, key)]
    try:
        values, asked = reader.values(names), True
    except DownError:
        values, asked = [None] * len(names), False
    found = {}
    for root, value in zip(roots, values, strict=True):
        ref = root.ref
        assert isinstance(ref, RecentRef)
        items, times = decode_history(value or b"")
        recent = (times <= now_ms) & (now_ms - times <= ref.within_ms)
        found[root.name] = items[recent][-ref.n :]
    return found, asked
