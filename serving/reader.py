"""What a server asks Redis: the manifest and blobs of a version, rows, facts, histories.

Two ways with two tempers: the watcher of versions has time (blobs are large), a request has none. When a
request's question fails, the next ones do not ask for a moment, so that a dead Redis costs one short timeout
and not one for each request.
"""

from __future__ import annotations

import threading
import time
from collections.abc import Sequence
from typing import cast

import numpy as np
import redis
from redis.backoff import NoBackoff
from redis.retry import Retry

from kernels.errors import ConfigError, ConnectError
from protos.store import F32, I64, Keyspace, RowStatus, VersionManifest, decode_rows

REDIS_ERRORS = (redis.ConnectionError, redis.TimeoutError)
"""Redis cannot be asked: it is away, restarting or too slow."""

_REQUEST_TIMEOUT_S = 0.25
_WATCH_TIMEOUT_S = 10.0
_PAUSE_S = 0.5
_MGET_KEYS = 8192
"""One command holds up every other client of Redis, so long questions are cut."""


class DownError(Exception):
    """Redis cannot be asked at the moment."""


class SupersededError(Exception):
    """A row is no longer readable at the asked version: both its slots are newer."""


class Reader:
    """Questions to one Redis server, for the namespace of one pipeline. Any thread may ask.

    Raises ConfigError for a URL that is not a Redis URL.
    """

    def __init__(self, url: str, namespace: str) -> None:
        self.url = url
        self.keyspace = Keyspace(namespace)
        try:
            self._requests = _client(url, _REQUEST_TIMEOUT_S)
            self._watch = _client(url, _WATCH_TIMEOUT_S)
        except ValueError as error:
            raise ConfigError(f"{url!r} is not a Redis URL such as redis://HOST:PORT ({error})") from error
        self._lock = threading.Lock()
        self._pause_until = 0.0

    def ping(self) -> None:
        """Raises ConnectError when Redis does not answer."""
        try:
            self._watch.ping()
        except redis.RedisError as error:
            raise ConnectError(f"Redis at {self.url} cannot be reached: {error}") from error

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

    def changed_rows(self, manifest: VersionManifest, table: str, keys: I64) -> tuple[F32, I64]:
        """Rows of the watcher's keys i64[n]: (f32[n, D], RowStatus[n]). Raises one of REDIS_ERRORS."""
        return _rows(self._watch, self.keyspace, manifest, table, keys)

    def rows(self, manifest: VersionManifest, table: str, keys: I64) -> tuple[F32, I64]:
        """Rows of a request's keys i64[n]: (f32[n, D], RowStatus FOUND or MISSING [n]).

        Raises DownError; SupersededError when the version is too old to be read.
        """
        self._may_ask()
        try:
            rows, status = _rows(self._requests, self.keyspace, manifest, table, keys)
        except REDIS_ERRORS as error:
            raise self._down(error) from error
        if (status == RowStatus.OVERWRITTEN).any():
            raise SupersededError
        return rows, status

    def values(self, names: list[bytes]) -> list[bytes | None]:
        """Facts or histories by their Redis keys. Raises DownError."""
        if not names:
            return []
        self._may_ask()
        try:
            return cast("list[bytes | None]", self._requests.mget(names))
        except REDIS_ERRORS as error:
            raise self._down(error) from error

    def resume(self) -> None:
        """Lets requests ask again at once: the watcher has just had an answer."""
        with self._lock:
            self._pause_until = 0.0

    def _may_ask(self) -> None:
        if time.monotonic() < self._pause_until:
            raise DownError("Redis did not answer a moment ago")

    def _down(self, error: Exception) -> DownError:
        with self._lock:
            self._pause_until = time.monotonic() + _PAUSE_S
        return DownError(str(error))


def _client(url: str, timeout_s: float) -> redis.Redis:
    # One immediate retry: a pooled connection that Redis closed while it was idle must not fail a request.
    return redis.Redis.from_url(
        url,
        socket_timeout=timeout_s,
        socket_connect_timeout=timeout_s,
        retry=Retry(NoBackoff(), 1),
    )


def _rows(
    client: redis.Redis, keyspace: Keyspace, manifest: VersionManifest, table: str, keys: I64
) -> tuple[F32, I64]:
    if len(keys) == 0:
        return np.zeros((0, manifest.dim), np.float32), np.zeros(0, np.int64)
    names = keyspace.rows(manifest.ns, table, keys)
    values: list[bytes | None] = []
    for start in range(0, len(names), _MGET_KEYS):
        values += cast("list[bytes | None]", client.mget(names[start : start + _MGET_KEYS]))
    rows, status = decode_rows(values, manifest.version, manifest.dim)
    return rows, status.astype(np.int64)
