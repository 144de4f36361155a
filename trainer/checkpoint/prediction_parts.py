"""Prediction log in an object store: a checkpoint stores what was appended since the one before.

A part is written together with parts before it that are no larger, up to PART_BYTES, so that a record is
uploaded O(log n) times and a manifest names few parts. They are read from the log, which only grows.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from concurrent.futures import Future
from pathlib import Path

from livectr.system.disk import writing
from livectr.trainer.checkpoint.manifest import FileEntry, Manifest
from livectr.trainer.checkpoint.stored import PREDICTIONS, Stored
from livectr.trainer.checkpoint.writer import File, Writer

PART_BYTES = 32 << 20


class PredictionParts:
    """Parts of a prediction log; rank 0's.

    Args:
        log: the file.
        writer: uploads ranges of it.
    """

    def __init__(self, log: Path, writer: Writer) -> None:
        self._log, self._writer = log, writer
        self._parts: list[tuple[int, File]] = []  # first byte after the part

    def resume(self, files: Sequence[FileEntry]) -> None:
        """Take the parts that a generation names for the beginning of the log."""
        end = 0
        for entry in files:
            if entry.kind == PREDICTIONS:
                end += entry.bytes
                settled: Future[FileEntry] = Future()
                settled.set_result(entry)
                self._parts.append((end, File(0, settled)))

    def write(self, folder: Path) -> list[File]:
        """Store what is new; return all parts, in order. The log is synced."""
        size = self._log.stat().st_size
        if self._parts and self._parts[-1][0] > size:
            self._parts = []  # the log was replaced
        begin = self._end
        while self._parts and size > begin:
            first = self._parts[-2][0] if len(self._parts) > 1 else 0
            if begin - first > size - begin or size - first > PART_BYTES:
                break
            self._parts.pop()
            begin = first
        for part, at in enumerate(range(begin, size, PART_BYTES)):
            end = min(at + PART_BYTES, size)
            path = folder / f"predictions-{part}.bin"
            self._parts.append((end, self._writer.range(path, PREDICTIONS, self._log, (at, end))))
        return [file for _, file in self._parts]

    @property
    def _end(self) -> int:
        return self._parts[-1][0] if self._parts else 0


def bring_back(stored: Stored, manifest: Manifest, wrong: Callable[[int, str], str]) -> None:
    """Put the prediction log together from its parts, unless the file holds what the generation counts.

    Args:
        stored: has the parts, and the path of the log.
        manifest: of the generation.
        wrong: check of the file by its number of records and their SHA-256; returns a complaint or "".

    Raises:
        CheckpointError: a part is not what was written.
        FileNotFoundError: a part is missing.
    """
    parts = [entry for entry in manifest.files if entry.kind == PREDICTIONS]
    log, size = stored.log, sum(entry.bytes for entry in parts)
    if log is None or not parts:
        return
    complete = log.exists() and log.stat().st_size >= size
    if complete and not wrong(manifest.predictions, manifest.predictions_sha256):
        return
    scratch = log.with_name(f".{log.name}.new")
    with writing("the prediction log", log):
        log.parent.mkdir(parents=True, exist_ok=True)
        with scratch.open("wb") as file:
            for entry in parts:
                file.write(stored.read(entry))
        scratch.replace(log)
