"""Publishing a version: copied at a step boundary, pushed in the background, flipped when all ranks are done.

The steps after a commit's checkpoint (trainer.commits numbers them 1 to 6):

    5  every rank copies what changed since the last version and pushes it to Redis from a thread;
    6  when every rank's push has arrived, rank 0 flips the manifest: the one moment at which the version
       begins to be served.

Ranks learn of each other's pushes from the flags that ride on the batcher's header (`Push`), so training
never waits. One version is under way at a time; while it is, commits publish nothing and changes add up.

A complete publish goes under a fresh ns: at the start, unless the checkpoint's cursor is exactly what Redis
holds, and whenever Redis is found emptied. A push that fails for another reason is repeated with the next
commit under the same version number, which no reader has seen.
"""

import logging
import secrets
import time
from collections.abc import Callable, Mapping, Sequence
from concurrent.futures import Future, ThreadPoolExecutor
from dataclasses import dataclass, field
from enum import IntEnum
from itertools import chain
from threading import Event, Thread
from typing import Any

import numpy as np
import numpy.typing as npt
import redis

from protos.evictions import Evictions
from protos.manifest import Freshness, VersionManifest
from protos.store import KEPT_VERSIONS, decode_erased, encode_changed, encode_vectors
from trainer import telemetry
from trainer.control import Control
from trainer.lookout import Lookout
from trainer.options import summed
from trainer.redis_store import FencedError, LostError, RedisStore, Values, name_space
from trainer.sweep import ContentSweep, StoppedError

LOG = logging.getLogger(__name__)
SWEEP_AFTER_S = 5.0
"""Rows of the ns before stay this long after the flip, for requests that began under it."""

I64 = npt.NDArray[np.int64]
F32 = npt.NDArray[np.float32]


class Push(IntEnum):
    """Where a rank's push stands; travels in the batcher's header."""

    IDLE = 0
    PUSHING = 1
    PUSHED = 2
    FLIPPED = 3
    """Rank 0 only, after step 6."""
    FAILED = 4
    """The connection broke; nothing was flipped."""
    LOST = 5
    """Redis was emptied: the next publish is complete."""
    FENCED = 6
    """Another trainer has taken over."""


@dataclass(frozen=True)
class Cursor:
    """What Redis holds after a publish; kept in the checkpoint of the same step boundary."""

    version: int
    epoch: int
    ns: str
    step: int


@dataclass(frozen=True)
class Snapshot:
    """A rank's share of a version: copies, taken at a step boundary.

    rows: table → (keys i64[m], serving values f32[m, D]) that changed, or all of them.
    table_rows: rows of each of this rank's tables; a table may be on several.
    dense: the rank's dense weights as safetensors.
    values: look-up rows and histories.
    items: (ids i64[n], vectors f32[n, dim]) of rank 0, or None.
    erased: table → keys i64[m] that left it since the last version; of no concern to a complete one.
    content: name → what computes the vectors of this rank's ids; of the same names on every rank.
    """

    step: int
    rows: Mapping[str, tuple[I64, F32]]
    table_rows: Mapping[str, int]
    dense: bytes
    values: Sequence[Values] = ()
    items: tuple[I64, F32] | None = None
    erased: Mapping[str, I64] = field(default_factory=dict)
    content: Mapping[str, ContentSweep] = field(default_factory=dict)


@dataclass(frozen=True)
class Published:
    """A version that is being served."""

    manifest: VersionManifest
    rows: int
    """Table rows written by all ranks."""


