"""A server's look at evictions: whether keys of the served version may have been thrown away by Redis."""

from __future__ import annotations

import logging
import threading
import time
from collections.abc import Mapping
from typing import cast

import redis

from livectr.protos.evictions import Evictions
from livectr.protos.manifest import VersionManifest
from livectr.protos.redis_errors import is_forbidden
from livectr.serving import metrics

log = logging.getLogger(__name__)

LOOK_S = 2.0


class EvictionWatch:
    """The newest look at INFO, and the name space that lost keys. Any thread.

    url: for messages.
    """

    def __init__(self, url: str) -> None:
        self._url = url
        self._seen = Evictions()
        self._policy: str | None = None
        self._first: tuple[str, Evictions] = ("", Evictions())
        """Of a name space whose trainer could not look: the first look of this server."""
        self._lost = ""
        self._next = 0.0
        self._lock = threading.Lock()

    @property
    def risky(self) -> bool:
        """Whether published rows may be evicted at any moment."""
        return self._seen.risky

    @property
    def policy(self) -> str:
        return self._seen.policy

    def look(self, client: redis.Redis) -> None:
        """Asks INFO. Raises what redis-py raises, but for a Redis that forbids INFO."""
        try:
            seen = Evictions.of(cast("Mapping[str, object]", client.info()))
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
        if not seen.run:
            log.warning("Redis at %s refuses INFO: evictions cannot be seen", self._url)
        elif seen.risky:
            log.warning(
                "Redis at %s may evict published rows (maxmemory-policy %s): set it to noeviction and give "
                "it enough memory",
                self._url,
                seen.policy,
            )

    def look_sometimes(self, client: redis.Redis) -> None:
        """As `look`, every LOOK_S."""
        if time.monotonic() >= self._next:
            self.look(client)
            self._next = time.monotonic() + LOOK_S

    def lost(self, manifest: VersionManifest) -> bool:
        """Whether keys may have been evicted since the manifest's name space was begun. Once lost, it stays
        lost."""
        with self._lock:
            if self._lost and self._lost == manifest.whole:
                return True
            before = manifest.evictions
            if not before.run:
                if self._first[0] != manifest.whole:
                    self._first = manifest.whole, self._seen
                before = self._first[1]
            if not before.run or not self._seen.lost_since(before):
                return False
            self._lost = manifest.whole
            return True
