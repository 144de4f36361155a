"""Removal of what versions leave in Redis: blobs of old and failed ones, and earlier name spaces."""

from __future__ import annotations

import logging
from threading import Event, Thread

from livectr.protos.manifest import VersionManifest
from livectr.protos.store import KEPT_VERSIONS
from livectr.trainer.publish.redis_store import STORE_ERRORS, RedisStore
from livectr.trainer.publish.version import blobs_of

LOG = logging.getLogger(__name__)
SWEEP_DEADLINE_S = 5.0
"""A process that ends waits so long for a sweep."""


class GarbageCollector:
    """Rank 0's; sweeps in a thread, `after_s` seconds after a flip, for requests that began under it."""

    def __init__(self, store: RedisStore, after_s: float, closing: Event) -> None:
        self._store, self._after_s, self._closing = store, after_s, closing
        self._recent: list[VersionManifest] = []
        self._failed: list[VersionManifest] = []
        self.sweeper: Thread | None = None

    def flipped(self, manifest: VersionManifest, *, full: bool) -> None:
        """A version is served: what came before a process's first or a complete one is swept away."""
        self._recent.append(manifest)
        if full or len(self._recent) == 1:
            self.sweeper = Thread(target=self._sweep, args=(manifest,), name="sweep")
            self.sweeper.start()

    def failed(self, manifest: VersionManifest) -> None:
        """A version never was served."""
        self._failed.append(manifest)

    def drop_blobs(self) -> None:
        """Remove blobs that nobody reads any more. Raises STORE_ERRORS."""
        old, self._failed = self._failed, []
        while len(self._recent) > KEPT_VERSIONS:
            old.append(self._recent.pop(0))
        for manifest in old:
            self._store.drop(blobs_of(manifest))

    def close(self) -> None:
        """Wait for a sweep, but not for long."""
        if self.sweeper is None:
            return
        self.sweeper.join(SWEEP_DEADLINE_S)
        while self.sweeper.is_alive():
            self._store.interrupt()
            self.sweeper.join(0.2)

    def _sweep(self, manifest: VersionManifest) -> None:
        if self._closing.wait(self._after_s):
            return
        try:
            removed = self._store.sweep(manifest)
            LOG.info("removed %d keys of earlier name spaces and versions", removed)
        except STORE_ERRORS as error:
            LOG.warning("keys of earlier name spaces stay until the next start: %s", error)
