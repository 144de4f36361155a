"""Generations of a checkpoint that stay: the newest two, from which a run resumes, and some older ones.

The generation from which the newest says to resume is one of them, too.
"""

from __future__ import annotations

from collections.abc import Sequence
from pathlib import Path

from livectr.system.errors import CheckpointError, MismatchError
from livectr.trainer.checkpoint.manifest import Folder, Manifest, Place
from livectr.trainer.keep_rule import KeepRule

KEPT_GENERATIONS = 2
NOTHING_KEPT = KeepRule()


class KeptGenerations:
    """Generations of a checkpoint that stay: the newest KEPT_GENERATIONS, and on rank 0 older by a rule."""

    def __init__(self, rule: KeepRule) -> None:
        self._rule = rule
        self._last: list[Manifest] = []
        self._older: list[Manifest] = []
        self._resumes: list[Manifest] = []

    def resume(self, manifest: Manifest, older: Sequence[Manifest]) -> None:
        """Begin with a generation that was restored, and those before it; rank 0 alone has these."""
        self._last, self._older = [manifest], list(older)

    def add(self, manifest: Manifest, *, choose: bool) -> None:
        """Add a new generation; choose: apply the rule to those before the newest."""
        before = [m for m in [*self._resumes, *self._last] if m.generation == manifest.resumes]
        self._last.append(manifest)
        if choose:
            self._older = self._rule.kept(
                [*self._older, *self._last[:-KEPT_GENERATIONS]], self._last[-KEPT_GENERATIONS:]
            )
        self._last = self._last[-KEPT_GENERATIONS:]
        self._resumes = [m for m in before if m not in self._last]

    @property
    def all(self) -> list[Manifest]:
        """Manifests, oldest first."""
        numbers = {m.generation: m for m in [*self._older, *self._resumes, *self._last]}
        return [numbers[number] for number in sorted(numbers)]

    @property
    def newest(self) -> Manifest | None:
        """Newest generation; None before the first."""
        return self._last[-1] if self._last else None

    @property
    def _first(self) -> Manifest | None:
        """Oldest generation from which a restart may resume."""
        return next(iter([*self._resumes, *self._last]), None)

    @property
    def examples(self) -> int:
        """Examples of the older of the newest generations: a restart resumes from at least as many."""
        return self._first.examples if self._first is not None else 0

    @property
    def version(self) -> int:
        """Version that was served, or began, when that generation was begun; 0: nothing is known."""
        cursor = self._first.cursor if self._first is not None else None
        return int(cursor.get("served") or cursor["version"]) if cursor else 0


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
