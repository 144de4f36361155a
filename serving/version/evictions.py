"""Detection of evictions: has Redis removed keys of the served version to save memory?"""

from __future__ import annotations

import logging
import threading
import time

import redis

from livectr.serving import metrics
from livectr.store.evictions import Evictions
from livectr.store.manifest import VersionManifest
from livectr.store.redis_client import RedisClient
from livectr.store.redis_errors import is_forbidden

log = logging.getLogger(__name__)

POLL_S = 2.0
"""Interval of the polls of INFO, in seconds."""


class EvictionWatch:
    """Newest INFO of Redis, and the row set that lost keys. Thread-safe.

    Args:
        url: URL of Redis without its password, for messages.
    """

    def __init__(self, url: str) -> None:
        self._url = url
        self._seen = Evictions()
        self._policy: str | None = None
        self._first: tuple[str, Evictions] = ("", Evictions())
        """Name space whose trainer could not read INFO, and this server's first INFO under it."""
        self._lost = ""
        self._next = 0.0
        self._lock = threading.Lock()

    @property
    def risky(self) -> bool:
        """True while the policy of Redis may evict published rows."""
        return self._seen.risky

    @property
    def policy(self) -> str:
        """`maxmemory-policy` of Redis; empty: unknown."""
        return self._seen.policy

    def poll(self, client: RedisClient, deadline: float | None = None) -> None:
        """Read INFO.

        Args:
            client: of Redis.
            deadline: instant of time.monotonic() after which the read is given up; None: no deadline.

        Raises:
            redis.RedisError: any error but the refusal of INFO.
        """
        try:
            infos = client.infos(deadline=deadline)
            seen = Evictions.of_all(infos)
            metrics.REDIS_MEMORY.set(sum(info.get("used_memory", 0) for info in infos))
            metrics.REDIS_MAX_MEMORY.set(sum(info.get("maxmemory", 0) for info in infos))
            metrics.REDIS_EVICTED_KEYS.set(seen.keys)
        except redis.ResponseError as error:
            if not is_forbidden(error):
                raise
            seen = Evictions()
        with self._lock:
            self._seen = seen
            changed, self._policy = self._policy != seen.policy, seen.policy
        metrics.RISKY_POLICY.set(int(seen.risky))
        if not changed:
            return
        if not seen.run_id:
            log.warning("Redis at %s refuses INFO: evictions cannot be seen", self._url)
        elif seen.risky:
            log.warning(
                "Redis at %s may evict published rows (maxmemory-policy %s): set it to noeviction and give "
                "it enough memory",
                self._url,
                seen.policy,
            )

    def poll_if_due(self, client: RedisClient) -> None:
        """Read INFO when the last poll is older than POLL_S."""
        if time.monotonic() >= self._next:
            self.poll(client)
            self._next = time.monotonic() + POLL_S

    def lost(self, manifest: VersionManifest) -> bool:
        """True if keys may have been evicted since the manifest's row set began; never False again."""
        with self._lock:
            if self._lost and self._lost == manifest.sentinel:
                return True
            before = manifest.evictions
            if not before.run_id:
                if self._first[0] != manifest.sentinel:
                    self._first = manifest.sentinel, self._seen
                before = self._first[1]
            if not before.run_id or not self._seen.lost_since(before):
                return False
            self._lost = manifest.sentinel
            return True
