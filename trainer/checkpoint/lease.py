"""Generation of a checkpoint that is held while it is read: its trainer may run on, and remove files.

A reader of a folder takes hard links of a generation's files, which stay when the trainer removes its own:

    DIR/.reading-TOKEN/LOCK      locked by the reader, so that links of a dead one are told and removed
    DIR/.reading-TOKEN/gen-…     the generation

In a folder that cannot be written, or that has no links, the reader opens the files instead, and a temporary
folder has links to them: an open file outlives its name. From an object store all files are downloaded first.

A generation that goes away before all its files are held is given up for the newest one that there is then.
"""

from __future__ import annotations

import errno
import fcntl
import logging
import os
import resource
import secrets
import shutil
import time
from collections.abc import Collection, Iterator, Sequence
from contextlib import ExitStack, contextmanager, suppress
from dataclasses import dataclass, replace
from pathlib import Path

from livectr.system.errors import CheckpointError
from livectr.system.scratch import scratch
from livectr.trainer.checkpoint.manifest import (
    MANIFEST,
    FileEntry,
    Folder,
    Manifest,
    check_digest,
    folder_of,
    path_of,
    resumed_first,
)
from livectr.trainer.checkpoint.restored import Restored
from livectr.trainer.checkpoint.stored import PREDICTIONS, Stored, placed
from livectr.trainer.comm.control import Control

LOG = logging.getLogger(__name__)
READING = ".reading-"
"""Beginning of the name of a folder of links."""
YOUNG_S = 60.0
"""Age from which a folder of links that nobody has locked is that of a dead reader."""
TRIES = 1000
"""Generations that may go away one after the other: to link one takes milliseconds."""
_NO_LINKS = {errno.EXDEV, errno.EPERM, errno.EACCES, errno.EROFS, errno.EMLINK, errno.ENOTSUP, errno.ENOSPC}


@dataclass(frozen=True)
class Held:
    """Generation that stays while it is read; `close` lets it go, a context manager does so at its end.

    Attributes:
        name: of the checkpoint, for messages.
        restored: the generation; on N ranks each has verified its share of the files.
    """

    name: str
    restored: Restored
    _resources: ExitStack

    @property
    def manifest(self) -> Manifest:
        """Manifest of the generation."""
        return self.restored.manifest

    def close(self) -> None:
        """Let the files go; a second call does nothing."""
        self._resources.close()

    def __enter__(self) -> Held:
        return self

    def __exit__(self, *_: object) -> None:
        self.close()


def hold_newest(
    address: str | Path,
    help: str,
    control: Control | None = None,
    *,
    kinds: Collection[str] | None = None,
    resumes: bool = False,
) -> Held | None:
    """Hold the newest whole generation; None if there is no generation. Collective.

    Args:
        address: folder or s3:// address of a checkpoint, whose trainer may run.
        help: advice in the error, for the user.
        control: of this rank; None: there is one.
        kinds: of the files that are held; None: all.
        resumes: hold the generation from which the newest one says to resume.

    Raises:
        CheckpointError: generations exist, but none is whole.
        MismatchError: the newest has a format that this program does not read.
        ConnectError: the object store is away.
    """
    control, place = control or Control(), placed(address)
    torn: dict[int, str] = {}
    for _ in range(TRIES):
        numbers = place.generations() if control.rank == 0 else []
        numbers = sorted(numbers, reverse=True)
        numbers = control.broadcast_json(resumed_first(place, numbers) if resumes else numbers)
        left = [n for n in numbers if n not in torn]
        if not left:
            break
        held, trouble = _tried(place, left[0], control, kinds)
        if held is not None:
            return held
        if trouble:
            torn[left[0]] = trouble
            LOG.warning("checkpoint %s: generation %d is torn: %s", place.name, left[0], trouble)
    else:
        raise CheckpointError(f"{place.name} is replaced faster than it can be read; stop its trainer first")
    if torn:
        all_torn, why = ", ".join(map(str, torn)), [*torn.values()][-1]
        raise CheckpointError(f"{place.name}: every generation is torn ({all_torn}: {why}); {help}")
    return None


