"""Files of a rank's embedding tables, written as changes; old files are replaced bit by bit.

A checkpoint writes the rows that changed, and the keys that were erased since the one before. It also
sweeps on through each table and writes as many rows again, but at least a SWEEP-th of the table. Once a
sweep has gone around, the files before it hold nothing that later files lack, and are not named any more.
So no checkpoint writes a whole table but the first of a run, and a restore reads a table at most three
times.

Rows of tables with a part on SSD have no lasting numbers: they cannot be swept. Where a rank has such tables,
all rows are written anew once the files hold more than twice as many.
"""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import numpy as np
import numpy.typing as npt

from livectr.trainer.checkpoint.content import CheckpointState, Table
from livectr.trainer.checkpoint.writer import File, Writer

PART_BYTES = 32 << 20
"""Size of a file of tables; memory holds a few copies of a file while it is written."""
SWEEP = 64
"""Checkpoints in which a sweep goes around a table that hardly changes."""

Place = tuple[int, int]
"""Place of a sweep: how often it has gone around, and a row number."""
Chunk = tuple[npt.NDArray[np.int64], npt.NDArray[np.float32]]


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
        self.around = True

    def go_on(self, marks: Mapping[str, int]) -> None:
        """Let the next files hold what changes after `marks`: the files of another process hold the rest."""
        self._places = dict.fromkeys(marks, (0, 0))
        self._marks = dict(marks)
        self._steps = [_Step([], dict(self._places))]
        self.around = False

    def write(self, folder: Path, content: CheckpointState, *, keep: bool = False) -> list[File]:
        """Copy the rows that changed, or all, and have them written; return all files, in order.

        Args:
            keep: name the files of all steps, as long as files of another process are named before them.
        """
        sweeps = all(table.sweeps for table in content.tables.values())
        if self._steps and not sweeps and sum(s.rows for s in self._steps) > 2 * self._steps[0].rows:
            self._steps = []
        if not self._steps:
            self._places = dict.fromkeys(content.tables, (0, 0))
            self._marks = {}
        files = list(self._files(folder, content, sweeps=sweeps))
        self._marks = dict(content.marks)
        self._steps.append(_Step(files, dict(self._places)))
        self.around = self.around or self._replaced(self._steps[0])
        while len(self._steps) > 1 and not keep and self._replaced(self._steps[0]):
            self._steps.pop(0)
        return [file for step in self._steps for file in step.files]

    def begin_anew(self) -> None:
        """Let the next files hold all rows, since changes are no longer known."""
        self._steps = []
        self.around = True

    def _replaced(self, step: _Step) -> bool:
        """Tell if every sweep has gone around since a step."""
        return all(self._places[name] >= (around + 1, row) for name, (around, row) in step.places.items())

    def _files(self, folder: Path, content: CheckpointState, *, sweeps: bool) -> Iterator[File]:
        """Write rows in files of about PART_BYTES; at least one.

        Keys that were erased are in the first file that names their table.
        """
        number = size = 0
        held: dict[str, list[npt.NDArray[Any]]] = {}

        def hold(name: str, **columns: npt.NDArray[Any]) -> int:
            for column, values in columns.items():
                held.setdefault(f"{name}/{column}", []).append(values)
            return sum(values.nbytes for values in columns.values())

        def part() -> File:
            counted = [parts for name, parts in held.items() if name.endswith(("/keys", "/erased"))]
            rows = sum(len(values) for parts in counted for values in parts)
            return self._writer.tensors(folder / f"tables-{number}.safetensors", "tables", held, rows)

        for name, table in content.tables.items():
            mark = self._marks.get(name, 0)
            if mark and len(erased := table.erased(mark)):
                size += hold(name, erased=erased)
            for keys, rows in self._chunks(name, table, mark, sweeps=sweeps):
                size += hold(name, keys=keys, rows=rows)
                if name in content.tracked:
                    stamps, counts = table.usage(keys)
                    size += hold(name, stamps=stamps, counts=counts)
                if size >= PART_BYTES:
                    yield part()
                    number, size, held = number + 1, 0, {}
        if held or not number:
            yield part()

    def _chunks(self, name: str, table: Table, mark: int, *, sweeps: bool) -> Iterator[Chunk]:
        """Rows that changed after a mark (0: all rows), then those that the sweep comes to."""
        changed = 0
        for keys, rows in table.chunks(mark):
            changed += len(keys)
            yield keys, rows
        if not mark or not sweeps:
            return
        around, begin = self._places[name]
        end = begin + max(changed, -(-table.end // SWEEP))
        swept = table.in_use(begin, end)
        yield from table.read_chunks(swept[table.generations(swept) <= mark])
        self._places[name] = (around, end) if end < table.end else (around + 1, 0)
