"""Checkpoints: generations of files, each made real by the atomic rename of one manifest.

    DIR/LOCK                          held by the running trainer
    DIR/gen-00000007/MANIFEST.json    names every file of the generation with size and SHA-256
    DIR/gen-00000007/rank-0/
        tables-0.safetensors          rows changed and keys erased since the generation before, or all rows;
                                      in parts, as tables may be larger than memory (trainer.tables.tiers)
        unpublished.safetensors       keys that changed after the version that Redis holds, if there are any
        policies.safetensors          state of table policies, if there are any
        dense.safetensors             dense weights and their Adam state
        source.safetensors            positions and joins: JSON and Arrow
        known.safetensors             keys that joins remember, as far as no earlier file has them
        histories.safetensors         histories that changed, or all
        rows.safetensors              rows of look-up tables with a time that came, or all
        statistics.safetensors        running statistics of features; rank 0 only
        items.safetensors, …          state of each part (trainer.part), by its kind; rank 0 only
        order.bin                     part of the order log (trainer.stream.order_log); rank 0 only

A generation exists once its manifest does. It may name files of earlier generations: rows of tables
(trainer.checkpoint.table_chain) and changes of the source (trainer.checkpoint.changes). Two generations are
kept. If the newest is torn, restore reads the generation before. Older generations are kept for rollbacks by
their age (trainer.keep_rule).

`Checkpointer` does these steps of trainer.commits:

    2  `begin`: every rank copies what its files will hold; a thread writes and syncs them;
    3  `finish`, once all ranks' files are written: rank 0 gathers their names, sizes and digests;
    4  rank 0 renames the manifest into place: at this moment the generation begins to exist. Files that no
       kept generation names are removed afterwards.

Training continues between 2 and 3. With an object store (trainer.checkpoint.stored) files are uploaded in 2,
the manifest is put between 3 and 4 while training continues, and the folder is a working copy.
"""

import json
import shutil
import time
from collections.abc import Callable, Iterator, Mapping
from concurrent.futures import Future
from contextlib import contextmanager
from dataclasses import asdict, dataclass, replace
from pathlib import Path
from typing import Any, BinaryIO

from livectr.system.disk import sync_directory, writing
from livectr.system.errors import DiskFullError
from livectr.trainer.checkpoint import telemetry
from livectr.trainer.checkpoint.content import CheckpointState, Table
from livectr.trainer.checkpoint.folder import collect, lock, remove_unfinished, write_manifest
from livectr.trainer.checkpoint.keeping import NOTHING_KEPT, KeptGenerations, readable
from livectr.trainer.checkpoint.lease import remove_dead
from livectr.trainer.checkpoint.manifest import (
    FileEntry,
    Folder,
    Manifest,
    check_identity,
    check_source,
    folder_of,
    newest_manifest,
    newest_whole,
    number,
)
from livectr.trainer.checkpoint.prediction_parts import PredictionParts, bring_back
from livectr.trainer.checkpoint.rank_files import RankFiles
from livectr.trainer.checkpoint.restored import Restored
from livectr.trainer.checkpoint.step_back import obey
from livectr.trainer.checkpoint.stored import Stored
from livectr.trainer.checkpoint.writer import File, Writer
from livectr.trainer.comm.control import Control
from livectr.trainer.counts import summed
from livectr.trainer.keep_rule import KeepRule
from livectr.trainer.process import local_rank


@dataclass(frozen=True)
class _Begun:
    """Generation whose files are being written.

    Attributes:
        manifest: as far as this rank knows it.
        own: this rank's share of what the manifest sums up.
        inherited: files of tables of the process before, unless every rank has replaced them.
        files: of this rank, with older files that the generation names.
        sealed: complete manifest, once every rank's files are written.
        stored: rank 0's put of that to the object store.
    """

    manifest: Manifest
    own: Mapping[str, Any]
    inherited: list[FileEntry]
    files: list[File]
    sealed: Manifest | None = None
    stored: Future[None] | None = None


