"""Reads of Redis: manifest and blobs of a version, embedding rows, look-up rows, histories.

Two clients: the follower of versions (10 s time-out, blobs are large) and requests (250 ms). Circuit breaker:
after a failed read, requests do not read for a moment, so a dead Redis costs a single time-out instead of a
time-out for each request.

Every read of rows, look-up rows or histories also reads the sentinels of their buckets, after the values. A
value counts only if the sentinel shows that its bucket is complete (`protos.store`).
"""

from __future__ import annotations

import logging
import time
from collections.abc import Callable, Mapping, Sequence
from typing import TypeVar, cast

import numpy as np
import numpy.typing as npt
import redis
from redis.backoff import NoBackoff
from redis.retry import Retry

from livectr.kernels.errors import ConfigError, ConnectError
from livectr.protos.hold import Hold
from livectr.protos.manifest import VersionManifest
from livectr.protos.measured_redis import MeasuredRedis
from livectr.protos.redis_errors import REDIS_ERRORS, Outcome, outcome_of
from livectr.protos.store import (
    BUCKETS,
    F32,
    I64,
    VALUES,
    Keyspace,
    RowStatus,
    buckets_of,
    decode_rows,
    without_password,
)
from livectr.serving.errors import RefusedError, foreign_values
from livectr.serving.version.evictions import EvictionWatch
from livectr.serving.version.health import HealthIssue

log = logging.getLogger(__name__)

T = TypeVar("T")
U8 = npt.NDArray[np.uint8]

_REQUEST_TIMEOUT_S = 0.25
_PATIENT_TIMEOUT_S = 10.0
_PAUSE_S = 0.5
"""Time in seconds for which requests do not read after a failure."""
_MGET_KEYS = 8192
"""Keys of an MGET; a longer command would hold up every other client of Redis."""


class DownError(Exception):
    """Redis cannot be read at the moment."""


