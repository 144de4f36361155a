"""Files of a rank's embedding tables, written as changes; old files are replaced bit by bit.

A checkpoint writes the rows that changed, and the keys that were erased since the one before. It also
sweeps on through each table and writes as many rows again, but at least a SWEEP-th of the table. Once a
sweep has gone around, the files before it hold nothing that later files lack, and are not named any more.
So no checkpoint writes a whole table but the first of a run, and a restore reads a table at most three
times.

Rows are copied at a step boundary, which holds training up. So where there are many, chunks of them are
copied at boundaries before (`ahead`, `advance`), and the boundary of the checkpoint copies what has changed
since: files are read in order, so that the last row of a key counts.

Rows of tables with a part on SSD have no lasting numbers: they cannot be swept. Where a rank has such tables,
all rows are written again once the files hold more than twice as many.
"""

from __future__ import annotations

import time
from collections import deque
from collections.abc import Collection, Iterable, Iterator, Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import numpy as np
import numpy.typing as npt

from livectr.kernels.table.table import CHUNK
from livectr.trainer.checkpoint.content import CheckpointState, Table
from livectr.trainer.checkpoint.writer import File, Writer

PART_BYTES = 32 << 20
"""Size of a file of tables; memory holds a few copies of a file while it is written."""
SWEEP = 64
"""Checkpoints in which a sweep goes around a table that hardly changes."""
AHEAD_ROWS = 1 << 17
"""Rows that a boundary may copy at once, about; more are copied ahead."""
AHEAD_S = 0.01
"""Seconds of a boundary in which rows are copied ahead, but for the last chunk."""

Place = tuple[int, int]
"""Place of a sweep: how often it has gone around, and a row number."""
Chunk = tuple[npt.NDArray[np.int64], npt.NDArray[np.float32]]
Rows = npt.NDArray[np.uint32]


@dataclass(frozen=True)
class _Step:
    """Files of one checkpoint, and the places of its tables' sweeps after it."""

    files: list[File]
    places: Mapping[str, Place]

    @property
    def rows(self) -> int:
        return sum(file.rows for file in self.files)


