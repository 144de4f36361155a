"""Checkpoints: generations of files, each made real by the atomic rename of one manifest.

    DIR/LOCK                          held by the running trainer
    DIR/gen-00000007/MANIFEST.json    names every file of the generation with size and SHA-256
    DIR/gen-00000007/rank-0/
        tables-0.safetensors          rows changed and keys erased since the generation before, or all rows;
                                      in parts, as tables may be larger than memory (trainer.tables.tiers)
        policies.safetensors          state of table policies, if there are any
        dense.safetensors             dense weights and their Adam state
        source.safetensors            positions and joins: JSON and Arrow
        known.safetensors             keys that joins remember, as far as no earlier file has them
        histories.safetensors         histories that changed, or all
        statistics.safetensors        running statistics of features; rank 0 only
        items.safetensors             examples of each item (trainer.quality.seen); rank 0 only
        scores.safetensors            scores without final labels (trainer.quality.final_labels); rank 0 only
        contest.safetensors           champion and its window (trainer.quality.contest); rank 0 only
        gate.safetensors              window of the publish gate (trainer.quality.gate); rank 0 only

A generation exists once its manifest does. It may name files of earlier generations: a base of the tables and
the deltas after it, and changes of the source (trainer.checkpoint.changes). Two generations are kept. If
the newest is torn, restore reads the generation before. Older generations are kept for rollbacks, some time
apart (trainer.checkpoint.keeping).

`Checkpointer.commit` does these steps of trainer.commits:

    2  every rank writes and syncs its files;
    3  rank 0 gathers their names, sizes and digests;
    4  rank 0 renames the manifest into place: at this moment the generation begins to exist. Files that no
       kept generation names are removed afterwards.
"""

import fcntl
import hashlib
import json
import logging
import os
import shutil
import time
from collections.abc import Callable, Iterator, Mapping
from dataclasses import asdict
from functools import partial
from pathlib import Path
from typing import Any, BinaryIO

import numpy as np
import numpy.typing as npt
import safetensors.numpy
import safetensors.torch

from livectr.kernels.errors import DiskFullError, InUseError, UserError
from livectr.kernels.process.disk import writing
from livectr.trainer import telemetry
from livectr.trainer.checkpoint.changes import HistoryChain, KnownLog
from livectr.trainer.checkpoint.content import CheckpointState
from livectr.trainer.checkpoint.keeping import NOTHING_KEPT, KeepRule, readable
from livectr.trainer.checkpoint.manifest import (
    MANIFEST,
    FileEntry,
    Manifest,
    check_identity,
    folder_of,
    newest_whole,
    number,
)
from livectr.trainer.checkpoint.restored import Restored
from livectr.trainer.comm.control import Control
from livectr.trainer.counts import summed

LOG = logging.getLogger(__name__)
KEPT_GENERATIONS = 2
PART_BYTES = 128 << 20
"""Size of a part of the tables; memory holds a few copies of a part while it is written."""

I64 = npt.NDArray[np.int64]
F32 = npt.NDArray[np.float32]
U32 = npt.NDArray[np.uint32]


