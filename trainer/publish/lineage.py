"""Lineage of a namespace: the version that Redis serves, and the numbers and row set of the next version.

All ranks have the same lineage. It needs no connection.
"""

from __future__ import annotations

from dataclasses import dataclass, replace

from livectr.store.manifest import VersionManifest
from livectr.trainer.publish.succession import Cursor
from livectr.trainer.publish.version import Pending


def row_set_name(epoch: int, number: int) -> str:
    """The row_set of the number-th complete publish of a trainer."""
    return f"{epoch}-{number}"


@dataclass
class Lineage:
    """Versions of a namespace as far as the next version depends on them.

    Attributes:
        number: highest version number that was used.
        run_id: of the run, in all of its versions.
        last: manifest of the version that is served; None before the first.
        text: of that manifest; b"" before the first.
        full: the next version must hold everything, in a fresh row set.
    """

    number: int = 0
    run_id: str = ""
    last: VersionManifest | None = None
    text: bytes = b""
    full: bool = True
    _row_sets: int = 0

    @staticmethod
    def resumed(number: int, run_id: str, text: bytes) -> Lineage:
        """Lineage of a trainer that has taken the namespace over.

        Args:
            number: highest version number that was used.
            run_id: of the run, in all of its versions.
            text: manifest of the version from which deltas resume; b"": the next version is complete.
        """
        if not text:
            return Lineage(number, run_id)
        return Lineage(number, run_id, VersionManifest.from_json(text), text, full=False)

    @property
    def base(self) -> VersionManifest | None:
        """Version that the next one extends; None: that is complete."""
        return None if self.full else self.last

    def skip_unflipped(self) -> None:
        """Let versions between the last and `number` count as published.

        Their pushes were cut off, and the first delta holds their changes.
        """
        assert self.last is not None
        skipped = range(self.last.version + 1, self.number + 1)
        self.last = replace(self.last, earlier=self.last.earlier | dict.fromkeys(skipped, ()))

    def row_set(self, epoch: int) -> str:
        """Row set of the next version, written by the trainer of an epoch."""
        base = self.base
        return row_set_name(epoch, self._row_sets) if base is None else base.row_set

    def cursor(self, step: int, epoch: int, *, begins: bool, busy: bool) -> Cursor:
        """Cursor of a checkpoint at `step`: the version that is about to begin, or the numbers that are used.

        Args:
            step: of the boundary.
            epoch: of the trainer.
            begins: a version begins at this step boundary.
            busy: a version is under way.
        """
        base = self.base
        return Cursor(
            version=self.number + (begins or busy),
            epoch=epoch,
            row_set=self.row_set(epoch) if begins else "",
            step=step,
            run_id=self.run_id,
            served=base.version if base is not None else 0,
            served_row_set=base.row_set if base is not None else "",
        )

    def begin_again(self) -> None:
        """Let the next version hold everything, in a fresh row set."""
        self.full = True
        self._row_sets += 1

    def flipped(self, version: Pending) -> None:
        """Note the version that is served from now on."""
        self.number, self.last, self.text = version.manifest.version, version.manifest, version.text
        self.full = False
