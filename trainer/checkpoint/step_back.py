"""Going back: a run continues from an older generation of its checkpoint, and forgets those after it.

The older generation gets a copy under the next number, which names the same files. It is the newest then, so
that the run resumes from it, at its positions in the log. Generations after the older one go. Only the
trainer does so, or somebody who holds its lock: two never write to a checkpoint.

    DIR/ROLLBACK     mark for a running trainer: manifest of the generation, and folder of its links, which
                     are there until the mark is gone (trainer.checkpoint.lease). Rank 0 finds the mark at
                     a step boundary; all ranks drop what no checkpoint has, and begin again
"""

from __future__ import annotations

import json
import logging
import os
import time
from collections.abc import Callable
from dataclasses import replace
from pathlib import Path

from livectr.system.disk import writing
from livectr.system.errors import CheckpointError, MismatchError
from livectr.trainer.checkpoint.folder import write_manifest
from livectr.trainer.checkpoint.manifest import MANIFEST, Folder, Manifest, folder_of, path_of

LOG = logging.getLogger(__name__)
MARK = "ROLLBACK"
LOOK_EVERY_S = 1.0


def step_back(root: Path, manifest: Manifest, links: Path) -> int:
    """Let a generation be the newest, under another number; the caller holds the lock.

    Args:
        root: the checkpoint.
        manifest: of the generation.
        links: folder in which its files are, if the trainer has removed some of its own meanwhile.

    Returns:
        The number.

    Raises:
        CheckpointError: a file is nowhere.
        DiskFullError: nothing has changed.
    """
    others = Folder(root).generations()
    with writing("the checkpoint", root):
        for entry in manifest.files:
            path = path_of(root, entry)
            if not path.exists():
                path.parent.mkdir(parents=True, exist_ok=True)
                try:
                    os.link(links / entry.path, path)
                except FileNotFoundError:
                    raise CheckpointError(f"generation {manifest.generation} lacks {entry.path}") from None
    number = max(others, default=manifest.generation) + 1
    write_manifest(root, replace(manifest, generation=number, created_ms=time.time_ns() // 1_000_000))
    for other in others:
        if other > manifest.generation:
            (folder_of(root, other) / MANIFEST).unlink(missing_ok=True)
    return number


def ask(root: Path, manifest: Manifest, links: Path) -> None:
    """Ask the trainer that holds the lock to go back to a generation, whose links stay until it has."""
    scratch = root / f".{MARK}.{os.getpid()}"
    scratch.write_text(
        json.dumps({"links": os.path.relpath(links, root), "manifest": manifest.to_json().decode()})
    )
    scratch.replace(root / MARK)


def obey(root: Path) -> None:
    """Go back if somebody has asked for it; the caller holds the lock. Raises DiskFullError."""
    mark = root / MARK
    if not mark.exists():
        return
    try:
        asked = json.loads(mark.read_bytes())
        manifest = Manifest.from_json(asked["manifest"].encode())
        number = step_back(root, manifest, root / asked["links"])
        LOG.warning("the run goes back to generation %d, which it calls %d", manifest.generation, number)
    except (CheckpointError, MismatchError, ValueError, KeyError, TypeError) as error:
        LOG.error("the run does not go back as it was asked to: %s", error)
    mark.unlink(missing_ok=True)


class Asked:
    """Looks for the mark from time to time.

    Args:
        root: of the checkpoint; None: there is none, or another rank looks.
        clock: seconds that never fall.
    """

    def __init__(self, root: Path | None, clock: Callable[[], float] = time.monotonic) -> None:
        self._root, self._clock = root, clock
        self._next_s = clock()

    def __call__(self) -> bool:
        """Tell if somebody asks the run to go back."""
        if self._root is None or self._clock() < self._next_s:
            return False
        self._next_s = self._clock() + LOOK_EVERY_S
        return (self._root / MARK).exists()