class Reader:
    """Reads of a pipeline's namespace on a Redis server. Thread-safe.

    Args:
        url: URL of the Redis server.
        namespace: prefix of the Redis keys.
        fingerprint: of the pipeline; its look-up rows and histories carry it.

    Attributes:
        served_manifest: manifest of the served version; set by the follower.
        problem: reason of the last degraded answer.

    Raises:
        ConfigError: not a Redis URL.
    """

    def __init__(self, url: str, namespace: str, fingerprint: str) -> None:
        self.url = without_password(url)
        self.keyspace = Keyspace(namespace)
        self.evictions = EvictionWatch(self.url)
        self.served_manifest: VersionManifest | None = None
        self.problem = ""
        self._fingerprint = fingerprint.encode()
        try:
            self._requests = _client(url, _REQUEST_TIMEOUT_S, "request")
            self._patient = _client(url, _PATIENT_TIMEOUT_S, "follow")
        except ValueError as error:
            raise ConfigError(
                f"{self.url!r} is not a Redis URL such as redis://HOST:PORT ({error})"
            ) from error
        self._pause_until = 0.0
        self._failure: DownError | RefusedError | None = None

    def ping(self) -> None:
        """Check that Redis answers. A Redis that is still busy, such as with loading its data, passes.

        Raises:
            ConnectError: Redis does not answer, or refuses this server.
        """
        try:
            self._patient.ping()
        except REDIS_ERRORS as error:
            unreachable = type(error) in (redis.ConnectionError, redis.TimeoutError)
            if outcome_of(error) is Outcome.DEGRADED and not unreachable:
                log.warning("Redis at %s is not ready: %s", self.url, error)
                return
            raise ConnectError(
                f"Redis at {self.url} cannot be reached ({error}); start it or change --redis"
            ) from error

    def close(self) -> None:
        self._requests.close()
        self._patient.close()

    def subscribe(self) -> redis.client.PubSub:
        """Subscribe to the channel of versions. Raises an error of REDIS_ERRORS."""
        subscription: redis.client.PubSub = self._patient.pubsub(  # type: ignore[no-untyped-call]
            ignore_subscribe_messages=True
        )
        subscription.subscribe(self.keyspace.versions)
        return subscription

    def manifest(self) -> bytes | None:
        """JSON of the newest manifest; None before the first version. Raises an error of REDIS_ERRORS."""
        return cast("bytes | None", self._patient.get(self.keyspace.manifest))

    def held(self) -> str:
        """Reason of the namespace's hold; "" if there is none. Raises an error of REDIS_ERRORS."""
        hold = Hold.of(cast("bytes | None", self._patient.get(self.keyspace.hold)))
        return hold.reason if hold is not None else ""

    def blobs(self, names: Sequence[str]) -> list[bytes | None]:
        """Blobs by name; None for a blob that is gone. Raises an error of REDIS_ERRORS."""
        return [cast("bytes | None", self._patient.get(name)) for name in names]

    def rows(
        self, manifest: VersionManifest, keys: Mapping[str, I64], *, patient: bool = False
    ) -> dict[str, tuple[F32, U8]]:
        """Read embedding rows as of a version.

        Args:
            keys: table → keys i64[n].
            patient: read as the follower, with its longer time-out.

        Returns:
            Table → (rows f32[n, D], RowStatus u8[n]).

        Raises:
            DownError, RefusedError: a request's read failed.
            redis.RedisError: the follower's read failed (`patient`), with an error of REDIS_ERRORS.
        """
        names = [
            name for table, ids in keys.items() for name in self.keyspace.rows(manifest.row_set, table, ids)
        ]
        if not names:
            return {table: decode_rows([], manifest.version, manifest.dim) for table in keys}
        bucket = {table: buckets_of(ids) for table, ids in keys.items()}
        buckets = np.flatnonzero(np.bincount(np.concatenate([*bucket.values()]), minlength=BUCKETS)).tolist()
        # Sentinels and floor must be read after the rows.
        names += [*self.keyspace.sentinels(manifest.row_set, buckets), self.keyspace.floor.encode()]
        values = _mget(self._patient, names) if patient else self._read(lambda: _mget(self._requests, names))
        with foreign_values():
            floor = int(values.pop() or 0)
        lost = self._lost_buckets(buckets, values[len(values) - len(buckets) :], manifest.sentinel.encode())
        rows: dict[str, tuple[F32, U8]] = {}
        start = 0
        for table, ids in keys.items():
            part = values[start : start + len(ids)]
            start += len(ids)
            unknown = lost[bucket[table]] if lost is not None else None
            if unknown is not None:  # another pipeline's row may lie there
                part = [None if no else value for value, no in zip(part, unknown, strict=True)]
            with foreign_values():
                decoded, status = decode_rows(part, manifest.version, manifest.dim, floor)
            if unknown is not None:
                status[unknown] = RowStatus.LOST
            rows[table] = decoded, status
        absent = any((status == RowStatus.MISSING).any() for _, status in rows.values())
        if absent and not patient and self._evicted(manifest):
            for _, status in rows.values():
                status[status == RowStatus.MISSING] = RowStatus.LOST
        return rows

    def values(self, names: list[bytes]) -> tuple[list[bytes | None], bool]:
        """Read a request's look-up rows or histories by their Redis keys.

        Returns:
            A value or None per key; False if a None may be a lost value, else True.

        Raises:
            DownError, RefusedError: the read failed.
        """
        buckets = self.keyspace.buckets_in(names)
        if not buckets:
            return [], True
        with_sentinels = [*names, *self.keyspace.sentinels(VALUES, buckets)]
        values = self._read(lambda: _mget(self._requests, with_sentinels))
        lost = self._lost_buckets(buckets, values[len(names) :], self._fingerprint)
        if lost is not None:
            unknown = [bool(lost[self.keyspace.bucket_of(name)]) for name in names]
            return [None if no else v for v, no in zip(values, unknown, strict=False)], False
        del values[len(names) :]
        served, evictions = self.served_manifest, self.evictions
        if served is None or not (evictions.risky or evictions.lost(served)):
            return values, True
        return values, None not in values or not self._evicted(served)

    def find_issue(self, manifest: VersionManifest) -> tuple[HealthIssue, str] | None:
        """Check that Redis holds all of a version.

        Returns:
            The issue and a sentence, or None.

        Raises:
            redis.RedisError: an error of REDIS_ERRORS.
        """
        every = range(BUCKETS)
        names = [*self.keyspace.sentinels(manifest.row_set, every), *self.keyspace.sentinels(VALUES, every)]
        values = _mget(self._patient, [self.keyspace.manifest.encode(), *names])
        self.evictions.poll_if_due(self._patient)  # they may have taken the manifest and the sentinels
        where = f"in Redis at {self.url}"
        if values.pop(0) is None:
            return HealthIssue.MANIFEST, f"the manifest is gone {where}: it was emptied"
        if not manifest.sentinel or values[:BUCKETS].count(manifest.sentinel.encode()) < BUCKETS:
            return HealthIssue.ROWS, f"rows of version {manifest.version} may be missing {where}"
        if values[BUCKETS:].count(self._fingerprint) < BUCKETS:
            return HealthIssue.VALUES, f"look-up rows and histories may be missing {where}"
        if self.evictions.lost(manifest):
            policy = self.evictions.policy
            return (
                HealthIssue.EVICTED,
                f"keys were evicted {where} (maxmemory-policy {policy}, not noeviction)",
            )
        return None

    def _lost_buckets(
        self, buckets: Sequence[int], sentinels: Sequence[bytes | None], expected: bytes
    ) -> npt.NDArray[np.bool_] | None:
        """Mark buckets bool[BUCKETS] whose sentinel differs from `expected`; None: all are complete."""
        wrong = [b for b, value in zip(buckets, sentinels, strict=True) if value != expected or not expected]
        if not wrong:
            return None
        self.problem = f"values of bucket {wrong[0]:02x} may be missing in Redis at {self.url}"
        lost = np.zeros(BUCKETS, np.bool_)
        lost[wrong] = True
        return lost

    def _evicted(self, manifest: VersionManifest) -> bool:
        """Tell whether a key that a request did not find may have been evicted.

        Where the policy allows evictions, their count is read after the key. Raises DownError, RefusedError.
        """
        if self.evictions.risky:
            self._read(lambda: self.evictions.poll(self._requests))
        if not self.evictions.lost(manifest):
            return False
        self.problem = f"keys were evicted in Redis at {self.url}"
        return True

    def _read(self, command: Callable[[], T]) -> T:
        """Run a request's command behind the circuit breaker. Raises DownError, RefusedError."""
        if time.monotonic() < self._pause_until and self._failure is not None:
            raise type(self._failure)(str(self._failure))
        try:
            return command()
        except REDIS_ERRORS as error:
            down = outcome_of(error) is Outcome.DEGRADED
            self.problem = f"Redis at {self.url} {'cannot be read' if down else 'refuses'} ({error})"
            self._failure = (DownError if down else RefusedError)(self.problem)
            self._pause_until = time.monotonic() + _PAUSE_S
            raise self._failure from error

    def resume(self) -> None:
        """Close the circuit breaker: the follower has just read Redis."""
        self._pause_until = 0.0


def _mget(client: MeasuredRedis, names: list[bytes]) -> list[bytes | None]:
    values: list[bytes | None] = []
    for start in range(0, len(names), _MGET_KEYS):
        values += client.fetch(names[start : start + _MGET_KEYS])
    return values


def _client(url: str, timeout_s: float, name: str) -> MeasuredRedis:
    # Retry once, at once: an idle connection that Redis closed must not fail a request.
    return MeasuredRedis.named(
        name,
        url,
        socket_timeout=timeout_s,
        socket_connect_timeout=timeout_s,
        retry=Retry(NoBackoff(), 1),
    )
