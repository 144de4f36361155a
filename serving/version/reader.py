"""Reads of Redis: manifest and blobs of a version, embedding rows, look-up rows, histories.

Two clients: the follower of versions (10 s time-out, blobs are large) and requests (250 ms, and no more than
half of what is left of the request's deadline), which read behind a circuit breaker.

Every read of rows, look-up rows or histories also reads the sentinels of their buckets, after the values. A
value counts only if the sentinel shows that its bucket is complete (`store.layout`). A read is one round trip
of each server that has a key.
"""

from __future__ import annotations

import logging
from collections.abc import Mapping, Sequence
from typing import cast

import numpy as np
import numpy.typing as npt
import redis

from livectr.serving.errors import foreign_values
from livectr.serving.version.breaker import CircuitBreaker
from livectr.serving.version.evictions import EvictionWatch
from livectr.serving.version.health import HealthIssue
from livectr.serving.version.prefetch import PrefetchedRows, PrefetchKeys
from livectr.store.hold import Hold
from livectr.store.layout import (
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
from livectr.store.live_share import LiveShare
from livectr.store.manifest import VersionManifest
from livectr.store.redis_client import RedisClient, connect_redis
from livectr.store.redis_errors import REDIS_ERRORS, Outcome, outcome_of
from livectr.store.redis_url import is_clustered
from livectr.system.errors import ConnectError

log = logging.getLogger(__name__)

U8 = npt.NDArray[np.uint8]

_REQUEST_TIMEOUT_S = 0.25
_PATIENT_TIMEOUT_S = 10.0
_PIECE_BYTES = 1 << 20
"""Bytes of a large blob that are read at a time."""
_MGET_KEYS = 8192
"""Keys of an MGET; a longer command would hold up every other client of Redis."""


class RowRead:
    """Keys in Redis of embedding rows, and of what tells whether a missing row was lost.

    Args:
        keys: table → keys i64[n].

    Attributes:
        bucket: table → buckets of its keys.
        buckets: all of them.
        names: of the rows; then sentinels and floors, which must be read after the rows. Empty without keys.
    """

    def __init__(self, space: Keyspace, manifest: VersionManifest, keys: Mapping[str, I64]) -> None:
        self.manifest, self.keys = manifest, keys
        self.bucket = {table: buckets_of(ids) for table, ids in keys.items()}
        self.buckets: list[int] = []
        self.names = [n for table, ids in keys.items() for n in space.rows(manifest.row_set, table, ids)]
        if self.names:
            every = np.concatenate([*self.bucket.values()])
            self.buckets = np.flatnonzero(np.bincount(every, minlength=BUCKETS)).tolist()
            self.names += [*space.sentinels(manifest.row_set, self.buckets), *space.floors(self.buckets)]


class Reader:
    """Reads of a pipeline's namespace in Redis. Thread-safe.

    Args:
        url: of `store.redis_url`.
        namespace: prefix of the Redis keys.
        fingerprint: of the pipeline; its look-up rows and histories carry it.

    Attributes:
        served_manifest: manifest of the served version; set by the follower.
        problem: reason of the last degraded answer.

    Raises:
        ConfigError: the URL cannot be used.
    """

    def __init__(self, url: str, namespace: str, fingerprint: str) -> None:
        self.url = without_password(url)
        self.keyspace = Keyspace(namespace, clustered=is_clustered(url))
        self.evictions = EvictionWatch(self.url)
        self.served_manifest: VersionManifest | None = None
        self.problem = ""
        self._fingerprint = fingerprint
        # Repeat once, at once: an idle connection that Redis closed must not fail a request.
        self._patient = connect_redis("follow", url, timeout_s=_PATIENT_TIMEOUT_S, retries=1)
        self._requests = connect_redis(
            "request", url, timeout_s=_REQUEST_TIMEOUT_S, retries=1, beside=self._patient
        )
        self._breaker = CircuitBreaker(self.url, self._note)

    def ping(self) -> None:
        """Check that Redis answers. A Redis that is still busy, such as with loading its data, passes.

        Raises:
            ConnectError: Redis does not answer, or refuses this server.
        """
        try:
            self._patient.ping()
            self._requests.ping()  # here and not in the first request, which has no time to look up nodes
        except REDIS_ERRORS as error:
            unreachable = type(error) in (redis.ConnectionError, redis.TimeoutError)
            if outcome_of(error) is Outcome.DEGRADED and not unreachable:
                log.warning("Redis at %s is not ready: %s", self.url, error)
                return
            what = "start it or change --redis"
            if isinstance(error, redis.AuthenticationError):
                what = "correct its user and password (redis_password_file)"
            raise ConnectError(f"Redis at {self.url} cannot be reached ({error}); {what}") from error

    def close(self) -> None:
        """Close the connections; requests that still read fail."""
        self._requests.close()
        self._patient.close()

    def subscribe(self) -> redis.client.PubSub:
        """Subscribe to the channel of versions. Raises an error of REDIS_ERRORS."""
        return self._patient.subscription(self.keyspace.versions, near=self.keyspace.manifest)

    def manifest(self) -> bytes | None:
        """JSON of the newest manifest; None before the first version. Raises an error of REDIS_ERRORS."""
        return cast("bytes | None", self._patient.get(self.keyspace.manifest))

    def held(self) -> str:
        """Reason of the namespace's hold; "": no hold. Raises an error of REDIS_ERRORS."""
        hold = Hold.of(cast("bytes | None", self._patient.get(self.keyspace.hold)))
        return hold.reason if hold is not None else ""

    def live_share(self) -> LiveShare | None:
        """Live share of the canary; None: there is none. Raises an error of REDIS_ERRORS."""
        return LiveShare.of(cast("bytes | None", self._patient.get(self.keyspace.canary)))

    def blobs(self, names: Sequence[str]) -> list[bytes | None]:
        """Blobs by name; None for a blob that is gone. Raises an error of REDIS_ERRORS."""
        return [cast("bytes | None", self._patient.get(name)) for name in names]

    def large_blobs(self, names: Sequence[str]) -> list[memoryview | None]:
        """As `blobs`, piece by piece: redis-py copies a value under the GIL, and requests wait meanwhile."""
        return [self._large_blob(name) for name in names]

    def _large_blob(self, name: str) -> memoryview | None:
        size = self._patient.strlen(name)
        whole = np.empty(size, np.uint8).data  # a bytearray would be filled with zeros under the GIL
        for start in range(0, size, _PIECE_BYTES):
            piece = cast(bytes, self._patient.getrange(name, start, start + _PIECE_BYTES - 1))
            if len(piece) < min(_PIECE_BYTES, size - start):
                return None  # gone since
            whole[start : start + len(piece)] = piece
        return whole if size else None

    def rows(
        self, manifest: VersionManifest, keys: Mapping[str, I64], *, patient: bool = False
    ) -> dict[str, tuple[F32, U8]]:
        """Read embedding rows as of a version.

        Args:
            manifest: of the version.
            keys: table → keys i64[n].
            patient: read as the follower, with its longer time-out.

        Returns:
            Table → (rows f32[n, D], RowStatus u8[n]).

        Raises:
            DownError, RefusedError: a request's read failed.
            redis.RedisError: the follower's read failed (`patient`), with an error of REDIS_ERRORS.
        """
        read = RowRead(self.keyspace, manifest, keys)
        if not read.names:
            return {table: decode_rows([], manifest.version, manifest.dim) for table in keys}
        values = _mget(self._patient, read.names) if patient else self._read(read.names)
        return self._rows_of(read, values, patient=patient)

    def _rows_of(
        self, read: RowRead, values: list[bytes | None], *, patient: bool = False
    ) -> dict[str, tuple[F32, U8]]:
        """Decode the values of `RowRead.names`; see `rows`."""
        manifest, buckets = read.manifest, read.buckets
        floors = len(self.keyspace.floors(buckets))
        with foreign_values():
            floor = max(int(value or 0) for value in values[-floors:])
        del values[-floors:]
        sentinels = values[len(values) - len(buckets) :]
        lost = self._lost_buckets(buckets, sentinels, manifest.sentinel, manifest)
        rows: dict[str, tuple[F32, U8]] = {}
        start = 0
        for table, ids in read.keys.items():
            part = values[start : start + len(ids)]
            start += len(ids)
            unknown = lost[read.bucket[table]] if lost is not None else None
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
        found, complete, _ = self.read(names, None)
        return found, complete

    def read(
        self, names: list[bytes], prefetch: PrefetchKeys | None
    ) -> tuple[list[bytes | None], bool, PrefetchedRows | None]:
        """Read a request's look-up rows and histories, and prefetched embedding rows, in one round trip.

        Returns:
            As `values`, and the prefetched rows.

        Raises:
            DownError, RefusedError: the read failed.
        """
        buckets = self.keyspace.buckets_in(names)
        own = [*names, *self.keyspace.sentinels(VALUES, buckets)]
        others = RowRead(self.keyspace, prefetch.manifest, prefetch.keys) if prefetch is not None else None
        if not own and others is None:
            return [], True, None
        values = self._read([*own, *(others.names if others is not None else ())])
        rows = None
        if prefetch is not None and others is not None:
            read = self._rows_of(others, values[len(own) :])
            rows = PrefetchedRows(prefetch.keys, read)
        found, complete = self._known(names, buckets, values[: len(own)])
        return found, complete, rows

    def _known(
        self, names: list[bytes], buckets: Sequence[int], values: list[bytes | None]
    ) -> tuple[list[bytes | None], bool]:
        """Values of names, with the sentinels of their buckets behind them; see `values`."""
        sentinels = values[len(names) :]
        lost = self._lost_buckets(buckets, sentinels, self._fingerprint, self.served_manifest)
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
        if self._wrong(every, values[:BUCKETS], manifest.sentinel, manifest):
            return HealthIssue.ROWS, f"rows of version {manifest.version} may be missing {where}"
        if self._wrong(every, values[BUCKETS:], self._fingerprint, manifest):
            return HealthIssue.VALUES, f"look-up rows and histories may be missing {where}"
        if self.evictions.lost(manifest):
            policy = self.evictions.policy
            return (
                HealthIssue.EVICTED,
                f"keys were evicted {where} (maxmemory-policy {policy}, not noeviction)",
            )
        return None

    def _lost_buckets(
        self,
        buckets: Sequence[int],
        sentinels: Sequence[bytes | None],
        text: str,
        manifest: VersionManifest | None,
    ) -> npt.NDArray[np.bool_] | None:
        """Mark buckets bool[BUCKETS] whose sentinel does not show all of a version; None: all do."""
        wrong = self._wrong(buckets, sentinels, text, manifest)
        if not wrong:
            return None
        self.problem = f"values of bucket {wrong[0]:02x} may be missing in Redis at {self.url}"
        lost = np.zeros(BUCKETS, np.bool_)
        lost[wrong] = True
        return lost

    def _wrong(
        self,
        buckets: Sequence[int],
        sentinels: Sequence[bytes | None],
        text: str,
        manifest: VersionManifest | None,
    ) -> list[int]:
        """Buckets whose sentinel does not show all of a version (`Keyspace.shows_all`)."""
        shows_all = self.keyspace.shows_all
        usual = (
            self.keyspace.sentinel_value(text, manifest).encode() if text and manifest is not None else None
        )
        return [
            bucket
            for bucket, value in zip(buckets, sentinels, strict=True)
            if (value != usual or usual is None) and not shows_all(value, text, manifest)
        ]

    def _evicted(self, manifest: VersionManifest) -> bool:
        """Tell whether a key that a request did not find may have been evicted.

        Where the policy allows evictions, their count is read after the key. Raises DownError, RefusedError.
        """
        if self.evictions.risky:
            self._breaker.run(lambda deadline: self.evictions.poll(self._requests, deadline))
        if not self.evictions.lost(manifest):
            return False
        self.problem = f"keys were evicted in Redis at {self.url}"
        return True

    def _read(self, names: list[bytes]) -> list[bytes | None]:
        """MGET of a request. Raises DownError, RefusedError."""
        return self._breaker.run(lambda deadline: _mget(self._requests, names, deadline))

    def resume(self) -> None:
        """Close the circuit breaker: the follower has just read Redis."""
        self._breaker.close()

    def _note(self, problem: str) -> None:
        self.problem = problem


def _mget(client: RedisClient, names: list[bytes], deadline: float | None = None) -> list[bytes | None]:
    values: list[bytes | None] = []
    for start in range(0, len(names), _MGET_KEYS):
        values += client.fetch(names[start : start + _MGET_KEYS], deadline)
    return values
