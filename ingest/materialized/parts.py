"""Work by several processes: each writes its part, and the last one puts the parts together.

    DIR.parts/0-of-4 … 3-of-4   complete stores of some partitions
    DIR                         all of them, once every part is there

A part that exists is not computed again, so an interrupted run resumes. Files are linked into DIR.
Parts that end at the same time build the same folder, and the first rename wins.
"""

from __future__ import annotations

import os
import re
import shutil
import tempfile
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from dataclasses import dataclass, replace
from pathlib import Path

from livectr.ingest.materialized.store import MANIFEST, Manifest
from livectr.system.errors import ConfigError


@dataclass(frozen=True)
class Part:
    """Share of the work: partitions p with p mod count = index."""

    index: int = 0
    count: int = 1

    @staticmethod
    def parse(text: str) -> Part:
        """Read "I/N", 0 ≤ I < N. Raises ConfigError."""
        found = re.fullmatch(r"(\d+)/(\d+)", text)
        if found is None or not int(found[1]) < int(found[2]):
            raise ConfigError(f"part is {text!r}, but must be I/N, with I from 0 to N - 1, e.g. 0/4.")
        return Part(int(found[1]), int(found[2]))

    def folder(self, target: Path) -> Path:
        """Folder of this part's store; the target itself when there is one part."""
        if self.count == 1:
            return target
        return parts_of(target) / f"{self.index}-of-{self.count}"

    def check_count(self, target: Path) -> None:
        """Raise ConfigError if there are parts of another count: they would never become a whole."""
        for folder in parts_of(target).glob("*-of-*"):
            found = re.fullmatch(r"\d+-of-(\d+)", folder.name)
            if self.count > 1 and found is not None and int(found[1]) != self.count:
                raise ConfigError(
                    f"{folder.parent} holds parts of {found[1]}, but part is {self.index}/{self.count}; "
                    f"use I/{found[1]}, or delete {folder.parent}"
                )


def parts_of(target: Path) -> Path:
    """Folder of the parts' folders."""
    return target.with_name(f"{target.name}.parts")


def complete(target: Path, count: int) -> list[Path] | None:
    """Folders of all parts in order; None while a part is missing."""
    folders = [Part(index, count).folder(target) for index in range(count)]
    return folders if all((folder / MANIFEST).exists() for folder in folders) else None


@contextmanager
def built(target: Path, *, shared: bool = False) -> Iterator[Path]:
    """Folder that is renamed to `target` on success and deleted on failure.

    Args:
        target: folder to create.
        shared: another process may build the same; the first rename wins.
    """
    target.parent.mkdir(parents=True, exist_ok=True)
    folder = Path(tempfile.mkdtemp(prefix=f".{target.name}.", dir=target.parent))
    try:
        folder.chmod(0o755)
        yield folder
        try:
            folder.rename(target)
        except OSError:
            if not (shared and target.is_dir()):
                raise
    finally:
        shutil.rmtree(folder, ignore_errors=True)


def merge(target: Path, count: int) -> Manifest | None:
    """Put all parts together, if all are there.

    Args:
        target: folder to create.
        count: number of parts.

    Returns:
        Manifest of the target; None while a part is missing.

    Raises:
        ConfigError: the parts are of different logs, features or pipelines.
    """
    folders = complete(target, count)
    if folders is None:
        return None
    manifests = [Manifest.read(folder) for folder in folders]
    merged = _merged(target, manifests)
    with built(target, shared=True) as building:
        for folder, manifest in zip(folders, manifests, strict=True):
            for file in manifest.files:
                (building / file.path).parent.mkdir(exist_ok=True)
                os.link(folder / file.path, building / file.path)
        merged.write(building)
    return Manifest.read(target)


def _merged(target: Path, manifests: list[Manifest]) -> Manifest:
    first = manifests[0]
    alike = {(m.features, m.source, m.labelled, m.window_ms) for m in manifests}
    if len(alike) > 1:
        raise ConfigError(
            f"the parts of {target} were not made alike; delete {target}.parts and run all parts again"
        )
    return replace(
        first,
        unreadable=sum(m.unreadable for m in manifests),
        rows=sum(m.rows for m in manifests),
        least=_ends(min, [m.least for m in manifests]),
        greatest=_ends(max, [m.greatest for m in manifests]),
        files=tuple(sorted((f for m in manifests for f in m.files), key=lambda f: (f.partition, f.path))),
    )


def _ends(choose: Callable[..., int], ends: list[tuple[int, int] | None]) -> tuple[int, int] | None:
    """Smallest or greatest instance and time, each by itself, over the parts that have rows."""
    known = [end for end in ends if end is not None]
    return (choose(e[0] for e in known), choose(e[1] for e in known)) if known else None