class Checkpointer:
    """Checkpoint directory of one rank; the constructor, `finish`, `commit` and `restore` are collective.

    Args:
        root: the directory.
        identity: JSON-able description of the pipeline; a checkpoint of another identity is refused.
        predictions: check of the prediction log, which may lie elsewhere. It takes a number of records and
            their SHA-256, and returns a complaint or "". Rank 0 calls it.
        keep: generations that are kept for rollbacks, beside the newest two.
        stored: object store that holds the checkpoint, so that the directory is a working copy; None: none.
        source: URL of the logs whose positions it has; "": none, or any.

    Attributes:
        tables: chain of this rank's files of tables.
        kept: generations that stay.

    Raises:
        InUseError: another trainer is running on this directory.
        MismatchError: the object store holds a checkpoint of another pipeline.
        ConnectError: the object store is away.
        UserError: the directory or the object store cannot be written.
    """

    def __init__(
        self,
        root: Path,
        control: Control,
        identity: Mapping[str, Any],
        *,
        predictions: Callable[[int, str], str] | None = None,
        keep: KeepRule = NOTHING_KEPT,
        stored: Stored | None = None,
        source: str = "",
    ) -> None:
        self.root, self._stored, self._source = root, stored, source
        self._predictions = predictions
        self.control = control
        self.identity: dict[str, Any] = json.loads(json.dumps(identity))
        self._lock: BinaryIO | None = None
        self._writer = Writer(root, stored)
        self.kept = KeptGenerations(keep)
        self._inherited: list[FileEntry] = []
        self._begun: _Begun | None = None
        log = stored.log if stored is not None and control.rank == 0 else None
        self._log = PredictionParts(log, self._writer) if log is not None else None
        self._files = RankFiles(self._writer, control.rank, self._log)
        self.tables = self._files.tables
        if control.rank == 0:
            self._lock = lock(root)
            remove_unfinished(root)
            remove_dead(root)
            obey(root)
        if stored is not None:
            if control.rank == 0:
                stored.reach()
                newest = newest_manifest(stored)
                if newest is not None:  # before another pipeline's trainer is stopped
                    check_identity(stored.name, newest.identity, self.identity)
                stored.own()
                stored.remove_unfinished()
            stored.token = str(control.broadcast_json(stored.token))
        telemetry.CHECKPOINT_TIMESTAMP.set_to_current_time()  # nothing older can be lost
        found = [number(path) for path in root.glob("gen-*")] if control.rank == 0 else []
        found += stored.generations() if control.rank == 0 and stored is not None else []
        self._next = 1 + int(control.broadcast_json(max(found, default=0)))

    def commit(self, content: CheckpointState) -> Manifest:
        """Write the next generation (steps 2 to 4), and wait for it. Collective; see `begin` and `finish`."""
        self.begin(content)
        return self.finish()

    def begin(self, content: CheckpointState) -> None:
        """Copy what the next generation holds, and start to write it (step 2). None is being written.

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
            resumes=content.resumes,
            quality=dict(content.quality),
            products=content.products,
            source=self._source.partition(":")[0],
        )
        with self._whole(generation), writing("the checkpoint", self.root):
            folder = self._folder(generation)
            files = self._files.write(folder, content, keep=bool(self._inherited))
        own = {
            "table_rows": {name: len(table) for name, table in content.tables.items()},
            "field_keys": dict(content.field_keys),
            "counts": dict(content.counts),
            "around": self.tables.around,
        }
        self._begun = _Begun(manifest, own, self._inherited, files)

    def ahead(self, marks: Mapping[str, int] | None = None) -> None:
        """Copy rows of tables before the next generation begins. Raises DiskFullError.

        Args:
            marks: name → mark of this boundary, at which that is begun; None: continue it.
        """
        with self._whole(self._next), writing("the checkpoint", self.root):
            if marks is not None:
                self.tables.ahead(self._folder(self._next), marks)
            self.tables.advance()

    @property
    def busy(self) -> bool:
        """True between `begin` and `finish`."""
        return self._begun is not None

    @property
    def begun(self) -> int:
        """Number of the generation that has begun; 0: none."""
        return 0 if self._begun is None else self._begun.manifest.generation

    @property
    def written(self) -> bool:
        """True if `advance` would not wait for this rank. Raises DiskFullError, or what stopped an upload."""
        if self._begun is None:
            return False
        if self._begun.sealed is not None:
            return self._begun.stored is None or self._begun.stored.done()
        with self._whole(self._begun.manifest.generation):
            return self._writer.idle

    def finish(self) -> Manifest:
        """Make the generation that has begun exist (steps 3 and 4). Collective; waits for the files.

        Raises:
            ConnectError: the object store was away for too long (trainer.checkpoint.stored.LAST_DEADLINE_S).
            DiskFullError: nothing is left of the generation.
        """
        if self._stored is not None:
            self._stored.hurry()
        while (manifest := self.advance()) is None:
            pass
        return manifest

    def advance(self) -> Manifest | None:
        """Do step 3, or 4 in a later call where an object store has to be waited for. Collective.

        Returns:
            The manifest once the generation exists, the same on every rank.

        Raises:
            DiskFullError: nothing is left of the generation.
            MismatchError: another trainer has taken the object store's prefix.
        """
        begun = self._begun
        assert begun is not None
        if begun.sealed is None:
            sealed = self._seal(begun)
            if self._stored is not None:
                stored = self._stored.seal(sealed) if self.control.rank == 0 else None
                self._begun = replace(begun, sealed=sealed, stored=stored)
                return None
        else:
            sealed = begun.sealed
            if begun.stored is not None:
                begun.stored.result()
            self.control.broadcast_json(None)  # the others wait for rank 0
        # 4 rank 0 renames the manifest into place; of a working copy, the first rank of each machine
        if self._writes:
            write_manifest(self.root, sealed)
        self._begun = None
        self.kept.add(sealed, choose=self.control.rank == 0)
        if self.control.rank == 0 and self._stored is not None:
            self._stored.collect(self.kept.all, self._next)
        if self._writes:
            collect(self.root, self.kept.all, self._next)
            remove_dead(self.root)
        return sealed

    @property
    def _writes(self) -> bool:
        """True if this rank writes manifests: rank 0, and the first on each machine with a working copy."""
        return self.control.rank == 0 or (self._stored is not None and local_rank() == 0)

    def _seal(self, begun: _Begun) -> Manifest:
        """Step 3: wait for this rank's files, and complete the manifest. Collective."""
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
        return replace(
            begun.manifest,
            files=tuple(files if around else [*begun.inherited, *files]),
            table_rows=summed([part["table_rows"] for part in parts]),
            field_keys=summed([part["field_keys"] for part in parts]),
            counts=summed([part["counts"] for part in parts]),
            created_ms=time.time_ns() // 1_000_000,
        )

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
            MismatchError: the generation belongs to another pipeline or kind of logs.
        """
        stored = self._stored
        place = Folder(self.root) if stored is None else stored
        manifest = newest_whole(
            place,
            self.control,
            "bring its files back, or name an empty --checkpoint directory to begin again",
            predictions=self._predictions if stored is None else None,
            resumes=True,
        )
        if manifest is None:
            return None
        check_identity(place.name, manifest.identity, self.identity)
        check_source(place.name, manifest.source, self._source)
        if self._log is not None and stored is not None and self._predictions is not None:
            bring_back(stored, manifest, self._predictions)
            self._log.resume(manifest.files)
        if stored is not None and self._writes:
            write_manifest(self.root, manifest)
        older: list[Manifest] = []
        if self.control.rank == 0:
            self._files.order.resume(manifest, lambda entry: place.ensure(entry).read_bytes())
            older = [m for m in readable(place) if m.generation < manifest.generation]
        self.kept.resume(manifest, older)
        if manifest.created_ms:
            telemetry.CHECKPOINT_TIMESTAMP.set(manifest.created_ms / 1000)
        return Restored.of(place, manifest)

    def resume(self, tables: Mapping[str, Table], marks: Mapping[str, int]) -> None:
        """Let the next generation name the restored files of tables, and hold what changes. Collective.

        Files of any number of ranks serve: they are read before those of this process. If nothing was
        restored, or the tables hold other rows than the checkpoint, the next generation holds all rows.

        Args:
            tables: of this rank, as restored.
            marks: name → mark after which changes count.
        """
        manifest = self.kept.newest
        if manifest is None:
            return
        sweeps = all(table.sweeps for table in tables.values())
        own = {"rows": {name: len(table) for name, table in tables.items()}, "sweeps": sweeps}
        parts = self.control.gather_json(own)
        if (
            all(part["sweeps"] for part in parts)
            and summed([p["rows"] for p in parts]) == manifest.table_rows
        ):
            self._inherited = [file for file in manifest.files if file.kind == "tables"]
            self.tables.resume(tables, marks)

    def begin_again(self) -> None:
        """Let the next generation hold all rows, since changes are no longer known. On all ranks."""
        self._inherited = []
        self._files.begin_again()

    def close(self) -> None:
        """Let the directory go. A generation that has begun is given up; this rank's part is removed."""
        if self._stored is not None:
            self._stored.close()
        self._writer.close()
        begun = self._begun.manifest.generation if self._begun is not None else self._next
        shutil.rmtree(self._folder(begun), ignore_errors=True)
        if self._lock is not None:
            self._lock.close()
            self._lock = None

    def _folder(self, generation: int) -> Path:
        """Folder of this rank's files of a generation."""
        token = f".{self._stored.token}" if self._stored is not None else ""
        return folder_of(self.root, generation) / f"rank-{self.control.rank}{token}"
