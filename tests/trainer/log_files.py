"""Files of a log of changes, in memory."""

from __future__ import annotations

from collections.abc import Mapping
from concurrent.futures import Future
from typing import Any

import numpy.typing as npt

from livectr.trainer.checkpoint.manifest import FileEntry
from livectr.trainer.checkpoint.writer import File


class Files:
    """Files of a log, in memory."""

    def __init__(self) -> None:
        self.held: dict[str, Mapping[str, npt.NDArray[Any]]] = {}

    def write(self, tensors: Mapping[str, npt.NDArray[Any]], rows: int) -> File:
        name = str(len(self.held))
        self.held[name] = {column: values.copy() for column, values in tensors.items()}
        written: Future[FileEntry] = Future()
        written.set_result(FileEntry(name, "known", 0, "", rows))
        return File(rows, written)

    def read(self, file: File) -> Mapping[str, npt.NDArray[Any]]:
        return self.held[file.entry.path]
