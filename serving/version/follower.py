"""Version follower: serves a published version at a time and swaps to the next while requests run.

The swap, step by step:

    1. notice    a message on the channel of versions, or the poll every half second
    2. load      dense weights, vectors of items and content, changed keys; build the models (no lock held)
    3. refresh   read the changed rows that the near-cache holds, as of the new version (no lock held)
    4. tell      caches of look-up rows drop what the version lists as changed
    5. swap      move the near-cache: drop its changed rows, add the refreshed rows; then make the new version
                 the served version, by one pointer
    6. observe   metrics; freshness of every example that the version learned
    7. prepare   partial results of the items that were asked for at the version before

A request takes the pointer once, so every number of its reply comes from the same version. It holds no lock:
a version in memory never changes but for its near-cache, which tells a request of another version to start
again. So does a row that Redis no longer has at that version (two newer versions were published): the request
waits for the swap and starts again, within its deadline.

The last version continues answering while Redis is down, or holds a manifest of another pipeline. Every poll
also reads the sentinels of the served version; `serving.version.health` describes the consequences of a loss.
No error of a poll ends the follower.

A follower belongs to the side for which it was made: so do its thread and its metrics.
"""

from __future__ import annotations

import logging
import threading
import time
from collections.abc import Callable, Mapping

import numpy as np

from livectr.serving import metrics
from livectr.serving.canary import SIDE, STABLE
from livectr.serving.deadlines import end_of_wait
from livectr.serving.errors import DeadlineError, NotReadyError
from livectr.serving.version.health import HealthIssue, ServingHealth
from livectr.serving.version.loader import ModelVersion, RoleSpec, VersionLoader
from livectr.serving.version.near_cache import NearCache
from livectr.serving.version.reader import Reader
from livectr.serving.version.staleness import Staleness
from livectr.store.layout import I64, KEPT_VERSIONS
from livectr.store.manifest import VersionManifest
from livectr.store.redis_errors import REDIS_ERRORS, Outcome, outcome_of
from livectr.system.errors import MismatchError

log = logging.getLogger(__name__)

_POLL_S = 0.5
_NEWER_S = 5.0
"""Longest wait in seconds of a request without a deadline for the version after an overwritten version."""
_BACKOFF_S = (0.1, 0.2, 0.5, 1.0, 2.0)


