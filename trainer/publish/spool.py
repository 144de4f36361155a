"""Copies of a version's rows that are taken and written chunk by chunk.

A version is copied at a step boundary and pushed while training continues. Where rows are kept on an SSD
because memory is short (trainer.tables.tiers), the copy goes there too (`Spool`): memory holds one chunk of
it at a time. Where rows are in memory, a complete version is copied at many boundaries before its own
(`CopyAhead`): a table of millions of rows would hold training up.
"""

from __future__ import annotations

import tempfile
import time
from collections import deque
from collections.abc import Iterator, Mapping
from pathlib import Path

import numpy as np
import numpy.typing as npt

from livectr.kernels.table.table import CHUNK, DynamicTable
from livectr.system.errors import UserError
from livectr.trainer.finite import broken_rows

I64 = npt.NDArray[np.int64]
F32 = npt.NDArray[np.float32]

AHEAD_S = 0.01
"""Seconds of a boundary in which rows are copied ahead, but for the last chunk."""


class Spool:
    """Chunks of rows in an unnamed file, which is gone with the object.

    Args:
        folder: of the file.

    Attributes:
        rows: number of rows in the file.
        keys: (table, keys) of each chunk.
        broken: words on rows with numbers that are not finite; "": there are none.

    Raises:
        UserError: the folder cannot be written.
    """

    def __init__(self, folder: Path) -> None:
        self.rows = 0
        self.keys: list[tuple[str, I64]] = []
        self.broken = ""
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
        self.broken = self.broken or broken_rows(table, keys, rows)

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


class CopyAhead:
    """Copy in memory of all rows of a rank's tables, taken in chunks while they are trained.

    A chunk may be copied at any boundary: what changes after `marks` is copied again at the boundary of the
    version, and written after the chunks. Rows that were erased since are left out.

    Args:
        tables: name → table, whose rows keep their numbers (`DynamicTable.sweeps`).
        marks: table → mark of the first boundary.
        columns: of a row that are published.
        champion: role of the ranking model whose values these are.

    Attributes:
        rows: number of rows that were copied.
        keys: none: nobody asks what changed in a complete version.
        broken: words on rows with numbers that are not finite; "": there are none.
    """

    def __init__(
        self,
        tables: Mapping[str, DynamicTable],
        marks: Mapping[str, int],
        columns: slice | I64,
        champion: str,
    ) -> None:
        self.marks, self.champion = dict(marks), champion
        self.rows = 0
        self.keys: tuple[tuple[str, I64], ...] = ()
        self.broken = ""
        self._columns = columns
        self._left = deque(
            (name, table, begin, min(begin + CHUNK, table.end))
            for name, table in tables.items()
            for begin in range(0, table.end, CHUNK)
        )
        self._chunks: deque[tuple[str, I64, F32]] = deque()
        self._erased: dict[str, I64] = {}

    @property
    def done(self) -> bool:
        """Tell if little is left, which the boundary of the version may copy."""
        return sum(end - begin for _, _, begin, end in self._left) <= CHUNK

    def advance(self) -> None:
        """Copy chunks at a boundary, for about AHEAD_S."""
        deadline = time.monotonic() + AHEAD_S
        while not self.done:
            self._copy()
            if time.monotonic() >= deadline:
                return

    def finish(self, tables: Mapping[str, DynamicTable]) -> None:
        """Copy what is left, at the boundary of the version."""
        while self._left:
            self._copy()
        self._erased = {name: table.erased(self.marks[name]) for name, table in tables.items()}

    def __iter__(self) -> Iterator[tuple[str, I64, F32]]:
        """Iterate once over (table, keys, rows), which are given away."""
        while self._chunks:
            name, keys, rows = self._chunks.popleft()
            erased = self._erased[name]
            if len(erased):
                at = np.minimum(np.searchsorted(erased, keys), len(erased) - 1)
                kept = erased[at] != keys
                keys, rows = keys[kept], rows[kept]
            yield name, keys, rows

    def _copy(self) -> None:
        name, table, begin, end = self._left.popleft()
        keys, rows = table.read(table.in_use(begin, end), state=False)
        published = rows[:, self._columns]
        self._chunks.append((name, keys, published))
        self.rows += len(keys)
        self.broken = self.broken or broken_rows(name, keys, published)
