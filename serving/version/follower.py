"""A server's view of Redis: one published version at a time, swapped while requests are answered.

The swap, step by step:

    1. notice    a message on the channel of versions, or the poll every half second
    2. fetch     dense weights, vectors of items and content, changed keys; build the models (no lock held)
    3. refresh   read the changed rows that the near-cache holds, as of the new version (no lock held)
    4. swap      alone on the lock: put the refreshed rows in, drop changed ones that were cached meanwhile,
                 make the new version the served one
    5. account   metrics; freshness of every example that the version learned

A request holds the other side of the lock while it is answered, so that everything in its reply comes from
one version. Rows that Redis no longer has at that version (two newer ones were published) make the request
let go, wait for the swap and start again, within its deadline.

When Redis goes away the last version goes on answering; when a manifest of another pipeline appears too.
Each look also asks for the sentinels of the served version: see `serving.version.health` for what follows
when they are gone. Nothing that a look raises ends the watch.
"""

from __future__ import annotations

import logging
import threading
import time
from collections.abc import Callable, Iterator, Mapping
from contextlib import contextmanager
from dataclasses import dataclass
from itertools import chain

import numpy as np
import torch
from safetensors.torch import load as load_tensors

from livectr.kernels.errors import MismatchError
from livectr.protos.manifest import VersionManifest
from livectr.protos.redis_errors import REDIS_ERRORS, Outcome, outcome_of
from livectr.protos.store import F32, I64, RowStatus, decode_changed, decode_vectors
from livectr.serving import metrics
from livectr.serving.deadlines import end_of_wait
from livectr.serving.errors import DeadlineError, NotReadyError
from livectr.serving.version.content import Contents, ContentVectors
from livectr.serving.version.health import HealthIssue, ServingHealth
from livectr.serving.version.id_vectors import IdVectors
from livectr.serving.version.near_cache import NearCache
from livectr.serving.version.reader import Reader
from livectr.serving.version.swap_lock import SwapLock

log = logging.getLogger(__name__)

_POLL_S = 0.5
_NEWER_S = 5.0
"""Longest wait of a request without a deadline for the version after one that was overwritten."""
_BACKOFF_S = (0.1, 0.2, 0.5, 1.0, 2.0)


@dataclass(frozen=True)
class ModelVersion:
    """One version, as requests see it.

    dense: every dense tensor of the version by its published name. content: by name, what the model looks at.
    scorer: what the role made of them (models with weights loaded).
    """

    manifest: VersionManifest
    dense: Mapping[str, torch.Tensor]
    items: IdVectors | None
    scorer: object
    content: Mapping[str, ContentVectors]

    @property
    def version(self) -> int:
        return self.manifest.version