class VersionFollower:
    """Follows the published versions of a pipeline.

    Args:
        reader: reads of the pipeline's namespace.
        spec: role-specific part of a version.
        lost_grace_s: seconds for which an issue may last before the server is NOT_SERVING.
        max_stale_s: seconds without a good poll of Redis before the server is NOT_SERVING; 0: never.

    Attributes:
        side: side that it follows the versions for.
        contents: content that the role's model reads.
        health: health of the side; the stable side's is the server's.
        held: reason for which no newer version is published, as it was found last; "": no hold.
    """

    def __init__(
        self, reader: Reader, spec: RoleSpec, lost_grace_s: float = 30.0, max_stale_s: float = 0.0
    ) -> None:
        self.reader = reader
        self.side = SIDE.get()
        self.contents = spec.contents
        self.health = ServingHealth(spec.role, lost_grace_s, Staleness(max_stale_s))
        self._role = spec.role
        self._make_cache = spec.near_cache
        self._contenders = spec.contenders
        self._leaves_s = spec.leaves_ms / 1000
        self._loader = VersionLoader(reader, spec)
        self._swapped = threading.Condition()
        self._served: tuple[ModelVersion, NearCache] | None = None
        self._manifest_json: bytes | None = None
        self._published: VersionManifest | None = None
        self._seen: dict[int, VersionManifest] = {}
        """Versions that were served last."""
        self._emptied = ""
        """Name space (`VersionManifest.sentinel`) whose evictions have emptied the near-cache."""
        self._failure: Exception | None = None
        self._listeners: list[Callable[[Mapping[str, I64] | None], None]] = []
        self._prepares: list[Callable[[ModelVersion, NearCache], None]] = []
        self._looks: list[Callable[[], None]] = []
        self.held = ""
        self._stop = threading.Event()
        self._thread = threading.Thread(target=self._follow, name=f"{spec.role}-follower", daemon=True)

    # ── for requests ─────────────────────────────────────────────────────────────────────────────────

    def served(self) -> tuple[ModelVersion, NearCache]:
        """Served version and its cached rows. Raises NotReadyError before the first version."""
        served = self._served
        if served is None:
            raise NotReadyError("no version has been published yet")
        return served

    @property
    def current(self) -> ModelVersion | None:
        """Served version; None before the first version."""
        served = self._served
        return served[0] if served is not None else None

    @property
    def kept(self) -> dict[int, VersionManifest | None]:
        """Versions that the namespace keeps, newest first; None: one that was never served here."""
        newest, served, seen = self._published, self.current, self._seen
        if newest is None:
            return {}
        numbers = {newest.version, *newest.earlier, *([served.number] if served is not None else [])}
        known = {**seen, newest.version: newest}
        return {number: known.get(number) for number in sorted(numbers, reverse=True)}

    @property
    def trouble(self) -> str:
        """Reason why there is no version to serve, or why it may not be whole; empty: no trouble."""
        if self.health.reason or self.current is not None:
            return self.health.reason
        return str(self._failure or "no version is loaded yet")

    def wait_newer(self, number: int, deadline: float | None) -> None:
        """Wait until another version than `number` is served.

        Raises:
            DeadlineError: the deadline passed first.
        """
        limit = end_of_wait(deadline, _NEWER_S)
        with self._swapped:
            while self.current is None or self.current.number == number:
                left = limit - time.monotonic()
                if left <= 0:
                    raise DeadlineError(f"version {number} was overwritten and the next did not come in time")
                self._swapped.wait(left)

    def on_change(self, changed: Callable[[Mapping[str, I64] | None], None]) -> None:
        """Call `changed` before each swap, with the changed keys i64[n] by table; None: unknown, so all."""
        self._listeners.append(changed)

    def on_served(self, prepare: Callable[[ModelVersion, NearCache], None]) -> None:
        """Call `prepare` after each swap with what is served, in the follower's thread."""
        self._prepares.append(prepare)

    def on_look(self, look: Callable[[], None]) -> None:
        """Call `look` whenever Redis is looked at for a newer version; it may read Redis, too."""
        self._looks.append(look)

    # ── for the process ──────────────────────────────────────────────────────────────────────────────

    def start(self) -> None:
        """Load the newest version, if any, and start to follow.

        Raises:
            ConnectError: Redis cannot be reached.
            MismatchError: the version belongs to another pipeline.
        """
        self.reader.ping()
        try:
            self.refresh()
            self._check()
            self._look()
            self._record_look(good=True)
        except REDIS_ERRORS as error:
            log.warning("Redis stopped answering while the server started: %s", error)
        self.follow()

    def follow(self) -> None:
        """Follow in the thread alone: do not wait for a version; an error becomes the side's `trouble`."""
        self._thread.start()

    def wait_ready(self, timeout_s: float) -> bool:
        """Wait for the first version; True if it is served.

        Raises:
            MismatchError: the version belongs to another pipeline.
        """
        limit = time.monotonic() + timeout_s
        with self._swapped:
            while self.current is None:
                if isinstance(self._failure, MismatchError):
                    raise self._failure
                left = limit - time.monotonic()
                if left <= 0:
                    return False
                self._swapped.wait(left)
            return True

    def close(self) -> None:
        """Stop to follow and disconnect."""
        self._stop.set()
        if self._thread.is_alive():
            self._thread.join(timeout=5)
        self.reader.close()

    def _age_s(self) -> float:
        """Seconds since the served version was published; 0 before the first version."""
        version = self.current
        return time.time() - version.manifest.created_ms / 1000 if version is not None else 0.0

    # ── the swap ─────────────────────────────────────────────────────────────────────────────────────

    def refresh(self) -> bool:
        """Move to the newest version; False if it is served already.

        Raises:
            redis.RedisError: an error of REDIS_ERRORS.
            MismatchError: the version belongs to another pipeline.
            LookupError: blobs of the version are gone.
            ValueError: the manifest or a blob does not decode.
        """
        manifest_json = self.reader.manifest()
        self.reader.resume()  # Redis answers: requests may read again, before a new version is theirs
        if manifest_json is None or manifest_json == self._manifest_json:
            return False
        started = time.perf_counter()
        manifest = self._loader.parse(manifest_json)
        self._published = manifest
        version = self._loader.load(manifest, self.current)
        if version is None:
            if self.reader.manifest() == manifest_json:
                raise LookupError(f"blobs of version {manifest.version} are gone from Redis")
            return False  # superseded while it was loaded: the next notice brings a newer version
        before = self.current
        first = before is None
        self._swap(version)
        if self._contenders and before is not None and before.manifest.champion != manifest.champion:
            log.info("version %d: %s ranks from here on", manifest.version, manifest.champion)
        self._manifest_json = manifest_json
        self._seen = dict([*self._seen.items(), (manifest.version, manifest)][-KEPT_VERSIONS:])
        for content in version.content.values():
            content.set_gauges()
        self._observe(manifest, time.perf_counter() - started, first)
        for prepare in self._prepares:
            prepare(*self.served())
        return True

    def _swap(self, version: ModelVersion) -> None:
        """Steps 3 to 5. Rows are told first: nothing may be kept with the version that is older than it."""
        before, cache = self._served or (None, None)
        changed = self._loader.changed_keys(version.manifest, before)
        if cache is None or changed is None:
            cache = self._make_cache(version.manifest)
            self._tell(None)
        else:
            refreshed = self._loader.cached_rows(version.manifest, cache, changed)
            self._tell(changed)
            cache.advance(version.number, changed, refreshed)
        self._served = version, cache
        self.reader.served_manifest = version.manifest
        with self._swapped:
            self._swapped.notify_all()

    def _observe(self, manifest: VersionManifest, seconds: float, first: bool) -> None:
        """Step 6: show the version in the metrics.

        The first version is no measure of freshness: it waited for this server to start. Neither is a
        canary's: the objective is about the stable side.
        """
        metrics.SERVED_VERSION.labels(self._role).set(manifest.version)
        metrics.SWAP_SECONDS.labels(self._role).observe(seconds)
        for contender in self._contenders:
            metrics.SERVED_CHAMPION.labels(contender).set(int(contender == manifest.champion))
        bins = np.array(manifest.freshness.bin_ms, np.int64)
        if len(bins) and not first and self.side == STABLE:
            counts = np.array(manifest.freshness.counts, np.int64)
            delay_s = (time.time() * 1000 - bins) / 1000
            metrics.FRESHNESS.observe(delay_s, counts)
            metrics.LEARNING_DELAY.observe(np.maximum(delay_s - self._leaves_s, 0), counts)

    # ── the thread that follows ──────────────────────────────────────────────────────────────────────

    def _follow(self) -> None:
        SIDE.set(self.side)
        # Read at each scrape: a version grows old while Redis is away, too.
        metrics.SERVED_AGE.labels(self._role).set_function(self._age_s)
        try:
            failures = 0
            while not self._stop.is_set():
                try:
                    with self.reader.subscribe() as subscription:
                        while not self._stop.is_set():
                            self._poll()
                            failures = 0
                            subscription.get_message(timeout=_POLL_S)
                except Exception as error:
                    self._record_failure(error, first=failures == 0)
                    self._stop.wait(_BACKOFF_S[min(failures, len(_BACKOFF_S) - 1)])
                    failures += 1
        except BaseException as error:
            self.health.fail(f"the watcher of versions ended ({error!r}); restart the server")
            if self.side == STABLE:  # a process ends with such a thread, but not for its canary
                raise

    def _poll(self) -> None:
        """Check for a newer version. A wrong version does not end the thread: the next may be right.

        Raises an error of REDIS_ERRORS.
        """
        failure: Exception | None = None
        try:
            self.refresh()
        except REDIS_ERRORS:
            raise
        except Exception as error:
            failure = error
            if str(error) != str(self._failure):
                log.error("the published version cannot be served: %s", error)
        self._failure = failure
        self._check()
        self.held = self.reader.held()
        self._look()
        self._record_look(good=failure is None)
        if failure is not None:
            with self._swapped:
                self._swapped.notify_all()

    def _look(self) -> None:
        for look in self._looks:
            look()

    def _record_look(self, *, good: bool) -> None:
        metrics.STALE.labels(self._role).set(0 if good else 1)
        self.health.staleness.record(good)
        self.health.tick()

    def _record_failure(self, error: Exception, *, first: bool) -> None:
        """Record a failed poll in the log, the metrics and the health."""
        known = isinstance(error, REDIS_ERRORS)
        outcome = outcome_of(error)
        if first:
            log.warning(
                "Redis at %s %s: %s",
                self.reader.url,
                "went away" if outcome is Outcome.DEGRADED else "cannot be used",
                error,
                exc_info=None if known else error,
            )
        self._record_look(good=False)
        metrics.CHECKS_FAILED.labels(self._role, outcome).inc()
        redis = f"Redis at {self.reader.url}"
        if not known:
            self.health.report(HealthIssue.BROKEN, f"the check for a newer version fails: {error!r}")
        elif outcome is Outcome.UNAVAILABLE:
            self.health.report(HealthIssue.REFUSED, f"{redis} refuses: {error}")
        elif outcome is Outcome.EXIT:
            self.health.report(HealthIssue.MISUSED, f"{redis} cannot be used: {error}; change --redis")
        self.health.tick()

    def _check(self) -> None:
        """Check that Redis holds all of the served version. Raises an error of REDIS_ERRORS."""
        if self.current is None:
            self.health.clear()
            return
        manifest = self.current.manifest
        issue = self.reader.find_issue(manifest)
        if issue is None and isinstance(self._failure, MismatchError):
            issue = HealthIssue.FOREIGN, str(self._failure)
        if issue is None:
            self.health.clear()
            return
        if issue[0] is HealthIssue.EVICTED and self._emptied != manifest.sentinel:
            self._empty_cache(manifest)
        self.reader.problem = issue[1]
        self.health.report(*issue)

    def _empty_cache(self, manifest: VersionManifest) -> None:
        """Empty the near-cache: a row that was evicted before it was read may be cached as missing."""
        self._tell(None)
        if (version := self.current) is not None:
            self._served, self._emptied = (version, self._make_cache(manifest)), manifest.sentinel

    def _tell(self, changed: Mapping[str, I64] | None) -> None:
        for listener in self._listeners:
            listener(changed)
