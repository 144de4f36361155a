"""Resumption: rules by which a restarted trainer resumes with deltas from the version that Redis serves.

Let S be the checkpoint's state, and v the version that Redis serves. Rows of S and of v can differ only in

    keys that changed in S and that the version served then lacked: the checkpoint lists them (`unpublished`);
    keys that later versions changed, up to v: the publish log lists them (trainer.publish.log.entries);
    keys that a push after v has changed, though it was cut off and never flipped: the log, too.

If all lists are there, their rows count as changed, and the next version is a delta. It has a number above
all that were begun. Slots of pushes that were cut off are dropped when their rows are written again
(trainer.publish.row_scripts), so that a reader of v is not disturbed.

Else the next version is complete: if Redis is another process than the one that took v, so that it may have
gone back to an older state; if v is of another row set, as after a rollback; if a push without an entry has
begun; if an entry or a blob is gone.
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import Any

from livectr.store.keyspace import seal_mark
from livectr.store.manifest import VersionManifest
from livectr.trainer.publish.log.entries import LogEntry, digest
from livectr.trainer.publish.redis_store import RedisStore
from livectr.trainer.publish.succession import Cursor

MOST_VERSIONS = 100_000
"""Versions after a checkpoint that are looked for in the log."""


@dataclass(frozen=True)
class Resumption:
    """Lists of keys by which Redis and a checkpoint may differ.

    Attributes:
        log: version → its entry, as far as checkpoints may need it.
        later: versions of these, or above the served version, that the checkpoint lacks.
        unpublished: keys that the checkpoint lists count, too.
        cut_off: numbers above the served version whose pushes were never flipped.
    """

    log: dict[int, LogEntry]
    later: tuple[int, ...] = ()
    unpublished: bool = False
    cut_off: tuple[int, ...] = ()

    @staticmethod
    def of(values: dict[str, Any] | None) -> Resumption | None:
        """Decode `dataclasses.asdict` that went through JSON."""
        if values is None:
            return None
        log = {int(version): LogEntry.parsed(entry) for version, entry in values["log"].items()}
        return Resumption(log, tuple(values["later"]), bool(values["unpublished"]), tuple(values["cut_off"]))

    @property
    def blobs(self) -> list[str]:
        """Names of the blobs with the keys that the checkpoint lacks."""
        return [name for version in self.later for name in self.log[version].changed]


def resumption_at(
    store: RedisStore, held: VersionManifest, cursor: Cursor, highest: int
) -> Resumption | None:
    """Read from the log how `held` and a checkpoint may differ; None: that is unknown.

    Args:
        store: whose namespace this trainer has taken, so that nobody else writes.
        held: version of the same run.
        cursor: of the checkpoint.
        highest: number that was ever begun.
    """
    served = cursor.served if cursor.served_row_set == held.row_set else 0
    oldest = served or cursor.version
    if highest - oldest > MOST_VERSIONS:
        return None
    log = store.log(oldest, highest)
    own, begun = log.get(held.version), log.get(cursor.version)
    if own is None or own.mark != seal_mark(held):
        return None
    if not own.servers or own.servers != digest(store.servers()):
        return None
    # A version may have been pushed again under its number, at a later step; and one that stands may never
    # have been flipped, so that the versions after it do not extend it.
    stands = begun is not None and (begun.step, begun.epoch) == (cursor.step, cursor.epoch)
    flipped, unpublished = None, False
    if stands and cursor.row_set == held.row_set:
        flipped = _chain(log, cursor.version, held.version)
    if flipped is None and served:
        flipped, unpublished = _chain(log, served, held.version), True
    cut_off = sorted(v for v in log if v > held.version)
    if flipped is None or any(log[v].row_set != held.row_set for v in cut_off):
        return None
    if not _known(store, held, log):
        return None
    resumption = Resumption(log, (*flipped, *cut_off), unpublished, tuple(cut_off))
    return resumption if all(store.client.exists(name) for name in resumption.blobs) else None


def _chain(log: dict[int, LogEntry], first: int, last: int) -> list[int] | None:
    """Versions after `first` up to `last`, each of which extends the one before; None: the log lacks some."""
    chain = []
    while last > first:
        if last not in log:
            return None
        chain.append(last)
        last = log[last].before
    return chain[::-1] if last == first else None


def _known(store: RedisStore, held: VersionManifest, log: dict[int, LogEntry]) -> bool:
    """Tell if the log has the push that began last, and in a cluster that of every bucket."""
    begun = store.begun()
    if begun is not None and (begun <= held.version or begun not in log):
        return False
    marks = {entry.mark.encode() for version, entry in log.items() if version >= held.version}
    return not store.space.clustered or {*store.marks()} <= marks