def _tried(
    place: Folder | Stored, generation: int, control: Control, kinds: Collection[str] | None
) -> tuple[Held | None, str]:
    """A generation, or the reason for which it is torn; neither, if it has gone. Collective."""
    held, trouble = None, ""
    try:
        held = hold(place, generation, control, kinds=kinds)
    except FileNotFoundError:
        trouble = "gone"
    except (CheckpointError, OSError) as error:
        trouble = str(error) or type(error).__name__
    troubles = [each for each in control.gather_json(trouble) if each]
    if not troubles:
        return held, ""
    if held is not None:
        held.close()
    return None, next((each for each in troubles if each != "gone"), "")


def hold(
    place: Folder | Stored,
    generation: int,
    control: Control | None = None,
    *,
    kinds: Collection[str] | None = None,
) -> Held:
    """Hold a generation, and verify this rank's share of its files.

    Args:
        place: the checkpoint.
        generation: its number.
        control: of this rank; None: there is one.
        kinds: of the files that are held; None: all.

    Raises:
        FileNotFoundError: it has gone.
        CheckpointError: it is torn.
        ConnectError: the object store is away.
    """
    manifest, control = place.manifest(generation), control or Control()
    if kinds is not None:
        manifest = replace(manifest, files=tuple(entry for entry in manifest.files if entry.kind in kinds))
    with ExitStack() as resources:
        try:
            if isinstance(place, Folder):
                root = resources.enter_context(_links(place.root, manifest))
                for entry in place.share(manifest, control):
                    check_digest(root / entry.path, entry)
                restored = Restored(root, manifest, home=place.root)
            else:
                for entry in manifest.files:
                    if entry.kind != PREDICTIONS:
                        place.ensure(entry)
                restored = Restored.of(place, manifest)
        except FileNotFoundError as error:
            place.manifest(generation)  # manifests go first: if it is there, the file is lacking
            raise CheckpointError(f"it lacks {error.filename or error}") from None
        return Held(place.name, restored, resources.pop_all())


@contextmanager
def _links(root: Path, manifest: Manifest) -> Iterator[Path]:
    """Folder in which the files of a generation stay. Raises FileNotFoundError as soon as one has gone."""
    remove_dead(root)
    files = [*manifest.files, _manifest_of(manifest)]
    with ExitStack() as resources:
        try:
            folder = resources.enter_context(_linked(root, files))
        except OSError as error:
            if error.errno not in _NO_LINKS:
                raise
            folder = resources.enter_context(_opened(root, files))
        yield folder


@contextmanager
def _linked(root: Path, files: Sequence[FileEntry]) -> Iterator[Path]:
    folder = root / f"{READING}{secrets.token_hex(6)}"
    folder.mkdir()
    try:
        with (folder / "LOCK").open("wb") as lock:
            fcntl.flock(lock, fcntl.LOCK_EX)
            for parent in {Path(entry.path).parent for entry in files}:
                (folder / parent).mkdir(parents=True, exist_ok=True)
            for entry in files:
                os.link(path_of(root, entry), folder / entry.path)
            yield folder
    finally:
        shutil.rmtree(folder, ignore_errors=True)


@contextmanager
def _opened(root: Path, files: Sequence[FileEntry]) -> Iterator[Path]:
    soft, hard = resource.getrlimit(resource.RLIMIT_NOFILE)
    resource.setrlimit(resource.RLIMIT_NOFILE, (max(soft, min(hard, soft + 2 * len(files))), hard))
    with scratch("reading") as folder, ExitStack() as opened:
        for entry in files:
            file = opened.enter_context(path_of(root, entry).open("rb"))
            target = folder / entry.path
            target.parent.mkdir(parents=True, exist_ok=True)
            target.symlink_to(f"/proc/{os.getpid()}/fd/{file.fileno()}")
        yield folder


def _manifest_of(manifest: Manifest) -> FileEntry:
    path = folder_of(Path(), manifest.generation) / MANIFEST
    return FileEntry(str(path), "manifest", 0, "")


def remove_dead(root: Path) -> None:
    """Remove links of readers that were killed."""
    for folder in root.glob(f"{READING}*"):
        with suppress(OSError):
            if time.time() - folder.stat().st_mtime < YOUNG_S:
                continue
            with (folder / "LOCK").open("ab") as lock:
                fcntl.flock(lock, fcntl.LOCK_EX | fcntl.LOCK_NB)
                shutil.rmtree(folder, ignore_errors=True)
