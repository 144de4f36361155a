"""Log of the keys that joins remember, in files that each hold what came or changed after another moment.

A checkpoint writes the newest part. It names the parts before it as far as they hold keys that are still
remembered. A part is written together with parts before it that are no larger, up to PART_ROWS: so a key is
written O(log n) times, there are few files, and none takes long.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping
from dataclasses import dataclass
from typing import Any

import numpy.typing as npt

from livectr.kernels.stream.known import Places
from livectr.trainer.checkpoint.content import KnownRows
from livectr.trainer.checkpoint.manifest import FileEntry

PART_ROWS = 1 << 18
"""Most rows of a part that is written again; 10 MiB."""

Write = Callable[[Mapping[str, npt.NDArray[Any]], int], FileEntry]


@dataclass(frozen=True)
class _Part:
    """File of the keys that came or changed between two moments: partition → places."""

    file: FileEntry
    begin: Mapping[int, Places]
    end: Mapping[int, Places]


class KnownLog:
    """Parts of one rank's log."""

    def __init__(self) -> None:
        self._parts: list[_Part] = []

    def write(self, known: KnownRows, write: Write) -> list[FileEntry]:
        """Write what is new; return the files of the whole log, in order.

        Args:
            known: the joins' keys.
            write: writes tensors and their number of rows to a file of the generation.
        """
        now = known.places
        while self._parts and all(self._parts[0].end[p].end <= at.first for p, at in now.items()):
            self._parts.pop(0)
        begin = self._parts[-1].end if self._parts else {}
        while self._parts:
            rows, last = _rows(begin, now), self._parts[-1].file.rows
            if last > rows or last + rows > PART_ROWS:
                break
            begin = self._parts.pop().begin
        tensors = known.since(begin)
        if tensors:
            rows = sum(len(values) for name, values in tensors.items() if name.endswith("/key"))
            self._parts.append(_Part(write(tensors, rows), begin, now))
        return [part.file for part in self._parts]


def _rows(begin: Mapping[int, Places], end: Mapping[int, Places]) -> int:
    """Keys that came between two moments and are still remembered."""
    return sum(at.end - max(begin.get(p, Places()).end, at.first) for p, at in end.items())
