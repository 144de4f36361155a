"""Push of a version: a thread writes this rank's share of it to Redis (step 5 of a commit).

The push is the last stage of a rank (trainer.stages). It holds one version at most, beside the steps.
"""

from __future__ import annotations

import logging
import time
from collections.abc import Callable, Iterator, Mapping, Sequence
from concurrent.futures import Future, ThreadPoolExecutor, wait
from contextlib import suppress
from dataclasses import dataclass
from functools import partial
from threading import Event

import numpy as np
import numpy.typing as npt

from livectr.store.layout import decode_erased, encode_changed
from livectr.store.manifest import VersionManifest
from livectr.store.vectors import encode_vectors
from livectr.trainer.comm.control import Control
from livectr.trainer.content.names import tag_of
from livectr.trainer.content.precompute import StoppedError, workers
from livectr.trainer.publish import telemetry
from livectr.trainer.publish.garbage import GarbageCollector
from livectr.trainer.publish.log.entries import LogEntry
from livectr.trainer.publish.outcome import outcome_of
from livectr.trainer.publish.redis_store import RedisStore
from livectr.trainer.publish.store_errors import STORE_ERRORS, FencedError, GivenUpError, HeldError, LostError
from livectr.trainer.publish.sweep import sweep
from livectr.trainer.publish.version import Pending, Push, VersionSnapshot

LOG = logging.getLogger(__name__)
PACE_S = 0.1
"""Seconds of rows that a limited push writes at once."""
Chunk = tuple[str, npt.NDArray[np.int64], npt.NDArray[np.float32]]
PUSH_ERRORS: tuple[type[BaseException], ...] = (*STORE_ERRORS, LostError, GivenUpError)
F32 = npt.NDArray[np.float32]


@dataclass(frozen=True)
class Share:
    """Part of one rank of a version under way. A thread calls `item_vectors`, `log_keys`, `open` and `write`.

    Attributes:
        rank: this rank, of manifest.world.
        snapshot: copies of this rank's rows, values and weights.
        content: name → blobs for the vectors of this rank's content.
        full: the version holds everything, under a fresh row set.
        entry: of the publish log; None: it gets none.
    """

    rank: int
    snapshot: VersionSnapshot
    manifest: VersionManifest
    content: Mapping[str, Sequence[str]]
    full: bool
    entry: LogEntry | None = None

    def item_vectors(self, control: Control) -> F32 | None:
        """Compute the vectors of the items, on one core and nice. Collective: so before all that may fail."""
        if self.snapshot.items is None:
            return None
        with workers(1) as pool:
            return pool.submit(self.snapshot.items.compute, control).result()

    def log_keys(self, store: RedisStore) -> None:
        """Write the list of the keys that this rank is about to change, which the publish log needs.

        Nobody asks what changed in the first version of a row set.
        """
        snapshot = self.snapshot
        changed = encode_changed({}) if self.full else encode_changed(snapshot.changed(), snapshot.erased)
        store.connection.write_blob(self.manifest.changed[self.rank], changed)

    def open(self, store: RedisStore, servers: Sequence[str] = ()) -> None:
        """Mark the version as begun; a complete version also sets up the fences.

        Args:
            store: that gets the version.
            servers: that take it (RedisStore.servers).
        """
        if self.full:
            store.fence.claim(self.manifest.epoch)
            store.open(self.rank, self.manifest)
        entry = self.entry.taken_by(servers) if self.entry is not None else None
        store.begin(self.manifest.version, self.manifest, entry)

    def write(self, store: RedisStore, *, items: F32 | None, stopped: Callable[[], bool]) -> None:
        """Write all rows, values and blobs of this rank's share.

        Args:
            store: that gets the share.
            items: their vectors.
            stopped: the process ends, so that content vectors are computed no further.

        Raises:
            StoppedError: the process ends.
            FencedError, LostError, STORE_ERRORS: see `RedisStore`.
        """
        snapshot, manifest = self.snapshot, self.manifest
        self._remove_erased(store)
        for table, keys in snapshot.erased.items():
            store.rows.erase(manifest.version, manifest.row_set, table, keys, manifest.dim)
        for table, keys, rows in paced(snapshot.chunks(), store.full_rate if self.full else 0.0, stopped):
            store.rows.write(manifest.version, manifest.row_set, table, keys, rows, self.full)
        for values in snapshot.values:
            store.rows.write_values(values)
        if snapshot.kept is not None:
            sweep(store, snapshot.kept)
        store.connection.write_blob(manifest.dense[self.rank], snapshot.dense)
        if snapshot.items is not None and items is not None and self.rank == 0:
            names = {tag_of(name): name for name in manifest.item_vectors}
            for tag, part in zip(snapshot.items.blobs.tags, snapshot.items.parts(items), strict=True):
                store.connection.write_blob(names[tag], encode_vectors(*part))
        for name, precompute in snapshot.content.items():
            for blob, part in zip(self.content[name], precompute.run(stopped), strict=True):
                store.connection.write_blob(blob, encode_vectors(*part))

    def _remove_erased(self, store: RedisStore) -> None:
        """Remove from Redis what the version two before erased; its blobs, read back, name the keys."""
        manifest = self.manifest
        version = manifest.version - 2
        names = manifest.earlier.get(version, ())[self.rank :: manifest.world]
        for blob in (store.connection.blob(name) for name in names):
            erased = decode_erased(blob) if blob is not None else {}
            if any(map(len, erased.values())):
                store.rows.raise_floor(version)
            for table, keys in erased.items():
                store.rows.remove_erased(version, manifest.row_set, table, keys)