class Publisher:
    """One rank's part of publishing; `start`, `begin` and `observe` run alike on every rank.

    Args:
        fingerprint, segments, seed: go into every manifest (protos.manifest.VersionManifest).
    """

    def __init__(
        self,
        store: RedisStore,
        control: Control,
        *,
        fingerprint: str,
        segments: Sequence[tuple[str, int]],
        seed: int,
        sweep_after_s: float = SWEEP_AFTER_S,
        lookout: Lookout | None = None,
    ) -> None:
        self.store = store
        self.control = control
        self.full = True
        """Whether the next version must hold everything."""
        self.last: VersionManifest | None = None
        self.state = Push.IDLE
        self._constant = {
            "fingerprint": fingerprint,
            "dim": sum(dim for _, dim in segments),
            "segments": tuple(segments),
            "seed": seed,
        }
        self._number = 0
        self._ns = ""
        self._version = 0
        self._before = b""
        self._pool = ThreadPoolExecutor(1, thread_name_prefix="publish")
        self._job: Future[None] | None = None
        self._pending: _Pending | None = None
        self._unpublished = Freshness()
        self._since_begin = Freshness()
        self._recent: list[VersionManifest] = []
        self._closing = Event()
        self._sweeper: Thread | None = None
        self._sweep_after_s = sweep_after_s
        self._lookout = (lookout or Lookout(store)) if control.rank == 0 else None

    def start(self, cursor: Cursor | None) -> None:
        """Fence out every earlier trainer; go on with deltas if Redis holds exactly `cursor`. Collective."""
        told = self.control.broadcast_json(self._take_over(cursor) if self.control.rank == 0 else None)
        self.store.epoch = told["epoch"]
        self._version = told["version"]
        self._before = told["manifest"].encode()
        if self._before:
            self.last = VersionManifest.from_json(self._before)
            self._ns = self.last.ns
            self.full = False
        self._watch()

    def _take_over(self, cursor: Cursor | None) -> dict[str, Any]:
        """Claim the next epoch; then nobody else writes, and what Redis holds can be compared."""
        held = self.store.manifest()
        self.store.next_epoch(max(cursor.epoch if cursor else 0, held.epoch if held else 0))
        held, text = self.store.manifest(), self.store.manifest_text()
        same = held is not None and cursor == Cursor(held.version, held.epoch, held.ns, held.step)
        assert self._lookout is not None
        self._lookout.start()
        if held is not None and same:
            same = self.store.is_whole(held) and not self._lookout.evictions.lost_since(held.evictions)
        if held is not None and held.fingerprint != self._constant["fingerprint"]:
            LOG.warning("the version in Redis is another pipeline's; it is replaced")
        return {
            "epoch": self.store.epoch,
            "version": max(held.version if held else 0, cursor.version if cursor else 0),
            "manifest": text.decode() if same and text and not self.store.pushing() else "",
        }

    @property
    def busy(self) -> bool:
        """Whether a version is under way; the same on every rank after `observe`."""
        return self._pending is not None

    @property
    def flag(self) -> Push:
        """What the batcher's header tells the other ranks; LOST too while nothing is under way."""
        lost = self._lookout is not None and self._lookout.lost and not self.full
        return Push.LOST if lost and self.state is Push.IDLE else self.state

    def trained(self, times_ms: I64) -> None:
        """Rank 0 notes event times of examples that the next version will have learned."""
        self._since_begin = self._since_begin.plus(times_ms)

    def cursor(self, step: int) -> Cursor:
        """What Redis will hold when the version that is about to begin at `step` has been flipped."""
        return Cursor(self._version + 1, self.store.epoch, self._next_ns(), step)

    def begin(self, snapshot: Snapshot) -> None:
        """5: push this rank's share of the next version in the background. Collective; not while busy."""
        version, ns, blob = self._version + 1, self._next_ns(), self.store.space.blob
        told = {
            "rows": dict(snapshot.table_rows),
            "written": sum(len(k) for k, _ in snapshot.rows.values()),
            "content": {name: sweep.blobs for name, sweep in snapshot.content.items()},
            "whole": secrets.token_hex(8),
        }
        shares = self.control.gather_json(told)
        tables = summed([share["rows"] for share in shares])
        epoch, world = self.store.epoch, self.control.world
        whole, evictions = shares[0]["whole"], self._lookout.evictions if self._lookout else Evictions()
        if not self.full and self.last is not None:
            whole, evictions = self.last.whole, self.last.evictions
        if self._lookout is not None:
            self._lookout.watch(None)
        content = {
            name: [
                [blob(version, f"content-{name}-{epoch}-{r}-{i}") for i in range(share["content"][name])]
                for r, share in enumerate(shares)
            ]
            for name in snapshot.content
        }
        self._unpublished = self._unpublished.merged(self._since_begin)
        self._since_begin = Freshness()
        earlier = self.last if self.last is not None and not self.full else None
        manifest = VersionManifest(
            version=version,
            epoch=epoch,
            ns=ns,
            step=snapshot.step,
            world=world,
            created_ms=time.time_ns() // 1_000_000,
            tables=tables,
            dense=tuple(blob(version, f"dense-{epoch}-{r}") for r in range(world)),
            changed=tuple(blob(version, f"changed-{epoch}-{r}") for r in range(world)),
            earlier=_earlier(earlier),
            item_vectors=blob(version, f"items-{epoch}") if snapshot.items is not None else None,
            content={name: tuple(chain.from_iterable(names)) for name, names in content.items()},
            freshness=self._unpublished,
            whole=whole,
            evictions=evictions,
            **self._constant,  # type: ignore[arg-type]
        )
        rows = sum(share["written"] for share in shares)
        self._pending = _Pending(manifest, manifest.to_json(), rows, self.full)
        full = self.full
        own = {name: names[self.control.rank] for name, names in content.items()}
        self._run(lambda: self._push(snapshot, manifest, own, full), then=Push.PUSHED)

    def observe(self, flags: Sequence[int]) -> Published | None:
        """Go on as far as every rank's flags of one header allow; returns a version that has just begun.

        Raises:
            FencedError: another trainer has taken over (on every rank).
        """
        if self._pending is None:
            if Push.LOST in flags:
                self._lost()
            return None
        if self._job is not None and self._job.done():
            self._job.result()
        states = [Push(flag) for flag in flags]
        if Push.FENCED in states:
            self._finish()
            raise FencedError(
                f"another trainer has taken over namespace {self.store.space.namespace!r} "
                f"in Redis at {self.store.url}; this one ends (run one trainer for each namespace)"
            )
        if Push.PUSHING in states:
            return None
        if Push.LOST in states or Push.FAILED in states:
            self._finish()
            if Push.LOST in states:
                LOG.warning("Redis at %s was emptied: the next version is complete", self.store.url)
                self._lost()
            self._watch()
            return None
        if states[0] is Push.FLIPPED:
            return self._flipped(self._finish())
        if self.control.rank == 0 and self.state is Push.PUSHED:
            # 6 every rank's push has arrived: flip
            pending, before = self._pending, b"" if self._pending.full else self._before
            self._run(lambda: self._seal_and_flip(pending, before), then=Push.FLIPPED)
        return None

    def _seal_and_flip(self, pending: "_Pending", before: bytes) -> None:
        """The background part of step 6."""
        if pending.full:
            self.store.seal(pending.manifest)
        self.store.flip(pending.text, pending.manifest.version, before)

    def _lost(self) -> None:
        """Redis does not hold the last version any more: publish everything, under a fresh ns."""
        self.full = True
        self._number += 1
        telemetry.VERSIONS_LOST.inc()

    def _watch(self) -> None:
        """Let the look-out compare Redis with the last version."""
        if self._lookout is not None:
            self._lookout.watch(self.last, self._before)

    def close(self) -> None:
        """Wait for the threads; a version that was not flipped is left behind."""
        self._closing.set()
        if self._lookout is not None:
            self._lookout.close()
        self._pool.shutdown(wait=True)
        if self._sweeper is not None:
            self._sweeper.join()
        self.store.close()

    def _next_ns(self) -> str:
        return name_space(self.store.epoch, self._number) if self.full else self._ns

    def _push(
        self, snapshot: Snapshot, manifest: VersionManifest, content: Mapping[str, list[str]], full: bool
    ) -> None:
        """The background part of step 5, on this rank's share; content: its blobs of content vectors."""
        if full:
            self.store.claim(self.store.epoch)
            self.store.open(self.control.rank, manifest)
        self.store.begin(manifest.version)
        rank = self.control.rank
        if rank == 0:
            self._drop_old_blobs()
        self._remove_erased(manifest)
        for table, keys in snapshot.erased.items():
            self.store.erase_rows(manifest.version, manifest.ns, table, keys, manifest.dim)
        for table, (keys, rows) in snapshot.rows.items():
            self.store.write_rows(manifest.version, manifest.ns, table, keys, rows)
        for values in snapshot.values:
            self.store.write_values(values)
        self.store.write_blob(manifest.dense[rank], snapshot.dense)
        written = {table: keys for table, (keys, _) in snapshot.rows.items()}
        changed = encode_changed(written, snapshot.erased)
        self.store.write_blob(manifest.changed[rank], changed)
        if manifest.item_vectors is not None and snapshot.items is not None:
            self.store.write_blob(manifest.item_vectors, encode_vectors(*snapshot.items))
        for name, sweep in snapshot.content.items():
            for blob, part in zip(content[name], sweep.run(self._closing.is_set), strict=True):
                self.store.write_blob(blob, encode_vectors(*part))

    def _remove_erased(self, manifest: VersionManifest) -> None:
        """Remove from Redis what the version two before erased: its blobs, read back, say what that is."""
        version = manifest.version - 2
        names = manifest.earlier.get(version, ())[self.control.rank :: self.control.world]
        for blob in (self.store.blob(name) for name in names):
            erased = decode_erased(blob) if blob is not None else {}
            if any(map(len, erased.values())):
                self.store.raise_floor(version)
            for table, keys in erased.items():
                self.store.remove_erased(version, manifest.ns, table, keys)

    def _run(self, job: Callable[[], None], then: Push) -> None:
        """Run a job in the thread; `state` says how it went."""

        def run() -> None:
            try:
                job()
                self.state = then
            except FencedError:
                self.state = Push.FENCED
            except LostError as error:
                LOG.warning("%s", error)
                self.state = Push.LOST
            except redis.RedisError as error:
                LOG.warning("publishing failed, the next commit repeats it: %s", error)
                self.state = Push.FAILED
            except StoppedError:
                self.state = Push.FAILED

        if self._job is not None:
            self._job.result()
        self.state = Push.PUSHING
        self._job = self._pool.submit(run)

    def _finish(self) -> "_Pending":
        assert self._pending is not None
        pending, self._pending = self._pending, None
        self.state = Push.IDLE
        return pending

    def _flipped(self, pending: "_Pending") -> Published:
        manifest = pending.manifest
        self._version, self._ns, self._before = manifest.version, manifest.ns, pending.text
        self._unpublished = Freshness()
        if self.control.rank == 0:
            telemetry.PUBLISHED_VERSION.set(manifest.version)
            telemetry.PUBLISHED_ROWS.inc(pending.rows)
            self._recent.append(manifest)
            if pending.full or len(self._recent) == 1:
                self._sweeper = Thread(target=self._sweep, args=(manifest,), name="sweep")
                self._sweeper.start()
        self.full, self.last = False, manifest
        self._watch()
        return Published(manifest, pending.rows)

    def _drop_old_blobs(self) -> None:
        while len(self._recent) > KEPT_VERSIONS:
            old = self._recent.pop(0)
            items = (old.item_vectors,) if old.item_vectors else ()
            self.store.drop((*old.dense, *old.changed, *items, *chain.from_iterable(old.content.values())))

    def _sweep(self, manifest: VersionManifest) -> None:
        """Remove what earlier trainers and complete publishes left."""
        if self._closing.wait(self._sweep_after_s):
            return
        try:
            removed = self.store.sweep(manifest)
            LOG.info("removed %d keys of earlier name spaces and versions", removed)
        except redis.RedisError as error:
            LOG.warning("keys of earlier name spaces stay until the next start: %s", error)


@dataclass(frozen=True)
class _Pending:
    """A version under way: its manifest and text, rows written by all ranks, whether it holds everything."""

    manifest: VersionManifest
    text: bytes
    rows: int
    full: bool


def _earlier(last: VersionManifest | None) -> dict[int, tuple[str, ...]]:
    """The changed-key blobs of the versions before the next one that stay readable."""
    if last is None:
        return {}
    known = {**last.earlier, last.version: last.changed}
    return {v: known[v] for v in sorted(known)[-(KEPT_VERSIONS - 1) :]}