class TableChain:
    """Files of the tables of a rank.

    Args:
        writer: writes them.

    Attributes:
        around: these files hold all rows, without those of another process.
    """

    def __init__(self, writer: Writer) -> None:
        self._writer = writer
        self._steps: list[_Step] = []
        self._places: dict[str, Place] = {}
        self._marks: Mapping[str, int] = {}
        self._tables: Mapping[str, Table] = {}
        self._ahead: _Ahead | None = None
        self.around = True

    def resume(self, tables: Mapping[str, Table], marks: Mapping[str, int]) -> None:
        """Let the next files hold what changes after `marks`: the files of another process hold the rest."""
        self._tables = tables
        self._places = dict.fromkeys(marks, (0, 0))
        self._marks = dict(marks)
        self._steps = [_Step([], dict(self._places))]
        self.around = False

    def write(self, folder: Path, content: CheckpointState, *, keep: bool = False) -> list[File]:
        """Copy the rows that changed, or all, and have them written; return all files, in order.

        Args:
            folder: of the generation.
            content: of this rank.
            keep: name the files of all steps, as long as files of another process are named before them.
        """
        sweeps = all(table.sweeps for table in content.tables.values())
        if self._steps and not sweeps and sum(s.rows for s in self._steps) > 2 * self._steps[0].rows:
            self._steps = []
        if not self._steps:
            self._places = dict.fromkeys(content.tables, (0, 0))
            self._marks = {}
        self._tables = content.tables
        files = self._files(folder, content, sweeps=sweeps)
        self._marks = dict(content.marks)
        self._steps.append(_Step(files, dict(self._places)))
        self.around = self.around or self._replaced(self._steps[0])
        while len(self._steps) > 1 and not keep and self._replaced(self._steps[0]):
            self._steps.pop(0)
        return [file for step in self._steps for file in step.files]

    @property
    def large(self) -> bool:
        """Tell if the next files hold changes of so many rows that they are better copied ahead."""
        tables = self._tables.values()
        return (
            bool(self._steps)
            and all(table.sweeps for table in tables)
            and sum(table.listed + -(-table.end // SWEEP) for table in tables) > AHEAD_ROWS
        )

    def ahead(self, folder: Path, marks: Mapping[str, int]) -> None:
        """Begin to copy the next files ahead.

        Args:
            folder: of the files.
            marks: name → mark of this boundary.
        """
        folder.mkdir(parents=True, exist_ok=True)
        tracked = frozenset(name for name, table in self._tables.items() if table.tracks)
        rows: list[tuple[str, Table, Rows]] = []
        for name, table in self._tables.items():
            changed = table.changed(self._marks[name])
            rows += [(name, table, changed), (name, table, self._swept(name, table, len(changed)))]
        self._ahead = _Ahead(_Parts(self._writer, folder, tracked), dict(marks), rows)

    @property
    def copied(self) -> bool:
        """Tell if nothing is left to be copied ahead."""
        return self._ahead is None or self._ahead.done

    @property
    def copying(self) -> bool:
        """Tell if the next files are copied ahead."""
        return self._ahead is not None

    def advance(self) -> None:
        """Copy rows ahead at a boundary, for about AHEAD_S; none while many wait for the disk."""
        deadline = time.monotonic() + AHEAD_S
        while self._ahead is not None and not self._ahead.done and self._writer.has_room:
            self._ahead.copy()
            if time.monotonic() >= deadline:
                return

    def begin_again(self) -> None:
        """Let the next files hold all rows, since changes are no longer known."""
        self._steps, self._ahead = [], None
        self.around = True

    def _replaced(self, step: _Step) -> bool:
        """Tell if every sweep has gone around since a step."""
        return all(self._places[name] >= (around + 1, row) for name, (around, row) in step.places.items())

    def _files(self, folder: Path, content: CheckpointState, *, sweeps: bool) -> list[File]:
        """Write rows; what was erased comes behind what was copied ahead."""
        ahead, self._ahead = self._ahead, None
        if ahead is None:
            parts = _Parts(self._writer, folder, content.tracked)
            for name, table in content.tables.items():
                mark = self._marks.get(name, 0)
                if mark:
                    parts.erased(name, table.erased(mark))
                for chunk in self._chunks(name, table, mark, sweeps=sweeps):
                    parts.add(name, table, chunk)
            return parts.end()
        while not ahead.done:
            ahead.copy()
        parts = ahead.parts
        parts.close()
        for name, table in content.tables.items():
            parts.erased(name, table.erased(self._marks[name]))
            for chunk in table.chunks(ahead.marks[name]):
                parts.add(name, table, chunk)
        return parts.end()

    def _chunks(self, name: str, table: Table, mark: int, *, sweeps: bool) -> Iterator[Chunk]:
        """Rows that changed after a mark (0: all rows), then those that the sweep comes to."""
        changed = 0
        for keys, rows in table.chunks(mark):
            changed += len(keys)
            yield keys, rows
        if mark and sweeps:
            yield from table.read_chunks(self._swept(name, table, changed))

    def _swept(self, name: str, table: Table, changed: int) -> Rows:
        """Row numbers that the sweep comes to, but for those that changed."""
        around, begin = self._places[name]
        end = begin + max(changed, -(-table.end // SWEEP))
        swept = table.in_use(begin, end)
        self._places[name] = (around, end) if end < table.end else (around + 1, 0)
        return swept[table.generations(swept) <= self._marks[name]]


class _Parts:
    """Files of about PART_BYTES; at least one.

    Args:
        tracked: tables whose usage is saved.
    """

    def __init__(self, writer: Writer, folder: Path, tracked: Collection[str]) -> None:
        self._writer, self._folder, self._tracked = writer, folder, tracked
        self._held: dict[str, list[npt.NDArray[Any]]] = {}
        self._size = 0
        self._files: list[File] = []

    def erased(self, name: str, keys: npt.NDArray[np.int64]) -> None:
        """Add keys that were erased: before rows of that table in the same file, which is read like that."""
        if len(keys):
            self._hold(name, erased=keys)

    def add(self, name: str, table: Table, chunk: Chunk) -> None:
        """Add rows."""
        keys, rows = chunk
        self._hold(name, keys=keys, rows=rows)
        if name in self._tracked:
            stamps, counts = table.usage(keys)
            self._hold(name, stamps=stamps, counts=counts)
        if self._size >= PART_BYTES:
            self.close()

    def close(self) -> None:
        """Hand over the file that was begun, if one was."""
        if self._held:
            self._write()

    def end(self) -> list[File]:
        """Hand over the last file, and return all."""
        if self._held or not self._files:
            self._write()
        return self._files

    def _hold(self, name: str, **columns: npt.NDArray[Any]) -> None:
        for column, values in columns.items():
            self._held.setdefault(f"{name}/{column}", []).append(values)
            self._size += values.nbytes

    def _write(self) -> None:
        counted = [parts for name, parts in self._held.items() if name.endswith(("/keys", "/erased"))]
        rows = sum(len(values) for parts in counted for values in parts)
        path = self._folder / f"tables-{len(self._files)}.safetensors"
        self._files.append(self._writer.tensors(path, "tables", self._held, rows))
        self._held, self._size = {}, 0


class _Ahead:
    """Rows that are copied ahead of a checkpoint's boundary.

    Args:
        parts: takes them.
        marks: name → mark of the first boundary: what changes after it is copied again.
        rows: (name, table, row numbers) of that boundary. Rows that are erased later, or that other keys
            have, are among what was erased or has changed.
    """

    def __init__(
        self, parts: _Parts, marks: Mapping[str, int], rows: Iterable[tuple[str, Table, Rows]]
    ) -> None:
        self.parts, self.marks = parts, marks
        self._left = deque(
            (name, table, numbers[at : at + CHUNK])
            for name, table, numbers in rows
            for at in range(0, len(numbers), CHUNK)
        )

    @property
    def done(self) -> bool:
        return not self._left

    def copy(self) -> None:
        """Copy a chunk."""
        name, table, rows = self._left.popleft()
        keys, values = table.read(rows)
        there = table.find(keys) == rows
        self.parts.add(name, table, (keys[there], values[there]))