def paced(chunks: Iterator[Chunk], rows_per_s: float, stopped: Callable[[], bool]) -> Iterator[Chunk]:
    """Iterate over (table, keys, rows) no faster than a rate, in small parts.

    Args:
        chunks: table, keys i64[n] and rows f32[n, D].
        rows_per_s: 0: as fast as may be, in the parts given.
        stopped: the process ends.

    Raises:
        StoppedError: the process ends.
    """
    if not rows_per_s:
        yield from chunks
        return
    most, due = max(1, int(rows_per_s * PACE_S)), time.monotonic()
    for table, keys, rows in chunks:
        for part in (slice(start, start + most) for start in range(0, len(keys), most)):
            while (wait_s := due - time.monotonic()) > 0:
                if stopped():
                    raise StoppedError
                time.sleep(min(wait_s, PACE_S))
            yield table, keys[part], rows[part]
            due = max(due, time.monotonic() - PACE_S) + len(keys[part]) / rows_per_s


class PushStage:
    """Stage of the version under way. A call lets a version in; `leave` takes it out once it has an outcome.

    Args:
        control: of the thread; no other thread uses it.
        garbage: removes blobs of older versions, on rank 0.
        closing: the process ends.

    Attributes:
        version: under way; None: no push is under way.
        state: of this rank's share.
    """

    depth = 1

    def __init__(
        self, store: RedisStore, control: Control, garbage: GarbageCollector, closing: Event
    ) -> None:
        self.version: Pending | None = None
        self.state = Push.IDLE
        self._store, self._garbage, self._closing = store, garbage, closing
        self._control = control
        self._pool = ThreadPoolExecutor(1, thread_name_prefix="publish")
        self._job: Future[None] | None = None

    @property
    def in_flight(self) -> int:
        """Versions under way: 0 or 1."""
        return int(self.version is not None)

    @property
    def working(self) -> bool:
        """Tell if the thread is at work."""
        return self._job is not None and not self._job.done()

    def __call__(self, version: Pending, share: Share) -> None:
        """Step 5: write this rank's share in the thread. Only while no version is in flight."""
        assert self.version is None
        self.version = version
        self.run(partial(self._write, share), then=Push.PUSHED)

    def run(self, job: Callable[[], None], then: Push) -> None:
        """Run a job in the thread; afterwards `state` is `then`, or the failure."""

        def run() -> None:
            try:
                job()
                self.state = then
            except HeldError:
                LOG.info("a version was pushed and not flipped: the namespace is held")
                self.state = Push.FAILED
            except FencedError:
                LOG.info("another process has taken a higher epoch: Redis is asked if it was a rollback")
                self.state = Push.UNKNOWN
            except PUSH_ERRORS as error:
                LOG.warning("publishing failed, to be repeated: %s", error or type(error).__name__)
                telemetry.FAILED_PUBLISHES.inc()
                self.state = Push.UNKNOWN
            except StoppedError:
                self.state = Push.UNKNOWN

        self.check()
        self.state = Push.PUSHING
        self._job = self._pool.submit(run)

    def find_out(self, version: Pending, before: bytes) -> None:
        """Ask Redis in the thread for the outcome of a failed publish, until it answers. Rank 0.

        Args:
            version: whose publish failed.
            before: text of the manifest before.
        """

        def ask() -> None:
            outcome = outcome_of(self._store, version, before, self._closing)
            if outcome is Push.SUPERSEDED:
                with suppress(*STORE_ERRORS):  # else its blobs stay until the next complete version
                    self._garbage.stands(self._store.manifest_of(self._store.manifest_text()))
            self.state = outcome

        self.state = Push.UNKNOWN
        self._job = self._pool.submit(ask)

    def check(self) -> None:
        """Wait for the thread's job, and raise its exception."""
        if self._job is not None:
            self._job.result()

    def leave(self) -> Pending:
        """Take the version out."""
        assert self.version is not None
        version, self.version = self.version, None
        self.state = Push.IDLE
        return version

    def close(self) -> None:
        """End the thread, whatever it waits for."""
        while self._job is not None and self.working:
            self._store.client.interrupt()
            wait([self._job], timeout=0.2)
        self._pool.shutdown(wait=True)

    def _write(self, share: Share) -> None:
        items = share.item_vectors(self._control)
        servers = self._log_keys(share)
        share.open(self._store, servers)
        if share.rank == 0:
            self._garbage.drop_blobs(share.manifest)
        share.write(self._store, items=items, stopped=self._closing.is_set)
        self._store.pushed(share.rank, share.manifest, servers)

    def _log_keys(self, share: Share) -> tuple[str, ...]:
        """Write the lists of changed keys of all ranks, before any rank's first row. Collective.

        Only then is there an entry of the publish log: its lists are whole wherever the push is cut off.

        Returns:
            Servers that take the version (RedisStore.servers).

        Raises:
            GivenUpError: another rank has failed.
            STORE_ERRORS: Redis did not confirm it.
        """
        servers: tuple[str, ...] = ()
        failure: Exception | None = None
        try:
            servers = self._store.servers()
            share.log_keys(self._store)
        except Exception as error:  # raised below, when the other ranks know
            failure = error
        written = self._control.gather(np.array([failure is None]))
        if failure is not None:
            raise failure
        if not written.all():
            raise GivenUpError("another rank could not write its list of changed keys")
        return servers
