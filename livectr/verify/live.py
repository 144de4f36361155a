"""Live inputs of requests: look-up rows and behavior histories, as Redis holds them.

They have no version. A server reads histories for each request. It keeps a look-up row until the version that
lists it is served, a push after the row was written. So a value that Redis held before that time and still
holds after the reply is the one that was used; of a value that changed meanwhile, the two are known.
"""

from __future__ import annotations

from base64 import b64decode
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from functools import reduce
from typing import Any

import numpy as np
import numpy.typing as npt
import pyarrow as pa

from livectr.ingest.language import dtypes
from livectr.ingest.language.expr import RecentRef
from livectr.ingest.language.keys import key_of
from livectr.ingest.language.tables import Table
from livectr.ingest.pipeline import Pipeline
from livectr.kernels.keys.keys import combine_keys
from livectr.library.tables import root_columns
from livectr.store.layout import Keyspace, decode_history, decode_lookup_rows, without_password
from livectr.store.redis_client import connect_redis
from livectr.store.redis_errors import REDIS_ERRORS
from livectr.store.redis_url import is_clustered
from livectr.system.errors import ConnectError
from livectr.verify.requests import Request

Values = Mapping[bytes, bytes | None]
"""Redis key → value."""
_MGET_KEYS = 4096


@dataclass(frozen=True)
class Names:
    """Redis keys of a request's live inputs.

    Args:
        rows: topic of a look-up table → keys of its rows, one or one a candidate.
        histories: keys of the user's histories, in the order of the pipeline's.
    """

    rows: Mapping[str, Sequence[bytes]]
    histories: Sequence[bytes]

    def __iter__(self) -> Any:
        for names in self.rows.values():
            yield from names
        yield from self.histories


class LiveInputs:
    """Reads live inputs from the Redis that the servers read.

    Args:
        url: of Redis.
        namespace: prefix of its keys.

    Attributes:
        needed: features read live inputs; else Redis is not asked.
    """

    def __init__(self, pipeline: Pipeline, url: str, namespace: str) -> None:
        self._pipeline, self._url, self._space = (
            pipeline,
            url,
            Keyspace(namespace, clustered=is_clustered(url)),
        )
        self._tables = {lookup.table.topic: lookup.table for lookup in pipeline.joined}
        self._histories = [(r.name, r.ref) for r in pipeline.history_roots if isinstance(r.ref, RecentRef)]
        self.needed = bool(self._tables or self._histories)
        self._redis = connect_redis("verify", url, timeout_s=5) if self.needed else None

    def names(self, request: Request) -> Names:
        """Redis keys of a request's live inputs."""
        rows = request.rows(self._pipeline)
        found = {}
        for lookup in self._pipeline.joined:
            shared = all(name in request.context or name in request.others for name in lookup.keys)
            once = rows.slice(0, 1 if shared else len(rows))
            keys = reduce(combine_keys, (key_of(once.column(name)) for name in lookup.keys))
            found[lookup.table.topic] = self._space.lookup_rows(lookup.table.topic, keys)
        users = key_of(rows.column(self._pipeline.log.impressions.key).slice(0, 1))
        return Names(found, [n for name, _ in self._histories for n in self._space.histories(name, users)])

    def read(self, names: Sequence[Names]) -> Values:
        """Read the values of some requests. Raises ConnectError if Redis does not answer."""
        if self._redis is None:
            return {}
        wanted = list(dict.fromkeys(name for some in names for name in some))
        values: list[bytes | None] = []
        try:
            for start in range(0, len(wanted), _MGET_KEYS):
                values += self._redis.fetch(wanted[start : start + _MGET_KEYS])
        except REDIS_ERRORS as error:
            raise ConnectError(
                f"Redis at {without_password(self._url)} does not answer ({error}); name the Redis that the "
                "servers read with --redis"
            ) from None
        return dict(zip(wanted, values, strict=True))

    def columns(self, request: Request, names: Names, values: Values) -> pa.RecordBatch:
        """Columns of the plan's roots for a request with these live inputs, n rows."""
        rows = request.rows(self._pipeline)
        time = self._pipeline.log.impressions.time
        now_ms = rows.column(time)[0].as_py() if time is not None else 0
        for (name, ref), key in zip(self._histories, names.histories, strict=True):
            items = _recent(ref, values[key], now_ms)
            rows = rows.append_column(name, pa.array([items] * len(rows), pa.list_(pa.int64())))
        tables = {
            topic: _table(self._tables[topic], [values[key] for key in dict.fromkeys(keys)])
            for topic, keys in names.rows.items()
        }
        return root_columns(self._pipeline, rows, tables)

    def moved(self, request: Request, names: Names, values: tuple[Values, Values]) -> npt.NDArray[np.bool_]:
        """bool[n], candidates of which a live input differs between two readings."""
        before, after = values
        moved = np.full(len(request), any(before[key] != after[key] for key in names.histories))
        for keys in names.rows.values():
            moved |= np.array([before[key] != after[key] for key in keys])
        return moved

    def close(self) -> None:
        """Close the connection to Redis, if one was opened."""
        if self._redis is not None:
            self._redis.close()


def _recent(ref: RecentRef, value: bytes | None, now_ms: int) -> npt.NDArray[np.int64]:
    """Items of a history as of `now_ms`, newest last: the last n that are at most `within_ms` old."""
    items, times = decode_history(value or b"")
    recent = (times <= now_ms) & (now_ms - times <= ref.within_ms)
    return items[recent][-ref.n :]


def _table(table: Table, values: Sequence[bytes | None]) -> pa.Table:
    """Look-up rows that exist, as an Arrow table."""
    rows = decode_lookup_rows([value for value in values if value is not None])
    columns = zip(*rows, strict=True) if rows else ((),) * len(table.columns)
    found = {}
    for (name, dtype), column in zip(table.columns.items(), columns, strict=True):
        raw = dtype in dtypes.BYTES
        given = [b64decode(value) if raw and isinstance(value, str) else value for value in column]
        found[name] = pa.array(given, dtypes.arrow_type(dtype))
    return pa.table(found)
