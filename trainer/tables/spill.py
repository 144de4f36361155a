"""Store of the SSD tier: rows of tables by key, in a RocksDB of one rank.

It is a spill, not a database: its rows can always be restored from the checkpoint. So it starts empty, writes
without log and sync, and is removed when it is closed. A lock file beside it keeps a second trainer out.

RocksDB (rocksdict) is chosen because rows are evicted in random order of their keys. An LSM tree appends
them; a B+ tree (LMDB) rewrites a page of 4 KiB and its parents for each row: measured, 27 KB for a row of
140 bytes. A batch of reads releases the GIL once, not once a key, so that it runs beside a training step.

Memory: CACHE_BYTES, up to three WRITE_BUFFER_BYTES, and filters of 10 bits a key in the store.
"""

from __future__ import annotations

import fcntl
import shutil
from collections.abc import Iterator
from itertools import islice
from pathlib import Path

import numpy as np
import numpy.typing as npt
import rocksdict

from livectr.kernels.errors import ConfigError, UserError

I64 = npt.NDArray[np.int64]
Bytes = npt.NDArray[np.uint8]
Mask = npt.NDArray[np.bool_]

CACHE_BYTES = 32 << 20
WRITE_BUFFER_BYTES = 32 << 20
WRITE_ROWS = 65_536
"""Rows of a write batch, which RocksDB writes atomically."""

_KEY = np.dtype([("table", ">u2"), ("key", ">u8")])  # big-endian: RocksDB's order is by table, then by key


class SpillStore:
    """Rows by (table number, key), of one width in a table. Thread-safe; reads see all earlier writes.

    Args:
        folder: on an SSD.
        rank: of this store.

    Raises:
        ConfigError: the folder cannot be used.
        UserError: reading or writing fails later.
    """

    def __init__(self, folder: Path, rank: int) -> None:
        self.path = folder / f"livectr-spill-{rank}"
        try:
            folder.mkdir(parents=True, exist_ok=True)
            self._lock = (folder / f"livectr-spill-{rank}.lock").open("ab")
        except OSError as error:
            raise ConfigError(
                f"spill: rows cannot be kept in {folder} ({error.strerror}); name another folder"
            ) from None
        try:
            fcntl.flock(self._lock, fcntl.LOCK_EX | fcntl.LOCK_NB)
        except BlockingIOError:
            self._lock.close()
            raise ConfigError(
                f"spill: another trainer keeps its rows in {folder}; stop it or name another folder"
            ) from None
        shutil.rmtree(self.path, ignore_errors=True)
        try:
            self._db = rocksdict.Rdict(str(self.path), _options())
        except Exception as error:  # rocksdict raises no narrower exception
            self._lock.close()
            raise ConfigError(f"spill: RocksDB cannot start in {folder} ({error})") from None
        self._write = rocksdict.WriteOptions()
        self._write.disable_wal = True  # type: ignore[method-assign,assignment]  # the stub is wrong

    def put(self, table: int, keys: I64, rows: Bytes) -> None:
        """Store rows uint8[n, width]; a key's later row replaces its earlier row."""
        order = np.argsort(keys.view(np.uint64), kind="stable")
        names, values = _names(table, keys[order]), rows[order].view(f"V{rows.shape[1]}").ravel().tolist()
        for start in range(0, len(names), WRITE_ROWS):
            batch = rocksdict.WriteBatch(raw_mode=True)
            for name, value in zip(
                names[start : start + WRITE_ROWS], values[start : start + WRITE_ROWS], strict=True
            ):
                batch.put(name, value)
            self._commit(batch)

    def get(self, table: int, keys: I64, width: int) -> tuple[Mask, Bytes]:
        """Read rows: bool[n], the keys that are stored, and uint8[m, width], their rows in order."""
        if not len(keys):
            return np.empty(0, np.bool_), np.empty((0, width), np.uint8)
        order = np.argsort(keys.view(np.uint64), kind="stable")
        try:
            values: list[bytes | None] = self._db.get(_names(table, keys[order]))  # type: ignore[arg-type,assignment]
        except Exception as error:
            raise self._failed("read", error) from None
        place = np.empty(len(keys), np.int64)
        place[order] = np.arange(len(keys))
        values = [values[i] for i in place.tolist()]
        on_ssd = np.fromiter((value is not None for value in values), np.bool_, len(values))
        rows = np.frombuffer(b"".join(value for value in values if value is not None), np.uint8)
        return on_ssd, rows.reshape(-1, width)

    def erase(self, table: int, keys: I64) -> None:
        """Erase keys; missing keys are ignored."""
        batch = rocksdict.WriteBatch(raw_mode=True)
        for name in _names(table, keys):
            batch.delete(name)
        self._commit(batch)

    def clear(self, table: int) -> None:
        """Erase all keys of a table."""
        batch = rocksdict.WriteBatch(raw_mode=True)
        batch.delete_range(_prefix(table), _prefix(table + 1))
        self._commit(batch)

    def scan(self, table: int, width: int, rows: int) -> Iterator[tuple[I64, Bytes]]:
        """Read all rows of a table as (int64[m], uint8[m, width]), m ≤ `rows`, in order of unsigned keys."""
        bounds = rocksdict.ReadOptions()
        bounds.set_iterate_upper_bound(_prefix(table + 1))
        try:
            items = self._db.items(from_key=_prefix(table), read_opt=bounds)
            while part := list(islice(items, rows)):
                names = np.frombuffer(b"".join(name for name, _ in part), _KEY)  # type: ignore[misc]
                values = np.frombuffer(b"".join(value for _, value in part), np.uint8)
                yield names["key"].astype(np.uint64).view(np.int64), values.reshape(-1, width)
        except Exception as error:
            raise self._failed("read", error) from None

    def close(self) -> None:
        """Close and remove the store."""
        self._db.close()
        shutil.rmtree(self.path, ignore_errors=True)
        self._lock.close()

    def _commit(self, batch: rocksdict.WriteBatch) -> None:
        try:
            self._db.write(batch, self._write)
        except Exception as error:
            raise self._failed("written", error) from None

    def _failed(self, what: str, error: Exception) -> UserError:
        return UserError(
            f"spill: rows in {self.path.parent} cannot be {what} ({error}); see to the disk, then start "
            "again from the checkpoint"
        )


def _prefix(table: int) -> bytes:
    return table.to_bytes(2, "big")


def _names(table: int, keys: I64) -> list[bytes]:
    names = np.empty(len(keys), _KEY)
    names["table"], names["key"] = table, keys.view(np.uint64)
    listed: list[bytes] = names.view(f"V{_KEY.itemsize}").tolist()
    return listed


def _options() -> rocksdict.Options:
    options = rocksdict.Options(raw_mode=True)
    options.create_if_missing(True)
    options.set_compression_type(rocksdict.DBCompressionType.none())  # floats hardly compress
    options.set_write_buffer_size(WRITE_BUFFER_BYTES)
    options.set_max_background_jobs(2)
    options.set_allow_mmap_reads(True)
    options.set_keep_log_file_num(1)
    blocks = rocksdict.BlockBasedOptions()
    blocks.set_block_cache(rocksdict.Cache(CACHE_BYTES))
    blocks.set_bloom_filter(10, False)  # skips the disk for new keys
    blocks.set_checksum_type(rocksdict.ChecksumType.xxh3())
    options.set_block_based_table_factory(blocks)
    return options
