"""What a server asks Redis: the manifest and blobs of a version, rows, facts, histories.

Two clients: the watcher of versions (10 s time-out, blobs are large) and requests (250 ms). When a request's
question fails, the next ones do not ask for a moment, so that a dead Redis costs one short timeout and not
one for each request.

Every question for rows, facts or histories asks for the sentinels of their buckets as well, after them: an
answer is taken only where the bucket is known to be whole (`protos.store`).
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
from livectr.protos.manifest import VersionManifest
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
_WATCH_TIMEOUT_S = 10.0
_PAUSE_S = 0.5
_MGET_KEYS = 8192
"""One command holds up every other client of Redis, so long questions are cut."""


class DownError(Exception):
    """Redis cannot be asked at the moment."""


class Reader:
    """Questions to one Redis server, for the namespace of one pipeline. Any thread may ask.

    fingerprint: the pipeline's, which its facts and histories are marked with.

    Attributes:
        serving: the version that requests are answered from; set by the follower.
        problem: why the last answer that was degraded was so.

    Raises ConfigError for a URL that is not a Redis URL.
    """

    def __init__(self, url: str, namespace: str, fingerprint: str) -> None:
        self.url = without_password(url)
        self.keyspace = Keyspace(namespace)
        self.evictions = EvictionWatch(self.url)
        self.serving: VersionManifest | None = None
        self.problem = ""
        self._fingerprint = fingerprint.encode()
        try:
            self._requests = _client(url, _REQUEST_TIMEOUT_S)
            self._watch = _client(url, _WATCH_TIMEOUT_S)
        except ValueError as error:
            raise ConfigError(
                f"{self.url!r} is not a Redis URL such as redis://HOST:PORT ({error})"
            ) from error
        self._pause_until = 0.0
        self._failure: DownError | RefusedError | None = None

    def ping(self) -> None:
        """Raises ConnectError when Redis does not answer, or not to this server. One that is there but busy
        with itself (it loads its data) is waited for."""
        try:
            self._watch.ping()
        except REDIS_ERRORS as error:
            away = type(error) in (redis.ConnectionError, redis.TimeoutError)
            if outcome_of(error) is Outcome.DEGRADED and not away:
                log.warning("Redis at %s is not ready: %s", self.url, error)
                return
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

        A request's question raises DownError or RefusedError; one of the watcher (`patient`) raises one of
        REDIS_ERRORS.
        """
        names = [
            name for table, wanted in keys.items() for name in self.keyspace.rows(manifest.ns, table, wanted)
        ]
        if not names:
            return {table: decode_rows([], manifest.version, manifest.dim) for table in keys}
        bucket = {table: buckets_of(wanted) for table, wanted in keys.items()}
        asked = np.flatnonzero(np.bincount(np.concatenate([*bucket.values()]), minlength=BUCKETS)).tolist()
        # What follows the rows must be read after them.
        names += [*self.keyspace.sentinels(manifest.ns, asked), self.keyspace.floor.encode()]
        values = _mget(self._watch, names) if patient else self._ask(lambda: _mget(self._requests, names))
        with foreign_values():
            floor = int(values.pop() or 0)
        lost = self._not_whole(asked, values[len(values) - len(asked) :], manifest.whole.encode())
        found, start = {}, 0
        for table, wanted in keys.items():
            part = values[start : start + len(wanted)]
            start += len(wanted)
            unknown = lost[bucket[table]] if lost is not None else None
            if unknown is not None:  # another pipeline's row may lie there
                part = [None if no else value for value, no in zip(part, unknown, strict=True)]
            with foreign_values():
                rows, status = decode_rows(part, manifest.version, manifest.dim, floor)
            if unknown is not None:
                status[unknown] = RowStatus.LOST
            found[table] = rows, status
        absent = any((status == RowStatus.MISSING).any() for _, status in found.values())
        if absent and not patient and self._evicted(manifest):
            for _, status in found.values():
                status[status == RowStatus.MISSING] = RowStatus.LOST
        return found

    def values(self, names: list[bytes]) -> tuple[list[bytes | None], bool]:
        """A request's facts or histories by their Redis keys, and whether those that are None are known not
        to be there. Raises DownError, RefusedError."""
        asked = self.keyspace.buckets_in(names)
        if not asked:
            return [], True
        wanted = [*names, *self.keyspace.sentinels(VALUES, asked)]
        values = self._ask(lambda: _mget(self._requests, wanted))
        lost = self._not_whole(asked, values[len(names) :], self._fingerprint)
        if lost is not None:
            unknown = [bool(lost[self.keyspace.bucket_of(name)]) for name in names]
            return [None if no else v for v, no in zip(values, unknown, strict=False)], False
        del values[len(names) :]
        serving, evictions = self.serving, self.evictions
        if serving is None or not (evictions.risky or evictions.lost(serving)):
            return values, True
        return values, None not in values or not self._evicted(serving)

    def loss(self, manifest: VersionManifest) -> tuple[HealthIssue, str] | None:
        """Why the manifest's version is not known to be whole; None: it is. Raises one of REDIS_ERRORS."""
        every = range(BUCKETS)
        names = [*self.keyspace.sentinels(manifest.ns, every), *self.keyspace.sentinels(VALUES, every)]
        held = _mget(self._watch, [self.keyspace.manifest.encode(), *names])
        where = f"in Redis at {self.url}"
        if held.pop(0) is None:
            return HealthIssue.MANIFEST, f"the manifest is gone {where}: it was emptied"
        if not manifest.whole or held[:BUCKETS].count(manifest.whole.encode()) < BUCKETS:
            return HealthIssue.ROWS, f"rows of version {manifest.version} are not known to be whole {where}"
        if held[BUCKETS:].count(self._fingerprint) < BUCKETS:
            return HealthIssue.VALUES, f"look-up rows and histories are not known to be whole {where}"
        self.evictions.look_sometimes(self._watch)
        if self.evictions.lost(manifest):
            policy = self.evictions.policy
            return (
                HealthIssue.EVICTED,
                f"keys were evicted {where} (maxmemory-policy {policy}, not noeviction)",
            )
        return None

    def _not_whole(
        self, asked: Sequence[int], held: Sequence[bytes | None], wanted: bytes
    ) -> npt.NDArray[np.bool_] | None:
        """Buckets bool[BUCKETS] whose sentinel is not the one that is wanted; None: all are right."""
        wrong = [bucket for bucket, value in zip(asked, held, strict=True) if value != wanted or not wanted]
        if not wrong:
            return None
        self.problem = f"bucket {wrong[0]:02x} is not known to be whole in Redis at {self.url}"
        lost = np.zeros(BUCKETS, np.bool_)
        lost[wrong] = True
        return lost

    def _evicted(self, manifest: VersionManifest) -> bool:
        """Whether a key that a request did not find may have been evicted. Where the policy allows that, the
        count is asked after the key. Raises DownError, RefusedError."""
        if self.evictions.risky:
            self._ask(lambda: self.evictions.look(self._requests))
        if not self.evictions.lost(manifest):
            return False
        self.problem = f"keys were evicted in Redis at {self.url}"
        return True

    def _ask(self, question: Callable[[], T]) -> T:
        """A request's question. Raises DownError, RefusedError."""
        if time.monotonic() < self._pause_until and self._failure is not None:
            raise type(self._failure)(str(self._failure))
        try:
            return question()
        except REDIS_ERRORS as error:
            down = outcome_of(error) is Outcome.DEGRADED
            self.problem = f"Redis at {self.url} {'cannot be asked' if down else 'refuses'} ({error})"
            self._failure = (DownError if down else RefusedError)(self.problem)
            self._pause_until = time.monotonic() + _PAUSE_S
            raise self._failure from error

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
