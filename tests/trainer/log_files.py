"""Files of a log of changes, in memory."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

import numpy.typing as npt

from livectr.trainer.checkpoint.manifest import FileEntry


class Files:
    """Files of a log, in memory."""

    def __init__(self) -> None:
        self.held: dict[str, Mapping[str, npt.NDArray[Any]]] = {}

    def write(self, tensors: Mapping[str, npt.NDArray[Any]], rows: int) -> FileEntry:
        name = str(len(self.held))
        self.held[name] = {column: values.copy() for column, values in tensors.items()}
        return FileEntry(name, "known", 0, "", rows)
