"""Store of the SSD tier: rows of tables by key, in a log of one rank (`kernels.tiers.row_log`).

It is a spill, not a database: its rows can always be restored from the checkpoint. So it starts empty, writes
without sync, and is removed when it is closed. A lock file beside it keeps a second trainer out.

A log is chosen because rows are evicted in random order of their keys. It appends them; a B+ tree (LMDB)
rewrites a page of 4 KiB and its parents for each row: measured, 27 KB for a row of 140 bytes. An LSM tree
(RocksDB) appends, too, but sorts all rows several times, and its Python package takes lists of bytes. A call
of the log takes arrays and releases the GIL, so that it runs beside a training step.

Memory: a segment of 4 MiB, and 15 to 19 bytes a row in the store.
"""

from __future__ import annotations

import fcntl
import os
import shutil
from collections.abc import Iterator
from pathlib import Path

import numpy as np
import numpy.typing as npt

from livectr.kernels.tiers.row_log import RowLog
from livectr.system.errors import ConfigError, UserError

I64 = npt.NDArray[np.int64]
U32 = npt.NDArray[np.uint32]
Bytes = npt.NDArray[np.uint8]
Mask = npt.NDArray[np.bool_]


class SpillStore:
    """Rows by (table number, key), all of one width. Thread-safe; reads see all earlier writes.

    `tables` of a call is a number, or uint32[n]: a number for each key.

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
            raise _unusable(folder, error) from None
        try:
            fcntl.flock(self._lock, fcntl.LOCK_EX | fcntl.LOCK_NB)
        except BlockingIOError:
            self._lock.close()
            raise ConfigError(
                f"spill: another trainer keeps its rows in {folder}; stop it or name another folder"
            ) from None
        shutil.rmtree(self.path, ignore_errors=True)
        try:
            self.path.mkdir()
            self._file = os.open(self.path / "rows", os.O_RDWR | os.O_CREAT | os.O_EXCL | os.O_CLOEXEC, 0o600)
        except OSError as error:
            self._lock.close()
            raise _unusable(folder, error) from None
        self._log: RowLog | None = None  # the first rows tell their width

    def put(self, tables: int | U32, keys: I64, rows: Bytes) -> None:
        """Store rows uint8[n, width]; a key's later row replaces its earlier row."""
        try:
            if self._log is None:
                self._log = RowLog(self._file, rows.shape[1])
            self._log.put(_each(tables, keys), keys, rows)
        except OSError as error:
            raise self._failed("written", error) from None

    def get(self, tables: int | U32, keys: I64, width: int) -> tuple[Mask, Bytes]:
        """Read rows: bool[n], the keys that are stored, and uint8[m, width], their rows in order."""
        if self._log is None:
            return np.zeros(len(keys), np.bool_), np.empty((0, width), np.uint8)
        try:
            return self._log.get(_each(tables, keys), keys)
        except OSError as error:
            raise self._failed("read", error) from None

    def erase(self, table: int, keys: I64) -> None:
        """Erase keys; missing keys are ignored."""
        if self._log is not None:
            self._log.erase(_each(table, keys), keys)

    def clear(self, table: int) -> None:
        """Erase all keys of a table."""
        if self._log is not None:
            self._log.clear(table)

    def scan(self, table: int, rows: int) -> Iterator[tuple[I64, Bytes]]:
        """Read all rows of a table as (int64[m], uint8[m, width]), m ≤ `rows`.

        The table must not change meanwhile.
        """
        return iter(()) if self._log is None else self._log.scan(table, rows)

    def close(self) -> None:
        """Close and remove the store."""
        if self._log is not None:
            self._log.close()
            self._log = None
        os.close(self._file)
        shutil.rmtree(self.path, ignore_errors=True)
        self._lock.close()

    def _failed(self, what: str, error: OSError) -> UserError:
        return UserError(
            f"spill: rows in {self.path.parent} cannot be {what} ({error.strerror}); see to the disk, then "
            "start again from the checkpoint"
        )


def _unusable(folder: Path, error: OSError) -> ConfigError:
    return ConfigError(f"spill: rows cannot be kept in {folder} ({error.strerror}); name another folder")


def _each(tables: int | U32, keys: I64) -> U32:
    return np.full(len(keys), tables, np.uint32) if isinstance(tables, int) else tables
