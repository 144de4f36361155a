"""What a server asks Redis: the manifest and blobs of a version, rows, facts, histories.

Two ways with two tempers: the watcher of versions has time (blobs are large), a request has none. When a
request's question fails, the next ones do not ask for a moment, so that a dead Redis costs one short timeout
and not one for each request.
"""

from __future__ import annotations

import time
from collections.abc import Mapping, Sequence
from typing import cast

import numpy as np
import numpy.typing as npt
import redis
from redis.backoff import NoBackoff
from redis.retry import Retry

from kernels.errors import ConfigError, ConnectError
from protos.manifest import VersionManifest
from protos.store import F32, I64, Keyspace, decode_rows, without_password

U8 = npt.NDArray[np.uint8]

REDIS_ERRORS = (redis.ConnectionError, redis.TimeoutError)
"""Redis cannot be asked: it is away, restarting or too slow."""

_REQUEST_TIMEOUT_S = 0.25
_WATCH_TIMEOUT_S = 10.0
_PAUSE_S = 0.5
_MGET_KEYS = 8192
"""One command holds up every other client of Redis, so long questions are cut."""


class DownError(Exception):
    """Redis cannot be asked at the moment."""


class Reader:
    """Questions to one Redis server, for the namespace of one pipeline. Any thread may ask.

    Raises ConfigError for a URL that is not a Redis URL.
    """

    def __init__(self, url: str, namespace: str) -> None:
        self.url = without_password(url)
        self.keyspace = Keyspace(namespace)
        try:
            self._requests = _client(url, _REQUEST_TIMEOUT_S)
            self._watch = _client(url, _WATCH_TIMEOUT_S)
        except ValueError as error:
            raise ConfigError(
                f"{self.url!r} is not a Redis URL such as redis://HOST:PORT ({error})"
            ) from error
        self._pause_until = 0.0

    def ping(self) -> None:
        """Raises ConnectError when Redis does not answer."""
        try:
            self._watch.ping()
        except redis.RedisError as error:
            raise ConnectError(
                f"Redis at {self.url} cannot be reached ({error}); start it or change --redis"
            ) from error

    def close(self) -> None:
        self._requests.close()
        self._watch.close()

    def subscribe(self) -> redis.client.PubSub:
        """A subscription to the channel of versions. Raises one of REDIS_ERRORS."""
        subscription: redis.client.PubSub = self._watch.pubsub(  # type: ignore[no-untyped-call]
            ignore_subscribe_messages=True
        )
        subscription.subscribe(self.keyspace.versions)
        return subscription

    def manifest(self) -> bytes | None:
        """The manifest's JSON, None before the first version. Raises one of REDIS_ERRORS."""
        return cast("bytes | None", self._watch.get(self.keyspace.manifest))

    def blobs(self, names: Sequence[str]) -> list[bytes | None]:
        """Blobs by name, None for one that is gone. Raises one of REDIS_ERRORS."""
        return [cast("bytes | None", self._watch.get(name)) for name in names]

    def rows(
        self, manifest: VersionManifest, keys: Mapping[str, I64], *, patient: bool = False
    ) -> dict[str, tuple[F32, U8]]:
        """Rows of each table's keys i64[n], as of the manifest: (f32[n, D], RowStatus u8[n]).

        A request's question raises DownError; one of the watcher (`patient`) raises one of REDIS_ERRORS.
        """
        names = [
            name for table, wanted in keys.items() for name in self.keyspace.rows(manifest.ns, table, wanted)
        ]
        if names:
            names.append(self.keyspace.floor.encode())  # the last: it must be read after the rows
        values = _mget(self._watch, names) if patient else self.values(names)
        floor = int(values.pop() or 0) if names else 0
        found, start = {}, 0
        for table, wanted in keys.items():
            part = values[start : start + len(wanted)]
            found[table] = decode_rows(part, manifest.version, manifest.dim, floor)
            start += len(wanted)
        return found

    def values(self, names: list[bytes]) -> list[bytes | None]:
        """A request's rows, facts or histories by their Redis keys. Raises DownError."""
        if time.monotonic() < self._pause_until:
            raise DownError("Redis did not answer a moment ago")
        try:
            return _mget(self._requests, names)
        except REDIS_ERRORS as error:
            self._pause_until = time.monotonic() + _PAUSE_S
            raise DownError(str(error)) from error

    def resume(self) -> None:
        """Lets requests ask again at once: the watcher has just had an answer."""
        self._pause_until = 0.0


def _mget(client: redis.Redis, names: list[bytes]) -> list[bytes | None]:
    values: list[bytes | None] = []
    for start in range(0, len(names), _MGET_KEYS):
        values += cast("list[bytes | None]", client.mget(names[start : start + _MGET_KEYS]))
    return values


def _client(url: str, timeout_s: float) -> redis.Redis:
    # One immediate retry: a pooled connection that Redis closed while it was idle must not fail a request.
    return redis.Redis.from_url(
        url,
        socket_timeout=timeout_s,
        socket_connect_timeout=timeout_s,
        retry=Retry(NoBackoff(), 1),
    )
