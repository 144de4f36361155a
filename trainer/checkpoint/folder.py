"""Folder of a checkpoint: its lock, and files that go."""

from __future__ import annotations

import shutil
from collections.abc import Sequence
from contextlib import suppress
from pathlib import Path
from typing import BinaryIO

from livectr.system.disk import sync_directory, writing
from livectr.system.errors import InUseError, UserError
from livectr.system.file_locks import take
from livectr.trainer.checkpoint.manifest import MANIFEST, Manifest, folder_of, number
from livectr.trainer.checkpoint.writer import write_synced


def lock(root: Path) -> BinaryIO:
    """Make the folder and lock it, until the file is closed.

    Raises:
        InUseError: another trainer is running on this folder.
        UserError: it cannot be written.
    """
    try:
        root.mkdir(parents=True, exist_ok=True)
        file = (root / "LOCK").open("ab")
        if not take(file):
            file.close()
            raise InUseError(
                f"another trainer is running on the checkpoint {root}; stop it or name another directory"
            )
    except OSError as error:
        raise UserError(
            f"checkpoints cannot be kept in {root} ({error.strerror}); name another directory"
        ) from None
    return file


def write_manifest(root: Path, manifest: Manifest) -> None:
    """Rename a manifest into place, after all that it names. Raises DiskFullError."""
    directory = folder_of(root, manifest.generation)
    with writing("the checkpoint", root):
        directory.mkdir(parents=True, exist_ok=True)
        sync_directory(directory)
        write_synced(directory / (MANIFEST + ".new"), manifest.to_json())
        (directory / (MANIFEST + ".new")).replace(directory / MANIFEST)
        sync_directory(directory)
        sync_directory(root)


def collect(root: Path, manifests: Sequence[Manifest], below: int) -> None:
    """Remove files of generations before `below` that no manifest names.

    Manifests go first, so that none names a missing file.
    """
    kept = {m.generation for m in manifests}
    named = {root / f.path for m in manifests for f in m.files}
    old = [d for d in root.glob("gen-*") if number(d) < below and number(d) not in kept]
    for directory in old:
        (directory / MANIFEST).unlink(missing_ok=True)
    for directory in old:
        for path in sorted(directory.rglob("*"), reverse=True):
            if path.is_dir():
                _remove_if_empty(path)
            elif path not in named:
                path.unlink(missing_ok=True)
        _remove_if_empty(directory)


def _remove_if_empty(folder: Path) -> None:
    with suppress(FileNotFoundError):  # two nodes on a machine may share a local copy
        if not any(folder.iterdir()):
            folder.rmdir()


def remove_unfinished(root: Path) -> None:
    """Remove folders that a killed process left unfinished: they are newer than every manifest."""
    newest = max((number(path.parent) for path in root.glob(f"gen-*/{MANIFEST}")), default=0)
    for folder in root.glob("gen-*"):
        if number(folder) > newest:
            shutil.rmtree(folder, ignore_errors=True)
