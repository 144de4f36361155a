"""State of the source that is saved as changes: keys that joins remember, behavior histories, rows of tables.

Keys come and leave in order. A checkpoint writes those that came or changed, and names the parts before as
far as they hold keys that are still remembered. A part is written together with parts before it that are no
larger, up to PART_ROWS: so a key is written O(log n) times, there are few files, and none takes long.

Histories change in any order. A checkpoint writes the users that clicked or left since the one before, behind
a base of all users, which is written again when the changes are twice as many.

Rows of look-up tables with a time come in any order, too. A checkpoint writes those that came since the one
before, together with parts before them that are no larger: the first of them is the base, which is written
again when as many rows have come. So a row is written O(log n) times, and there are few files.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping
from dataclasses import dataclass
from typing import Any

import numpy.typing as npt

from livectr.kernels.stream.known import Places
from livectr.trainer.checkpoint.content import SourceChanges
from livectr.trainer.checkpoint.writer import File

PART_ROWS = 1 << 18
"""Most keys of a part that is written again; 10 MiB."""

Tensors = Mapping[str, npt.NDArray[Any]]
Write = Callable[[Tensors, int], File]
"""Writes tensors and their number of rows to a file of the generation."""


@dataclass(frozen=True)
class _Part:
    """File of the keys that came or changed between two moments: partition → places."""

    file: File
    begin: Mapping[int, Places]
    end: Mapping[int, Places]


class KnownLog:
    """Files of the keys that the joins of a rank remember."""

    def __init__(self) -> None:
        self._parts: list[_Part] = []

    def write(self, changes: SourceChanges, write: Write) -> list[File]:
        """Write what is new; return all files, in order."""
        now = changes.places
        while self._parts and all(self._parts[0].end[p].end <= at.first for p, at in now.items()):
            self._parts.pop(0)
        begin = self._parts[-1].end if self._parts else {}
        while self._parts:
            rows, last = _rows(begin, now), self._parts[-1].file.rows
            if last > rows or last + rows > PART_ROWS:
                break
            begin = self._parts.pop().begin
        tensors = changes.known(begin)
        if tensors:
            self._parts.append(_Part(write(tensors, _count(tensors, "key")), begin, now))
        return [part.file for part in self._parts]


class HistoryChain:
    """Files of the histories of a rank's users: a base and its changes."""

    def __init__(self) -> None:
        self._files: list[File] = []
        self._mark = 0

    def write(self, changes: SourceChanges, mark: int, write: Write) -> list[File]:
        """Write what changed; return all files, in order.

        Args:
            changes: of the source, at this moment.
            mark: generation that was closed with this moment.
            write: writes tensors and their number of users to a file.
        """
        fresh = not self._files or sum(f.rows for f in self._files) > 3 * self._files[0].rows
        tensors = changes.histories(0 if fresh else self._mark)
        self._mark = mark
        files = [write(tensors, _count(tensors, "users"))] if tensors else []
        self._files = files if fresh else [*self._files, *files]
        return self._files

    def begin_again(self) -> None:
        """Let the next file hold all histories, since changes are no longer known."""
        self._files = []


@dataclass(frozen=True)
class _Rows:
    """File of the rows that came since some places: topic → place; a topic without one: all rows."""

    file: File
    begin: Mapping[str, int]


class TimedRowLog:
    """Files of the rows of look-up tables that a rank saves."""

    def __init__(self) -> None:
        self._parts: list[_Rows] = []
        self._end: Mapping[str, int] = {}

    def write(self, changes: SourceChanges, write: Write) -> list[File]:
        """Write what is new; return all files, in order."""
        places = changes.row_places
        if any(self._end.get(topic, 0) < first for topic, (first, _) in places.items()):
            self._parts = []  # which keys have left since is not known any more
        begin = self._end
        while self._parts and self._parts[-1].file.rows <= changes.count_rows(begin):
            begin = self._parts.pop().begin
            if any(begin.get(topic, 0) < first for topic, (first, _) in places.items()):
                self._parts = []
        self._end = {topic: end for topic, (_, end) in places.items()}
        begin = begin if self._parts else {}
        tensors, rows = changes.rows(begin)
        if tensors:
            self._parts.append(_Rows(write(tensors, rows), begin))
        return [part.file for part in self._parts]


def _count(tensors: Tensors, column: str) -> int:
    return sum(len(values) for name, values in tensors.items() if name.endswith(f"/{column}"))


def _rows(begin: Mapping[int, Places], end: Mapping[int, Places]) -> int:
    """Keys that came between two moments and are still remembered."""
    return sum(at.end - max(begin.get(p, Places()).end, at.first) for p, at in end.items())
