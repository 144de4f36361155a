"""Content store: raw features of pictures or texts by id, encoded once and read many times (DICM §4).

A store holds a row of `width` float16 numbers for each 64-bit id, such as 4096 numbers of a picture from a
fixed encoder. Rows lie in shards by id, so that each rank can own a share. Features are memory-mapped; an
index of about 60 bytes per id is in memory. `ingest.content.files` describes the files.

A process may append while others read: they see new rows after `refresh`.
"""

from __future__ import annotations

import hashlib
import threading
from collections.abc import Collection, Iterator
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path
from typing import Any

import numpy as np
import numpy.typing as npt

from livectr.ingest.content.files import (
    Chunk,
    append_chunk,
    last_of_each,
    list_chunks,
    open_chunk,
    shard_folder,
    shard_lock,
    verify_chunk,
)
from livectr.ingest.content.manifest import create_manifest, read_manifest
from livectr.ingest.content.places import Places
from livectr.kernels.keys.keys import MISSING, KeyNumbers
from livectr.kernels.runtime.gather import gather_rows
from livectr.system.errors import ConfigError

I64 = npt.NDArray[np.int64]
U64 = npt.NDArray[np.uint64]
F16 = npt.NDArray[np.float16]
F32 = npt.NDArray[np.float32]
Bools = npt.NDArray[np.bool_]

SHARDS = 16
WRITERS = 16  # threads
GREATEST = float(np.finfo(np.float16).max)


def digest_of(value: bytes) -> int:
    """64-bit digest of a picture or text: with an equal digest it need not be encoded again."""
    return int.from_bytes(hashlib.blake2b(value, digest_size=8).digest(), "little")


def shard_of(ids: I64, shards: int) -> I64:
    """Shard of each id, int64[n]: its mixed bits (MurmurHash3's fmix64) modulo `shards`."""
    mixed = np.asarray(ids, np.int64).view(np.uint64).copy()
    for factor in (0xFF51AFD7ED558CCD, 0xC4CEB9FE1A85EC53):
        mixed ^= mixed >> np.uint64(33)
        mixed *= np.uint64(factor)
    mixed ^= mixed >> np.uint64(33)
    return (mixed % np.uint64(shards)).astype(np.int64)