class Checkpointer:
    """Checkpoint directory of one rank; the constructor, `commit` and `restore` are collective.

    Args:
        root: the directory.
        identity: JSON-able description of the pipeline; a checkpoint of another identity is refused.
        predictions: check of the prediction log, which may lie elsewhere. It takes a number of records and
            their SHA-256, and returns a complaint or "". Rank 0 calls it.
        keep: generations that are kept for rollbacks, beside the newest two.

    Raises:
        InUseError: another trainer is running on this directory.
        UserError: it cannot be written.
    """

    def __init__(
        self,
        root: Path,
        control: Control,
        identity: Mapping[str, Any],
        *,
        predictions: Callable[[int, str], str] | None = None,
        keep: KeepRule = NOTHING_KEPT,
    ) -> None:
        self.root, self._keep = root, keep
        self._predictions = predictions
        self.control = control
        self.identity: dict[str, Any] = json.loads(json.dumps(identity))
        self._lock: BinaryIO | None = None
        self._kept: list[Manifest] = []
        self._older: list[Manifest] = []
        self._chain: list[FileEntry] = []
        self._known, self._histories = KnownLog(), HistoryChain()
        self._base_rows = 0
        self._marks: Mapping[str, int] = {}
        if control.rank == 0:
            try:
                root.mkdir(parents=True, exist_ok=True)
                self._lock = _lock(root)
            except OSError as error:
                raise UserError(
                    f"checkpoints cannot be kept in {root} ({error.strerror}); name another directory"
                ) from None
        telemetry.CHECKPOINT_TIMESTAMP.set_to_current_time()  # nothing older can be lost
        found = [number(path) for path in root.glob("gen-*")] if control.rank == 0 else []
        if control.rank == 0:
            _remove_unfinished(root)
        self._next = 1 + int(control.broadcast_json(max(found, default=0)))

    def commit(self, content: CheckpointState) -> Manifest:
        """Write the next generation (steps 2 to 4). Collective.

        Args:
            content: of this rank.

        Returns:
            The manifest, the same on every rank.

        Raises:
            DiskFullError: nothing is left of the generation.
        """
        generation, self._next = self._next, self._next + 1
        # 2 every rank writes and syncs its files
        try:
            with writing("the checkpoint", self.root):
                mine = self._write_rank(generation, content)
        except DiskFullError:
            # A part of a generation would take the space that the next start needs.
            shutil.rmtree(self._folder(generation), ignore_errors=True)
            raise
        # 3 rank 0 gathers their names, sizes and digests
        own = {
            "files": [asdict(f) for f in mine],
            "table_rows": {name: len(table) for name, table in content.tables.items()},
            "field_keys": dict(content.field_keys),
            "counts": dict(content.counts),
        }
        parts = self.control.gather_json(own)
        manifest = Manifest(
            generation=generation,
            world=self.control.world,
            step=content.step,
            examples=content.examples,
            predictions=content.predictions,
            identity=self.identity,
            cursor=content.cursor,
            files=tuple(FileEntry(**f) for part in parts for f in part["files"]),
            row=content.row,
            table_rows=summed([part["table_rows"] for part in parts]),
            field_keys=summed([part["field_keys"] for part in parts]),
            counts=summed([part["counts"] for part in parts]),
            predictions_sha256=content.predictions_sha256,
            began_ms=content.began_ms,
            seen=content.seen,
            quality=dict(content.quality),
            products=content.products,
            created_ms=time.time_ns() // 1_000_000,
        )
        # 4 rank 0 renames the manifest into place
        if self.control.rank == 0:
            directory = folder_of(self.root, generation)
            with writing("the checkpoint", self.root):
                _sync_directory(directory)
                _write(directory / (MANIFEST + ".new"), manifest.to_json())
                (directory / (MANIFEST + ".new")).replace(directory / MANIFEST)
                _sync_directory(directory)
                _sync_directory(self.root)
        self._marks = dict(content.marks)
        self._kept.append(manifest)
        if self.control.rank == 0:
            self._older = self._keep.kept([*self._older, *self._kept[:-KEPT_GENERATIONS]])
        self._kept = self._kept[-KEPT_GENERATIONS:]
        if self.control.rank == 0:
            self._collect()
        return manifest

    def restore(self) -> Restored | None:
        """Find the newest whole generation; None in an empty directory. Collective.

        Raises:
            CheckpointError: generations exist, but none is whole.
            MismatchError: the generation belongs to another pipeline.
        """
        manifest = newest_whole(
            self.root,
            self.control,
            "bring its files back, or name an empty --checkpoint directory to begin anew",
            predictions=self._predictions,
        )
        if manifest is None:
            return None
        check_identity(self.root, manifest.identity, self.identity)
        self._kept = [manifest]
        if self.control.rank == 0:
            self._older = [m for m in readable(self.root) if m.generation < manifest.generation]
        if manifest.created_ms:
            telemetry.CHECKPOINT_TIMESTAMP.set(manifest.created_ms / 1000)
        return Restored(self.root, manifest)

    def begin_anew(self) -> None:
        """Let the next generation hold all rows, since changes are no longer known."""
        self._chain = []
        self._histories.begin_anew()

    @property
    def oldest(self) -> int:
        """Examples of the oldest kept generation: a restart goes on from at least as many."""
        return self._kept[0].examples if self._kept else 0

    def close(self) -> None:
        if self._lock is not None:
            self._lock.close()
            self._lock = None

    def _folder(self, generation: int) -> Path:
        """Folder of this rank's files of a generation."""
        return folder_of(self.root, generation) / f"rank-{self.control.rank}"

    def _write_rank(self, generation: int, content: CheckpointState) -> list[FileEntry]:
        """Write this rank's files; returns them with the older files of its table chain."""
        folder = self._folder(generation)
        folder.mkdir(parents=True, exist_ok=True)
        fresh = not self._chain or sum(f.rows for f in self._chain) > 2 * self._base_rows
        parts = list(self._write_tables(folder, content, None if fresh else self._marks))
        if fresh:
            self._base_rows = sum(f.rows for f in parts)
        self._chain = parts if fresh else [*self._chain, *parts]
        dense = {name: tensor.contiguous() for name, tensor in content.dense.items()}
        source = {name: np.frombuffer(part, np.uint8) for name, part in content.source.items()}
        written = [
            self._entry(folder / "dense.safetensors", "dense", safetensors.torch.save(dense)),
            self._entry(folder / "source.safetensors", "source", safetensors.numpy.save(source)),
        ]
        if content.changes is not None:
            written += self._known.write(content.changes, partial(self._tensors, folder, "known"))
            save = partial(self._tensors, folder, "histories")
            written += self._histories.write(content.changes, content.history_mark, save)
        if content.policies:
            policies = safetensors.numpy.save(dict(content.policies))
            written.append(self._entry(folder / "policies.safetensors", "policies", policies))
        if self.control.rank == 0:
            kept = safetensors.numpy.save(dict(content.statistics))
            written.append(self._entry(folder / "statistics.safetensors", "statistics", kept))
            kinds = ("items", "scores", "contest", "gate", "record")
            for kind, state in ((kind, getattr(content, kind)) for kind in kinds):
                if state:
                    data = safetensors.numpy.save(dict(state))
                    written.append(self._entry(folder / f"{kind}.safetensors", kind, data))
        _sync_directory(folder)
        return [*self._chain, *written]

    def _write_tables(
        self, folder: Path, content: CheckpointState, marks: Mapping[str, int] | None
    ) -> Iterator[FileEntry]:
        """Write rows changed since the marks, or all (None), in parts of about PART_BYTES; at least one part.

        Keys that were erased since the marks are in the first part that names their table.
        """
        number = size = 0
        held: dict[str, list[npt.NDArray[Any]]] = {}

        def hold(name: str, **columns: npt.NDArray[Any]) -> int:
            for column, values in columns.items():
                held.setdefault(f"{name}/{column}", []).append(values)
            return sum(values.nbytes for values in columns.values())

        def part() -> FileEntry:
            tensors = {name: np.concatenate(parts) for name, parts in held.items()}
            rows = sum(len(t) for name, t in tensors.items() if name.endswith(("/keys", "/erased")))
            path = folder / f"tables-{number}.safetensors"
            return self._entry(path, "tables", safetensors.numpy.save(tensors), rows)

        for name, table in content.tables.items():
            if marks and len(erased := table.erased(marks[name])):
                size += hold(name, erased=erased)
            for keys, rows in table.chunks(marks[name] if marks else 0):
                size += hold(name, keys=keys, rows=rows)
                if name in content.tracked:
                    stamps, counts = table.usage(keys)
                    size += hold(name, stamps=stamps, counts=counts)
                if size >= PART_BYTES:
                    yield part()
                    number, size, held = number + 1, 0, {}
        if held or not number:
            yield part()

    def _tensors(
        self, folder: Path, kind: str, tensors: Mapping[str, npt.NDArray[Any]], rows: int
    ) -> FileEntry:
        return self._entry(folder / f"{kind}.safetensors", kind, safetensors.numpy.save(dict(tensors)), rows)

    def _entry(self, path: Path, kind: str, data: bytes, rows: int = 0) -> FileEntry:
        _write(path, data)
        digest = hashlib.sha256(data).hexdigest()
        return FileEntry(str(path.relative_to(self.root)), kind, len(data), digest, rows)

    def _collect(self) -> None:
        """Remove files that no kept generation names; manifests first, so that none names a missing file."""
        manifests = [*self._older, *self._kept]
        kept = {m.generation for m in manifests}
        named = {self.root / f.path for m in manifests for f in m.files}
        old = [d for d in self.root.glob("gen-*") if number(d) < self._next and number(d) not in kept]
        for directory in old:
            (directory / MANIFEST).unlink(missing_ok=True)
        for directory in old:
            for path in sorted(directory.rglob("*"), reverse=True):
                if path.is_file() and path not in named:
                    path.unlink()
                elif path.is_dir() and not any(path.iterdir()):
                    path.rmdir()
            if not any(directory.iterdir()):
                directory.rmdir()


def _remove_unfinished(root: Path) -> None:
    """Remove folders that a killed process left unfinished: they are newer than every manifest."""
    newest = max((number(path.parent) for path in root.glob(f"gen-*/{MANIFEST}")), default=0)
    for folder in root.glob("gen-*"):
        if number(folder) > newest:
            shutil.rmtree(folder, ignore_errors=True)


def _lock(root: Path) -> BinaryIO:
    file = (root / "LOCK").open("ab")
    try:
        fcntl.flock(file, fcntl.LOCK_EX | fcntl.LOCK_NB)
    except BlockingIOError:
        file.close()
        raise InUseError(
            f"another trainer is running on the checkpoint {root}; stop it or name another directory"
        ) from None
    return file


def _write(path: Path, data: bytes) -> None:
    """Write and sync a file."""
    with path.open("wb") as file:
        file.write(data)
        file.flush()
        os.fsync(file.fileno())


def _sync_directory(path: Path) -> None:
    """Make the names inside a directory durable."""
    handle = os.open(path, os.O_RDONLY)
    try:
        os.fsync(handle)
    finally:
        os.close(handle)
