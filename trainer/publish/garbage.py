"""Garbage collection in Redis: blobs of old and failed versions, and rows of earlier row sets."""

from __future__ import annotations

import logging
import math
from threading import Event, Thread

from livectr.store.layout import BUCKETS, KEPT_VERSIONS
from livectr.store.manifest import VersionManifest
from livectr.trainer.publish.log.entries import PublishLog
from livectr.trainer.publish.redis_store import RedisStore
from livectr.trainer.publish.store_errors import STORE_ERRORS
from livectr.trainer.publish.version import blobs_of

LOG = logging.getLogger(__name__)
COLLECT_DEADLINE_S = 5.0
"""A process that ends waits so long for a collection."""


class GarbageCollector:
    """Removes keys from a thread. Rank 0 only.

    Args:
        log: publish log, whose blobs stay.
        after_s: seconds between a flip and the collection, for requests that began under the version before.
        closing: the process ends.
    """

    def __init__(self, store: RedisStore, log: PublishLog, after_s: float, closing: Event) -> None:
        self._store, self._log, self._after_s, self._closing = store, log, after_s, closing
        self._recent: list[VersionManifest] = []
        self._failed: list[VersionManifest] = []
        self.thread: Thread | None = None

    def flipped(self, manifest: VersionManifest, *, full: bool) -> None:
        """Note a served version; older keys are removed after a process's first or a complete version."""
        self._recent.append(manifest)
        if full or len(self._recent) == 1:
            self.thread = Thread(target=self._collect, args=(manifest,), name="garbage")
            self.thread.start()

    def stands(self, rollback: VersionManifest | None) -> None:
        """Note a version that a rollback has published; its blobs go in their turn."""
        if rollback is not None:
            self._recent.append(rollback)

    def failed(self, manifest: VersionManifest) -> None:
        """Note a version that was never served."""
        self._failed.append(manifest)

    def drop_blobs(self, pending: VersionManifest) -> None:
        """Remove blobs of versions that are not kept, and entries of the publish log that are not needed.

        Args:
            pending: version under way. One that was held has the names of its first push.

        Raises:
            STORE_ERRORS: Redis did not confirm it.
        """
        old, self._failed = self._failed, []
        while len(self._recent) > KEPT_VERSIONS:
            old.append(self._recent.pop(0))
        # Versions share the blobs of content that was not computed again.
        kept = {*self._log.blobs, *blobs_of(pending)}
        kept |= {name for manifest in self._recent for name in blobs_of(manifest)}
        for manifest in old:
            self._store.client.remove([name for name in blobs_of(manifest) if name not in kept])
        dropped = self._log.take_dropped()
        if dropped:
            blobs = [name for names in dropped.values() for name in names if name not in kept]
            self._store.client.remove([*map(self._store.space.log, dropped), *blobs])

    def close(self) -> None:
        """Wait for a collection, but not for long."""
        if self.thread is None:
            return
        self.thread.join(COLLECT_DEADLINE_S)
        while self.thread.is_alive():
            self._store.client.interrupt()
            self.thread.join(0.2)

    def _collect(self, manifest: VersionManifest) -> None:
        if self._closing.wait(self._after_s):
            return
        try:
            removed = collect_garbage(self._store, manifest, self._log)
            LOG.info("removed %d keys of earlier row sets and versions", removed)
        except STORE_ERRORS as error:
            LOG.warning("keys of earlier row sets stay until the next start: %s", error)


def collect_garbage(store: RedisStore, manifest: VersionManifest, log: PublishLog | None = None) -> int:
    """Remove rows of row sets before the manifest's, and blobs older than its kept versions.

    Args:
        store: whose namespace is cleaned.
        manifest: of the served version.
        log: publish log of this process: its blobs stay, and other entries before `manifest` go. None: of a
            running trainer, whose log stays as it is.

    Returns:
        Number of keys that were removed.
    """
    removed, before = 0, dict[bytes, bool]()
    for names in store.client.scan_all(store.space.bucketed_pattern):
        # Millions of names have few parts: a tuple a name would keep training from its core for minutes.
        parts = [name.split(b":", 3)[2] for name in names]
        for part in set(parts) - before.keys():
            before[part] = _is_before(part, manifest.row_set)
            if before[part]:
                # first of all: from here on a reader of that row set knows that rows are missing
                removed += store.client.remove(store.space.sentinels(part.decode(), range(BUCKETS)))
        removed += store.client.remove(
            [name for name, part in zip(names, parts, strict=True) if before[part]]
        )
    oldest = manifest.version - KEPT_VERSIONS
    kept = frozenset(name.encode() for name in log.blobs) if log is not None else frozenset()
    for names in store.client.scan_all(store.space.blob_pattern):
        versions = {name: _version(name.split(b":", 3)[2]) for name in names}
        removed += store.client.remove([n for n, v in versions.items() if v <= oldest and n not in kept])
    if log is None:
        return removed
    for names in store.client.scan_all(store.space.log_pattern):
        versions = {name: _version(name.rpartition(b":")[2]) for name in names}
        removed += store.client.remove(
            [n for n, v in versions.items() if v < manifest.version and v not in log.kept]
        )
    return removed


def _version(part: bytes) -> float:
    """Version in a name; infinite in the name of another program, which is not ours to remove."""
    return int(part) if part.isdigit() and len(part) < 20 else math.inf


def _is_before(part: bytes, row_set: str) -> bool:
    """True if a name's third part is a row set before `row_set`; look-up rows and fences have none."""
    epoch, _, number = part.decode(errors="replace").partition("-")
    if not (epoch.isdigit() and number.isdigit()):
        return False
    mine = row_set.split("-")
    return (int(epoch), int(number)) < (int(mine[0]), int(mine[1]))
