"""Generations that are kept for rollbacks: at most `versions`, each at least `every_s` after the last.

The newest two generations, from which a run resumes, are kept anyway and do not count. A generation that was
written while versions were held is not kept: its model was never served, and nobody would go back to it. So
what is there when a hold begins stays until it ends.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from pathlib import Path

from livectr.system.errors import CheckpointError, MismatchError
from livectr.trainer.checkpoint.manifest import Folder, Manifest, Place


@dataclass(frozen=True)
class KeepRule:
    """Rule of the generations that are kept.

    Attributes:
        versions: most generations; 0: none.
        every_s: least time between two of them, and before the first.
    """

    versions: int = 0
    every_s: float = 3600.0

    def kept(self, older: Sequence[Manifest]) -> list[Manifest]:
        """Choose among generations before the newest two, oldest first; the rest may go."""
        chosen: list[Manifest] = []
        for manifest in older:
            last_ms = chosen[-1].created_ms if chosen else manifest.began_ms
            apart = manifest.created_ms - last_ms >= self.every_s * 1000
            if manifest.created_ms and apart and not manifest.quality.get("held"):
                chosen.append(manifest)
        return chosen[-self.versions :] if self.versions else []


NOTHING_KEPT = KeepRule()


def readable(place: Place | Path) -> list[Manifest]:
    """Manifests of a checkpoint that can be read, oldest first. Their files are not looked at."""
    place = Folder(place) if isinstance(place, Path) else place
    found = []
    for generation in sorted(place.generations()):
        try:
            found.append(place.manifest(generation))
        except (CheckpointError, MismatchError, OSError):
            continue
    return found
