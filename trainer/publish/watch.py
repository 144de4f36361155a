"""Watch over the published version: a thread checks every few seconds that Redis still holds it whole.

A push finds out by itself that Redis was emptied. But there may be nothing to push for hours, and a push may
touch other buckets than the lost buckets. So rank 0 checks the manifest, the sentinels of all buckets and the
count of evictions. After a loss the next version is complete. The same thread reads the operator's words: a
hold of the namespace, and its release (store.hold).
"""

from __future__ import annotations

import logging
import time
from collections.abc import Callable
from dataclasses import dataclass
from threading import Event, Lock, Thread

from livectr.store.evictions import Evictions
from livectr.store.hold import Hold
from livectr.store.manifest import VersionManifest
from livectr.store.redis_errors import REDIS_ERRORS
from livectr.trainer.publish import telemetry
from livectr.trainer.publish.outcome import superseding
from livectr.trainer.publish.redis_store import RedisStore

LOG = logging.getLogger(__name__)
LOOK_S = 2.0
EVICTED_AGAIN_S = 60.0
"""Least time between complete publishes while Redis may evict: a Redis that is too small evicts again."""


@dataclass(frozen=True, eq=False)
class _Watched:
    """Version that Redis should hold, and the text of its manifest there."""

    manifest: VersionManifest
    text: bytes


class PublishedWatch:
    """Checks one namespace from a thread. Rank 0 only.

    Args:
        every_s: time between two checks.
        evicted_again_s: least time between two losses by eviction.

    Attributes:
        evictions: newest count of them.
        hold: of the namespace; None: not held.
        superseded: a rollback of this run took the place of the version that was watched last.
    """

    def __init__(
        self, store: RedisStore, *, every_s: float = LOOK_S, evicted_again_s: float = EVICTED_AGAIN_S
    ) -> None:
        self._store = store
        self._every_s, self._evicted_again_s = every_s, evicted_again_s
        self._watched: _Watched | None = None
        self._lost: _Watched | None = None
        self._evicted_at = float("-inf")
        self._stop = Event()
        self.evictions = Evictions()
        self.hold: Hold | None = None
        self.superseded = self._released = False
        self._failing = False
        self._reading = Lock()
        self._thread = Thread(target=self._run, name="lookout", daemon=True)

    def start(self) -> None:
        """Read evictions and hold once, then continue in the thread. Raises redis.RedisError."""
        self.evictions = self._store.evictions()
        self.read_hold()
        if not self.evictions.run_id:
            LOG.warning("Redis at %s refuses INFO: evictions cannot be seen", self._store.url)
        elif self.evictions.risky:
            LOG.warning(
                "Redis at %s may evict published rows (maxmemory-policy %s): set it to noeviction and give "
                "it enough memory; each eviction costs a complete publish",
                self._store.url,
                self.evictions.policy,
            )
        self._thread.start()

    def watch(self, manifest: VersionManifest | None, text: bytes = b"") -> None:
        """Set the version that Redis should hold; None: a version is under way, or nothing is published."""
        self._watched = _Watched(manifest, text) if manifest is not None else None

    def read_hold(self) -> None:
        """Read the operator's words. Raises redis.RedisError.

        The look-out's thread and the push's may both ask: one at a time, so that the newer answer counts.
        """
        client, space = self._store.client, self._store.space
        with self._reading:
            text, release = client.fetch([space.hold.encode(), space.release.encode()])
            hold = Hold.of(text)
            if hold != self.hold:
                LOG.info(
                    "namespace %r is %s", space.namespace, f"held: {hold.reason}" if hold else "released"
                )
            self.hold = hold
            telemetry.PUBLISH_HELD.labels("operator").set(int(hold is not None))
            if release is not None and client.delete(space.release):
                self._released = True

    def released(self) -> bool:
        """Tell if an operator has asked the gate to accept its window since the last call."""
        if not self._released:  # the look-out may set it at any moment
            return False
        self._released = False
        return True

    @property
    def lost(self) -> bool:
        """Tell if the version that is watched was found not to be whole."""
        return self._lost is not None and self._lost is self._watched

    def close(self, interrupt: Callable[[], None]) -> None:
        """End the thread.

        Args:
            interrupt: breaks a command that waits for its answer.
        """
        self._stop.set()
        while self._thread.is_alive():
            self._thread.join(0.2)
            interrupt()

    def _run(self) -> None:
        while not self._stop.wait(self._every_s):
            try:
                self._look()
                self._failing = False
            except Exception as error:
                # Nothing may end the watch: the next check may find Redis again.
                if not self._failing:
                    LOG.log(
                        logging.WARNING if isinstance(error, REDIS_ERRORS) else logging.ERROR,
                        "cannot look at what Redis at %s holds: %s",
                        self._store.url,
                        error,
                    )
                telemetry.PUBLISH_CHECKS_FAILED.inc()
                self._failing = True

    def _look(self) -> None:
        self.evictions = self._store.evictions()
        self.read_hold()
        if self.hold is not None:  # a rollback may have published another version
            served = self._store.manifest_of(self._store.manifest_text())
            if served is not None:
                telemetry.show_published(served.version, served.created_ms)
        watched = self._watched
        if watched is None or self._lost is watched:
            return
        reason = self._reason(watched)
        if not reason or self._watched is not watched:  # a look that a publish overtook says nothing
            return
        if self.evictions.risky:
            if time.monotonic() < self._evicted_at + self._evicted_again_s:
                return
            self._evicted_at = time.monotonic()
        LOG.warning(
            "version %d is not served whole by Redis at %s any more (%s): the next version is complete",
            watched.manifest.version,
            self._store.url,
            reason,
        )
        self._lost = watched

    def _reason(self, watched: _Watched) -> str:
        self.superseded = False
        text = self._store.manifest_text()
        if text != watched.text:
            rollback = superseding(text, watched.manifest)
            self.superseded = rollback is not None
            if rollback is not None:
                return f"a rollback has published version {rollback.version}"
            return "its manifest is gone or another's"
        if not self._store.is_complete(watched.manifest):
            return "sentinels of its rows are gone"
        if self.evictions.lost_since(watched.manifest.evictions):
            return f"keys were evicted, maxmemory-policy {self.evictions.policy}"
        return ""