class ContentStore:
    """Features by id in a folder; created by `create`, `open` or `ensure`. Thread-safe.

    Attributes:
        width: numbers of a row.
        encoder: name of the encoder; rows of different encoders are not comparable.
        shards: number of shards of the store.
        own_shards: shards that this object reads and appends to.
    """

    def __init__(
        self, root: Path, width: int, encoder: str, shards: int, own_shards: Collection[int]
    ) -> None:
        self.root, self.width, self.encoder, self.shards = root, width, encoder, shards
        self.own_shards = tuple(sorted(set(own_shards)))
        self._lock = threading.RLock()
        self._numbers = KeyNumbers()
        self._places = Places()
        self._chunks: dict[int, Chunk] = {}  # by handle
        self._handles = 0
        self.refresh()

    @classmethod
    def create(cls, root: Path | str, *, width: int, encoder: str, shards: int = SHARDS) -> ContentStore:
        """Create an empty store.

        Raises:
            ConfigError: the folder holds a store already.
        """
        if width < 1 or shards < 1:
            raise ConfigError(
                f"a content store has width {width} and {shards} shards; both must be at least 1"
            )
        root = Path(root)
        if not create_manifest(root, {"width": width, "encoder": encoder, "shards": shards}):
            raise ConfigError(f"{root} holds a content store; open it, or name another folder")
        return cls(root, width, encoder, shards, range(shards))

    @classmethod
    def open(cls, root: Path | str, shards: Collection[int] | None = None) -> ContentStore:
        """Open a store, all of it or some shards.

        Raises:
            ConfigError: there is no store, a file is truncated, or a shard does not exist.
        """
        root = Path(root)
        width, encoder, count = read_manifest(root)
        own = range(count) if shards is None else shards
        if wrong := sorted(shard for shard in own if not 0 <= shard < count):
            raise ConfigError(f"{root} has the shards 0 to {count - 1}, not {wrong[0]}")
        return cls(root, width, encoder, count, own)

    @classmethod
    def ensure(
        cls,
        root: Path | str,
        *,
        width: int,
        encoder: str,
        shards: int = SHARDS,
        own_shards: Collection[int] | None = None,
    ) -> ContentStore:
        """Open a store, or create it when there is none; several processes may call this at once.

        An existing store keeps its number of shards.

        Raises:
            ConfigError: its rows have another encoder or width.
        """
        root = Path(root)
        if width < 1 or shards < 1:
            raise ConfigError(
                f"a content store has width {width} and {shards} shards; both must be at least 1"
            )
        create_manifest(root, {"width": width, "encoder": encoder, "shards": shards})
        store = cls.open(root, own_shards)
        if (store.encoder, store.width) != (encoder, width):
            raise ConfigError(
                f"{root} holds {store.width} numbers a row of encoder {store.encoder!r}, not {width} of "
                f"{encoder!r}; use that encoder, or name another folder"
            )
        return store

    def append(self, ids: I64, features: F16 | F32, digests: U64 | None = None) -> int:
        """Write rows, replacing rows of the same ids.

        On return the rows are on disk. A crash may leave the rows of some shards only.

        Args:
            ids: int64[n], of shards in `own_shards`; of a repeated id the last row counts.
            features: f16|f32[n, width].
            digests: uint64[n], see `digest_of`; 0 without digest.

        Returns:
            Number of rows written.

        Raises:
            ConfigError: rows have another width, numbers exceed float16, or the folder cannot be written.
            ValueError: ids belong to shards not in `own_shards`.
        """
        ids, rows = np.asarray(ids, np.int64), np.asarray(features)
        if rows.ndim != 2 or rows.shape[1] != self.width:
            raise ConfigError(
                f"{self.root} holds {self.width} numbers a row (encoder {self.encoder!r}), but rows of "
                f"{'×'.join(map(str, rows.shape[1:])) or 'one number'} were given; use the store's encoder, "
                "or name another folder"
            )
        marks = np.zeros(len(ids), np.uint64) if digests is None else np.asarray(digests, np.uint64)
        if not len(ids) == len(rows) == len(marks):
            raise ValueError(f"{len(ids)} ids, {len(rows)} rows and {len(marks)} digests")
        values = _as_float16(ids, rows)
        keep = last_of_each(ids)
        shard = shard_of(ids[keep], self.shards)
        self._check_owned(shard)

        def write(number: int) -> None:
            mine = keep[shard == number]
            with shard_lock(self.root, number):
                append_chunk(self.root, number, ids[mine], values[mine], marks[mine])

        with ThreadPoolExecutor(WRITERS) as pool:  # in parallel, because writers wait for the disk's syncs
            list(pool.map(write, np.unique(shard).tolist()))
        self.refresh()
        return len(keep)

    def read(self, ids: I64, out: F16 | None = None) -> tuple[F16, Bools]:
        """Read rows by id.

        Args:
            ids: int64[n], may repeat.
            out: float16[n, width] to fill; allocating fresh memory takes as long as reading.

        Returns:
            Rows float16[n, width], 0 for unknown ids, and known bool[n].

        Raises:
            ValueError: ids belong to shards not in `own_shards`.
        """
        if out is None:
            out = np.empty((len(ids), self.width), np.float16)
        with self._lock:
            numbers = self._find(ids)
            known = numbers != MISSING
            at = np.where(known, numbers, 0)
            if not len(self._numbers):
                out[:] = 0
                return out, known
            # Handles increase and are not reused, so few of them are in use.
            handles = np.array(sorted(self._chunks), np.int32)
            source = np.searchsorted(handles, self._places.chunk[at]).astype(np.int32)
            source[~known] = -1
            sources = [self._chunks[handle].features for handle in handles.tolist()]
            gather_rows(sources, source, self._places.row[at], out)
        return out, known

    def digests(self, ids: I64) -> tuple[U64, Bools]:
        """Digests uint64[n] of the rows of ids int64[n], and known bool[n]."""
        with self._lock:
            numbers = self._find(ids)
            known = numbers != MISSING
            out = np.zeros(len(numbers), np.uint64)
            out[known] = self._places.digest[numbers[known]]
        return out, known

    def verify(self) -> None:
        """Check the checksums of all files of the shards in `own_shards`, in parallel.

        Raises:
            ConfigError: a file has changed.
        """

        def check(shard: int) -> None:
            while True:
                try:
                    for name in list_chunks(self.root, shard):
                        verify_chunk(self.root, name)
                except FileNotFoundError:
                    continue  # merged while it was read
                return

        with ThreadPoolExecutor(WRITERS) as pool:
            list(pool.map(check, self.own_shards))

    def refresh(self) -> bool:
        """Load rows that other processes have appended; return true if there are any.

        Raises:
            ConfigError: a file is truncated.
        """
        with self._lock:
            added = False
            for shard in self.own_shards:
                while True:
                    seen = {c.name: handle for handle, c in self._chunks.items() if c.name.shard == shard}
                    names = list_chunks(self.root, shard)
                    try:
                        new = [open_chunk(self.root, n, self.width) for n in names if n not in seen]
                    except FileNotFoundError:
                        continue  # merged while it was opened
                    break
                for chunk in new:
                    self._add(chunk)
                    for name in [name for name in seen if chunk.name.covers(name)]:
                        del self._chunks[seen.pop(name)]
                added = added or bool(new)
            return added

    @property
    def ids(self) -> I64:
        """All ids of the shards in `own_shards`, int64[m], in arbitrary order."""
        with self._lock:
            return self._places.ids[: len(self._numbers)].copy()

    def ids_from(self, first: int) -> I64:
        """Ids int64[m] of the rows numbered `first` and more, in the order in which they were loaded."""
        with self._lock:
            return self._places.ids[first : len(self._numbers)].copy()

    def changed(self, since: int) -> tuple[I64, int]:
        """Numbers int64[m] of the rows whose features are new after a moment, and the present moment.

        A row of an equal digest has not changed, nor has a row of a merge of loaded chunks. Rows
        without digests count as changed if they were merged with new ones.

        Args:
            since: moment of an earlier call; 0: all rows.
        """
        with self._lock:
            places = self._places
            return np.flatnonzero(places.added[: len(self._numbers)] > since), places.additions

    def __len__(self) -> int:
        """Number of ids in the shards of `own_shards`."""
        return len(self._numbers)

    def chunks(self, rows: int = 8192) -> Iterator[tuple[I64, F16]]:
        """Iterate over every id with its newest row, file by file, as of the first call.

        Args:
            rows: greatest k.

        Returns:
            (ids int64[k], features float16[k, width]) at a time.
        """
        with self._lock:
            chunks = sorted(self._chunks.items(), key=lambda item: item[1].name)
            used = len(self._numbers)
            at, place = self._places.chunk[:used].copy(), self._places.row[:used].copy()
        for handle, chunk in chunks:
            for start in range(0, len(chunk.ids), rows):
                part = slice(start, start + rows)
                with self._lock:
                    numbers = self._numbers.find(chunk.ids[part])
                newest = (at[numbers] == handle) & (place[numbers] == np.arange(start, start + len(numbers)))
                if newest.all():
                    yield chunk.ids[part], chunk.features[part]
                elif newest.any():
                    yield chunk.ids[part][newest], chunk.features[part][newest]

    def shard_of(self, ids: I64) -> I64:
        """Shard of each id, int64[n], also of shards not in `own_shards`."""
        return shard_of(ids, self.shards)

    @property
    def chunk_count(self) -> int:
        """Number of feature files of the shards in `own_shards`."""
        return len(self._chunks)

    @property
    def bytes_on_disk(self) -> int:
        """Bytes of the files of the shards in `own_shards`."""
        folders = (shard_folder(self.root, shard) for shard in self.own_shards)
        return sum(path.stat().st_size for folder in folders for path in folder.glob("*.npy"))

    def _find(self, ids: I64) -> npt.NDArray[np.uint32]:
        ids = np.ascontiguousarray(ids, np.int64)
        numbers = self._numbers.find(ids)
        if len(self.own_shards) < self.shards:
            self._check_owned(shard_of(ids[numbers == MISSING], self.shards))
        return numbers

    def _check_owned(self, shard: I64) -> None:
        if len(self.own_shards) < self.shards and not np.isin(shard, self.own_shards).all():
            raise ValueError(f"ids of shards that are not owned; own are {self.own_shards} of {self.shards}")

    def _add(self, chunk: Chunk) -> None:
        """Index the rows of a chunk, except ids that a later chunk has."""
        handle, self._handles = self._handles, self._handles + 1
        self._chunks[handle] = chunk
        before = len(self._numbers)
        numbers = self._numbers.assign(np.ascontiguousarray(chunk.ids))
        places = self._places
        places.grow(before, len(self._numbers))
        newer = places.last[numbers] <= chunk.name.last
        numbers, rows = numbers[newer], np.flatnonzero(newer)
        places.put(chunk, handle, numbers, rows, before)


def _as_float16(ids: I64, rows: npt.NDArray[Any]) -> F16:
    """Convert rows to float16[n, width].

    Raises:
        ConfigError: a row does not fit; the message names the first.
    """
    with np.errstate(over="ignore"):
        values = np.asarray(rows, np.float16)
    if len(bad := np.flatnonzero(~np.isfinite(values).all(1))):
        row = np.asarray(rows[bad[0]], np.float64)
        most = float(np.abs(row).max())
        what = f"reach {most:g}, more than float16's {GREATEST:g}" if np.isfinite(most) else "are not finite"
        raise ConfigError(f"features of id {int(ids[bad[0]])} {what}; scale or repair what the encoder gives")
    return values
