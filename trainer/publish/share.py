"""A rank's share of a version on its way to Redis (step 5 of a commit)."""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass

import numpy as np
import numpy.typing as npt

from livectr.protos.manifest import VersionManifest
from livectr.protos.store import decode_erased, encode_changed, encode_vectors
from livectr.trainer.publish.redis_store import RedisStore
from livectr.trainer.publish.version import VersionSnapshot

I64 = npt.NDArray[np.int64]


@dataclass(frozen=True)
class Share:
    """Part of one rank of a version under way. A thread calls `open`, then `write`; both may be repeated.

    Attributes:
        rank: this one, of manifest.world.
        snapshot: copies of this rank's rows, values and weights.
        content: name → blobs for the vectors of this rank's content.
        full: the version holds everything, under a fresh name space.
    """

    rank: int
    snapshot: VersionSnapshot
    manifest: VersionManifest
    content: Mapping[str, Sequence[str]]
    full: bool

    def open(self, store: RedisStore) -> None:
        """Mark the version as begun; a complete one also sets up the fences."""
        if self.full:
            store.claim(self.manifest.epoch)
            store.open(self.rank, self.manifest)
        store.begin(self.manifest.version)

    def write(self, store: RedisStore, *, stopped: Callable[[], bool]) -> None:
        """Write all keys of this rank's share.

        Args:
            stopped: the process ends, so that content vectors are computed no further.

        Raises:
            StoppedError: the process ends.
            FencedError, LostError, STORE_ERRORS: see trainer.publish.redis_store.
        """
        snapshot, manifest = self.snapshot, self.manifest
        self._remove_erased(store)
        for table, keys in snapshot.erased.items():
            store.erase_rows(manifest.version, manifest.ns, table, keys, manifest.dim)
        written: dict[str, list[I64]] = {}
        for table, keys, rows in snapshot.chunks():
            store.write_rows(manifest.version, manifest.ns, table, keys, rows)
            if not self.full:  # nobody asks what changed in the first version of a name space
                written.setdefault(table, []).append(keys)
        for values in snapshot.values:
            store.write_values(values)
        store.write_blob(manifest.dense[self.rank], snapshot.dense)
        changed = {table: np.concatenate(keys) for table, keys in written.items()}
        store.write_blob(manifest.changed[self.rank], encode_changed(changed, snapshot.erased))
        if manifest.item_vectors is not None and snapshot.items is not None:
            store.write_blob(manifest.item_vectors, encode_vectors(*snapshot.items))
        for name, precompute in snapshot.content.items():
            for blob, part in zip(self.content[name], precompute.run(stopped), strict=True):
                store.write_blob(blob, encode_vectors(*part))

    def _remove_erased(self, store: RedisStore) -> None:
        """Remove from Redis what the version two before erased; its blobs, read back, name the keys."""
        manifest = self.manifest
        version = manifest.version - 2
        names = manifest.earlier.get(version, ())[self.rank :: manifest.world]
        for blob in (store.blob(name) for name in names):
            erased = decode_erased(blob) if blob is not None else {}
            if any(map(len, erased.values())):
                store.raise_floor(version)
            for table, keys in erased.items():
                store.remove_erased(version, manifest.ns, table, keys)