class VersionFollower:
    """Follows the published versions of one pipeline.

    fingerprint: the pipeline's. cache: makes an empty near-cache. build: makes the role's scorer of the dense
    weights of a version (called outside the lock). with_items: fetch the item vectors. contents: what the
    role's model looks at.
    """

    def __init__(
        self,
        reader: Reader,
        role: str,
        fingerprint: str,
        cache: Callable[[VersionManifest], NearCache],
        build: Callable[[VersionManifest, Mapping[str, torch.Tensor]], object],
        *,
        with_items: bool,
        contents: Contents,
        lost_grace_s: float = 30.0,
    ) -> None:
        self.reader = reader
        self.health = ServingHealth(role, lost_grace_s)
        self._role = role
        self._fingerprint = fingerprint
        self._make_cache = cache
        self._build = build
        self._with_items = with_items
        self.contents = contents
        self._lock = SwapLock()
        self._swapped = threading.Condition()
        self._served: ModelVersion | None = None
        self._cache: NearCache | None = None
        self._raw: bytes | None = None
        self._emptied = ""
        """The last name space whose near-cache was emptied, because keys were evicted."""
        self._failure: Exception | None = None
        self._stop = threading.Event()
        self._thread = threading.Thread(target=self._watch, name=f"{role}-follower", daemon=True)

    # ── for requests ─────────────────────────────────────────────────────────────────────────────────

    @contextmanager
    def read(self, deadline: float | None) -> Iterator[tuple[ModelVersion, NearCache]]:
        """The served version and its cached rows; no swap happens inside.

        Raises NotReadyError before the first version, DeadlineError.
        """
        with self._lock.read(deadline):
            if self._served is None or self._cache is None:
                raise NotReadyError("no version has been published yet")
            yield self._served, self._cache

    @property
    def current(self) -> ModelVersion | None:
        """The served version, without holding it."""
        return self._served

    def wait_newer(self, version: int, deadline: float | None) -> None:
        """Returns when another version than `version` is served. Raises DeadlineError."""
        limit = end_of_wait(deadline, _NEWER_S)
        with self._swapped:
            while self._served is None or self._served.version == version:
                left = limit - time.monotonic()
                if left <= 0:
                    raise DeadlineError(
                        f"version {version} was overwritten and the next did not come in time"
                    )
                self._swapped.wait(left)

    # ── for the process ──────────────────────────────────────────────────────────────────────────────

    def start(self) -> None:
        """Starts to follow.

        Raises ConnectError when Redis cannot be reached, MismatchError when it holds another model.
        """
        self.reader.ping()
        try:
            self.refresh()
            self._check()
        except REDIS_ERRORS as error:
            log.warning("Redis stopped answering while the server started: %s", error)
        self._thread.start()

    def wait_ready(self, timeout_s: float) -> bool:
        """Waits for the first version; whether it is there. MismatchError when it is another pipeline's."""
        limit = time.monotonic() + timeout_s
        with self._swapped:
            while self._served is None:
                if isinstance(self._failure, MismatchError):
                    raise self._failure
                left = limit - time.monotonic()
                if left <= 0:
                    return False
                self._swapped.wait(left)
            return True

    def close(self) -> None:
        self._stop.set()
        if self._thread.is_alive():
            self._thread.join(timeout=5)
        self.reader.close()

    # ── following ────────────────────────────────────────────────────────────────────────────────────

    def refresh(self) -> bool:
        """Moves to the newest version; whether there was one to move to.

        Raises one of REDIS_ERRORS, MismatchError, LookupError for a version without its blobs, ValueError for
        a manifest or blob that cannot be read.
        """
        raw = self.reader.manifest()
        if raw is None or raw == self._raw:
            return False
        started = time.perf_counter()
        manifest = VersionManifest.from_json(raw)
        if manifest.fingerprint != self._fingerprint:
            raise MismatchError(
                f"Redis at {self.reader.url} holds version {manifest.version} of another pipeline "
                f"(fingerprint {manifest.fingerprint[:12]}, this one is {self._fingerprint[:12]}): serve the "
                "pipeline file that was trained, or use another namespace"
            )
        served = self._fetch(manifest)
        if served is None:
            if self.reader.manifest() == raw:
                raise LookupError(f"blobs of version {manifest.version} are gone from Redis")
            return False  # it was superseded while it was fetched: the next notice brings a newer one
        first = self._served is None
        self._swap(served)
        self._raw = raw
        for content in served.content.values():
            content.account()
        self._account(manifest, time.perf_counter() - started, first)
        return True

    def _fetch(self, manifest: VersionManifest) -> ModelVersion | None:
        """Step 2, but for the changed keys: weights, vectors of items and content. None: a blob is gone."""
        names = self.contents.blobs(manifest.content)
        items_at = [manifest.item_vectors] if self._with_items and manifest.item_vectors is not None else []
        wanted = [*manifest.dense, *items_at, *chain.from_iterable(names.values())]
        blobs = {
            name: blob
            for name, blob in zip(wanted, self.reader.blobs(wanted), strict=True)
            if blob is not None
        }
        if len(blobs) < len(wanted):
            return None
        dense: dict[str, torch.Tensor] = {}
        for name in manifest.dense:
            dense |= load_tensors(blobs[name])
        before, items = self._served, None
        for name in items_at:
            items = IdVectors(*decode_vectors(blobs[name]), before.items if before else None)
        content = self.contents.at(
            {name: [blobs[blob] for blob in parts] for name, parts in names.items()},
            dense,
            before.content if before else {},
        )
        return ModelVersion(manifest, dense, items, self._build(manifest, dense), content)

    def _changed(self, manifest: VersionManifest) -> dict[str, I64] | None:
        """Keys that changed since the served version; None when that is not known any more."""
        if self._served is None:
            return None
        names = manifest.changed_since(self._served.version, self._served.manifest.ns)
        if names is None:
            return None
        changed: dict[str, list[I64]] = {}
        for blob in self.reader.blobs(names):
            if blob is None:
                return None
            for table, keys in decode_changed(blob).items():
                changed.setdefault(table, []).append(keys)
        return {table: np.unique(np.concatenate(parts)) for table, parts in changed.items()}

    def _swap(self, served: ModelVersion) -> None:
        """Steps 3 and 4."""
        changed = self._changed(served.manifest)
        cache = self._cache
        if cache is None or changed is None:
            cache, changed, refreshed = self._make_cache(served.manifest), {}, {}
        else:
            refreshed = self._refreshed(served.manifest, cache, changed)
        with self._lock.write():
            for table, (keys, rows) in refreshed.items():
                cache.replace(table, changed[table], keys, rows)
            self._cache, self._served = cache, served
            self.reader.serving = served.manifest
        with self._swapped:
            self._swapped.notify_all()

    def _refreshed(
        self, manifest: VersionManifest, cache: NearCache, changed: Mapping[str, I64]
    ) -> dict[str, tuple[I64, F32]]:
        """Step 3: cached rows that changed, as of `manifest`."""
        held = {table: cache.held(table, keys) for table, keys in changed.items() if table in cache.tables}
        found = self.reader.rows(manifest, held, patient=True)
        return {
            table: (held[table][status == RowStatus.FOUND], rows[status == RowStatus.FOUND])
            for table, (rows, status) in found.items()
        }

    def _account(self, manifest: VersionManifest, seconds: float, first: bool) -> None:
        """Step 5. What the first version learned was not made to wait by this server."""
        metrics.SERVED_VERSION.labels(self._role).set(manifest.version)
        metrics.SWAP_SECONDS.labels(self._role).observe(seconds)
        bins = np.array(manifest.freshness.bin_ms, np.int64)
        if len(bins) and not first:
            metrics.FRESHNESS.observe(
                (time.time() * 1000 - bins) / 1000, np.array(manifest.freshness.counts, np.int64)
            )

    def _watch(self) -> None:
        try:
            failures = 0
            while not self._stop.is_set():
                try:
                    with self.reader.subscribe() as subscription:
                        while not self._stop.is_set():
                            self._look()
                            failures = 0
                            subscription.get_message(timeout=_POLL_S)
                except Exception as error:
                    self._failed(error, first=failures == 0)
                    self._stop.wait(_BACKOFF_S[min(failures, len(_BACKOFF_S) - 1)])
                    failures += 1
        except BaseException as error:
            self.health.die(f"the watcher of versions ended ({error!r}); restart the server")
            raise

    def _failed(self, error: Exception, *, first: bool) -> None:
        """Notes a look that had no answer; whatever it was, the next one may have."""
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
        metrics.STALE.labels(self._role).set(1)
        metrics.CHECKS_FAILED.labels(self._role, outcome).inc()
        if not known:
            self.health.trouble(HealthIssue.BROKEN, f"no newer version can be looked for: {error!r}")
        elif outcome is Outcome.UNAVAILABLE:
            self.health.trouble(HealthIssue.REFUSED, f"Redis at {self.reader.url} refuses: {error}")
        elif outcome is Outcome.EXIT:
            self.health.trouble(
                HealthIssue.MISUSED, f"Redis at {self.reader.url} cannot be used: {error}; change --redis"
            )
        self.health.tick()

    def _look(self) -> None:
        """One look. What is wrong with a published version must not end the watch: the next may be right.

        Raises one of REDIS_ERRORS.
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
        self.reader.resume()
        metrics.STALE.labels(self._role).set(0 if failure is None else 1)
        served = self._served
        if served is not None:
            metrics.SERVED_AGE.labels(self._role).set(time.time() - served.manifest.created_ms / 1000)
        if failure is not None:
            with self._swapped:
                self._swapped.notify_all()

    def _check(self) -> None:
        """Whether the served version is known to be whole in Redis. Raises one of REDIS_ERRORS."""
        if self._served is None:
            self.health.well()
            return
        manifest = self._served.manifest
        loss = self.reader.loss(manifest)
        if loss is None and isinstance(self._failure, MismatchError):
            loss = HealthIssue.FOREIGN, str(self._failure)
        if loss is None:
            self.health.well()
            return
        if loss[0] is HealthIssue.EVICTED and self._emptied != manifest.whole:
            self._forget(manifest)
        self.reader.problem = loss[1]
        self.health.trouble(*loss)

    def _forget(self, manifest: VersionManifest) -> None:
        """Empties the near-cache: a row that was evicted before it was seen may be held as missing."""
        cache = self._make_cache(manifest)
        with self._lock.write():
            self._cache, self._emptied = cache, manifest.whole
