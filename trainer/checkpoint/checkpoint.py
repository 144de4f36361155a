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
        rows.safetensors              rows of look-up tables with a time that came, or all
        statistics.safetensors        running statistics of features; rank 0 only
        items.safetensors             examples of each item (trainer.quality.seen); rank 0 only
        scores.safetensors            scores without final labels (trainer.quality.final_labels); rank 0 only
        contest.safetensors           champion and its window (trainer.quality.contest); rank 0 only
        gate.safetensors              window of the publish gate (trainer.quality.gate); rank 0 only

A generation exists once its manifest does. It may name files of earlier generations: rows of tables
(trainer.checkpoint.table_chain) and changes of the source (trainer.checkpoint.changes). Two generations are
kept. If the newest is torn, restore reads the generation before. Older generations are kept for rollbacks,
some time apart (trainer.checkpoint.keeping).

`Checkpointer` does these steps of trainer.commits:

    2  `begin`: every rank copies what its files will hold; a thread writes and syncs them;
    3  `finish`, once all ranks' files are written: rank 0 gathers their names, sizes and digests;
    4  rank 0 renames the manifest into place: at this moment the generation begins to exist. Files that no
       kept generation names are removed afterwards.

Training goes on between 2 and 3.
"""

import fcntl
import json
import logging
import shutil
import time
from collections.abc import Callable, Iterator, Mapping
from contextlib import contextmanager
from dataclasses import asdict, dataclass, replace
from functools import partial
from pathlib import Path
from typing import Any, BinaryIO

import numpy as np
import numpy.typing as npt
import safetensors.numpy
import safetensors.torch

from livectr.kernels.errors import DiskFullError, InUseError, UserError
from livectr.kernels.process.disk import sync_directory, writing
from livectr.trainer import telemetry
from livectr.trainer.checkpoint.changes import HistoryChain, KnownLog, TimedRowLog
from livectr.trainer.checkpoint.content import CheckpointState, Table
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
from livectr.trainer.checkpoint.table_chain import TableChain
from livectr.trainer.checkpoint.writer import File, Writer, write_synced
from livectr.trainer.comm.control import Control
from livectr.trainer.counts import summed

LOG = logging.getLogger(__name__)
KEPT_GENERATIONS = 2


@dataclass(frozen=True)
class _Begun:
    """Generation whose files are being written.

    Attributes:
        manifest: as far as this rank knows it.
        own: this rank's share of what the manifest sums up.
        inherited: files of tables of the process before, unless every rank has replaced them.
        files: of this rank, with older files that the generation names.
    """

    manifest: Manifest
    own: Mapping[str, Any]
    inherited: list[FileEntry]
    files: list[File]


class Checkpointer:
    """Checkpoint directory of one rank; the constructor, `finish`, `commit` and `restore` are collective.

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
        self._writer = Writer(root)
        self._kept: list[Manifest] = []
        self._older: list[Manifest] = []
        self._tables = TableChain(self._writer)
        self._inherited: list[FileEntry] = []
        self._begun: _Begun | None = None
        self._known, self._histories, self._rows = KnownLog(), HistoryChain(), TimedRowLog()
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
        """Write the next generation (steps 2 to 4), and wait for it. Collective; see `begin` and `finish`."""
        self.begin(content)
        return self.finish()

    def begin(self, content: CheckpointState) -> None:
        """Copy what the next generation holds, and start to write it (step 2). None is being written.

        Args:
            content: of this rank.

        Raises:
            DiskFullError: nothing is left of the generation.
        """
        assert self._begun is None
        generation, self._next = self._next, self._next + 1
        manifest = Manifest(
            generation=generation,
            world=self.control.world,
            step=content.step,
            examples=content.examples,
            predictions=content.predictions,
            identity=self.identity,
            cursor=content.cursor,
            files=(),
            row=content.row,
            table_rows={},
            field_keys={},
            counts={},
            predictions_sha256=content.predictions_sha256,
            began_ms=content.began_ms,
            seen=content.seen,
            quality=dict(content.quality),
            products=content.products,
        )
        with self._whole(generation), writing("the checkpoint", self.root):
            files = self._write_rank(generation, content)
        own = {
            "table_rows": {name: len(table) for name, table in content.tables.items()},
            "field_keys": dict(content.field_keys),
            "counts": dict(content.counts),
            "around": self._tables.around,
        }
        self._begun = _Begun(manifest, own, self._inherited, files)

    @property
    def busy(self) -> bool:
        """True between `begin` and `finish`."""
        return self._begun is not None

    @property
    def written(self) -> bool:
        """True if a generation has begun and this rank's files are written. Raises DiskFullError."""
        if self._begun is None:
            return False
        with self._whole(self._begun.manifest.generation):
            return self._writer.idle

    def finish(self) -> Manifest:
        """Make the generation that has begun exist (steps 3 and 4). Collective; waits for the files.

        Returns:
            The manifest, the same on every rank.

        Raises:
            DiskFullError: nothing is left of the generation.
        """
        assert self._begun is not None
        begun = self._begun
        generation = begun.manifest.generation
        with self._whole(generation):
            self._writer.wait()
            with writing("the checkpoint", self.root):
                sync_directory(self._folder(generation))
        # 3 rank 0 gathers their names, sizes and digests
        own = [asdict(file.entry) for file in begun.files]
        parts = self.control.gather_json({**begun.own, "files": own})
        around = all(part["around"] for part in parts)
        if around:
            self._inherited = []
        files = [FileEntry(**f) for part in parts for f in part["files"]]
        manifest = replace(
            begun.manifest,
            files=tuple(files if around else [*begun.inherited, *files]),
            table_rows=summed([part["table_rows"] for part in parts]),
            field_keys=summed([part["field_keys"] for part in parts]),
            counts=summed([part["counts"] for part in parts]),
            created_ms=time.time_ns() // 1_000_000,
        )
        # 4 rank 0 renames the manifest into place
        if self.control.rank == 0:
            directory = folder_of(self.root, generation)
            with writing("the checkpoint", self.root):
                sync_directory(directory)
                write_synced(directory / (MANIFEST + ".new"), manifest.to_json())
                (directory / (MANIFEST + ".new")).replace(directory / MANIFEST)
                sync_directory(directory)
                sync_directory(self.root)
        self._begun = None
        self._kept.append(manifest)
        if self.control.rank == 0:
            self._older = self._keep.kept([*self._older, *self._kept[:-KEPT_GENERATIONS]])
        self._kept = self._kept[-KEPT_GENERATIONS:]
        if self.control.rank == 0:
            self._collect()
        return manifest

    @contextmanager
    def _whole(self, generation: int) -> Iterator[None]:
        """Remove this rank's part of a generation if the disk is full: the next start needs its space."""
        try:
            yield
        except DiskFullError:
            self._writer.close()
            shutil.rmtree(self._folder(generation), ignore_errors=True)
            raise

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

    def go_on(self, tables: Mapping[str, Table], marks: Mapping[str, int]) -> None:
        """Let the next generation name the restored files of tables, and hold what changes. Collective.

        Files of any number of ranks serve: they are read before those of this process. If nothing was
        restored, or the tables hold other rows than the checkpoint, the next generation holds all rows.

        Args:
            tables: of this rank, as restored.
            marks: name → mark after which changes count.
        """
        if not self._kept:
            return
        sweeps = all(table.sweeps for table in tables.values())
        own = {"rows": {name: len(table) for name, table in tables.items()}, "sweeps": sweeps}
        parts, manifest = self.control.gather_json(own), self._kept[-1]
        if (
            all(part["sweeps"] for part in parts)
            and summed([p["rows"] for p in parts]) == manifest.table_rows
        ):
            self._inherited = [file for file in manifest.files if file.kind == "tables"]
            self._tables.go_on(marks)

    def begin_anew(self) -> None:
        """Let the next generation hold all rows, since changes are no longer known. On all ranks."""
        self._inherited = []
        self._tables.begin_anew()
        self._histories.begin_anew()

    @property
    def oldest(self) -> int:
        """Examples of the oldest kept generation: a restart goes on from at least as many."""
        return self._kept[0].examples if self._kept else 0

    def close(self) -> None:
        """Let the directory go. A generation that has begun is given up; this rank's part is removed."""
        self._writer.close()
        if self._begun is not None:
            shutil.rmtree(self._folder(self._begun.manifest.generation), ignore_errors=True)
        if self._lock is not None:
            self._lock.close()
            self._lock = None

    def _folder(self, generation: int) -> Path:
        """Folder of this rank's files of a generation."""
        return folder_of(self.root, generation) / f"rank-{self.control.rank}"

    def _write_rank(self, generation: int, content: CheckpointState) -> list[File]:
        """Copy what this rank's files hold and have them written; returns them with the older files of its
        chains."""
        folder = self._folder(generation)
        folder.mkdir(parents=True, exist_ok=True)
        dense = {name: tensor.contiguous() for name, tensor in content.dense.items()}
        source = {name: np.frombuffer(part, np.uint8) for name, part in content.source.items()}
        files = [
            *self._tables.write(folder, content, keep=bool(self._inherited)),
            self._writer.file(folder / "dense.safetensors", "dense", safetensors.torch.save(dense)),
            self._tensors(folder, "source", source),
        ]
        if content.changes is not None:
            files += self._known.write(content.changes, partial(self._tensors, folder, "known"))
            save = partial(self._tensors, folder, "histories")
            files += self._histories.write(content.changes, content.history_mark, save)
            files += self._rows.write(content.changes, partial(self._tensors, folder, "rows"))
        if content.policies:
            files.append(self._tensors(folder, "policies", content.policies))
        if self.control.rank == 0:
            files.append(self._tensors(folder, "statistics", content.statistics))
            kinds = ("items", "scores", "contest", "gate", "record")
            for kind, state in ((kind, getattr(content, kind)) for kind in kinds):
                if state:
                    files.append(self._tensors(folder, kind, state))
        return files

    def _tensors(
        self, folder: Path, kind: str, tensors: Mapping[str, npt.NDArray[Any]], rows: int = 0
    ) -> File:
        """Write a copy of tensors."""
        data = safetensors.numpy.save(dict(tensors))
        return self._writer.file(folder / f"{kind}.safetensors", kind, data, rows)

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
