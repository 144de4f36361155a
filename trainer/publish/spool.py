"""Spool file with the rows of a version: a copy, chunk by chunk, of tables that are larger than memory.

A version is copied at a step boundary and pushed while training goes on. Where rows are kept on an SSD
because memory is short (trainer.tables.tiers), the copy goes there too: memory holds one chunk of it at a
time.
"""

from __future__ import annotations

import tempfile
from collections.abc import Iterator
from pathlib import Path

import numpy as np
import numpy.typing as npt

from livectr.kernels.errors import UserError

I64 = npt.NDArray[np.int64]
F32 = npt.NDArray[np.float32]


class Spool:
    """Chunks of rows in an unnamed file, which is gone with the object.

    Args:
        folder: of the file.

    Attributes:
        rows: number of rows in the file.
        keys: (table, keys) of each chunk.

    Raises:
        UserError: the folder cannot be written.
    """

    def __init__(self, folder: Path) -> None:
        self.rows = 0
        self.keys: list[tuple[str, I64]] = []
        self._folder = folder
        self._chunks: list[tuple[str, int, int]] = []
        try:
            self._file = tempfile.TemporaryFile(dir=folder, prefix="livectr-version-")  # noqa: SIM115
        except OSError as error:
            raise self._trouble(error) from None

    def add(self, table: str, keys: I64, rows: F32) -> None:
        """Append keys int64[n] and rows f32[n, D] of a table."""
        try:
            for part in (keys, rows):
                self._file.write(np.ascontiguousarray(part).data)
        except OSError as error:
            raise self._trouble(error) from None
        self._chunks.append((table, len(keys), rows.shape[1]))
        self.keys.append((table, keys))
        self.rows += len(keys)

    def __iter__(self) -> Iterator[tuple[str, I64, F32]]:
        """Iterate over (table, keys, rows) in the order of `add`; one reader, and no `add` meanwhile."""
        self._file.seek(0)
        for table, count, dim in self._chunks:
            keys = np.frombuffer(self._file.read(8 * count), np.int64)
            rows = np.frombuffer(self._file.read(4 * count * dim), np.float32).reshape(count, dim)
            yield table, keys, rows

    def _trouble(self, error: OSError) -> UserError:
        return UserError(
            f"spill: rows of a version cannot be kept in {self._folder} ({error.strerror}); see to the disk, "
            "then start again"
        )
