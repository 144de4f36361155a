"""Marks of changes: boundaries from which the next checkpoint and the next version hold what has changed.

Tables list their changes until nothing needs them. Redis may be away for days, and a checkpoint may be far
off. Once the lists name more rows than there are, the reader of the oldest lists takes all rows the next
time, and they are freed as well.
"""

from __future__ import annotations

from dataclasses import dataclass, replace

import numpy as np

from livectr.trainer.comm.control import Control
from livectr.trainer.commit_state import CommitState
from livectr.trainer.publish.boundary import Boundary, overgrown


@dataclass(frozen=True)
class Dropped:
    """Readers whose changes were freed: their next holds all rows."""

    checkpoint: bool = False
    version: bool = False


class ChangeMarks:
    """Marks of one rank.

    Args:
        first: boundary before the first step of this process.
        saves, publishes: the run has checkpoints, has versions.

    Attributes:
        published: boundary of the version that Redis holds; None: later changes are not known any more.
    """

    def __init__(self, first: Boundary, *, saves: bool, publishes: bool) -> None:
        # Every process reads look-up tables again, so that all of their rows count as changed.
        self.published: Boundary | None = replace(first, lookup_rows=0)
        self._pushing: Boundary | None = self.published
        self._saved = first
        self._saves, self._publishes = saves, publishes

    def save(self, boundary: Boundary) -> None:
        """Note the boundary of a checkpoint that begins."""
        self._saved = boundary

    def push(self, boundary: Boundary) -> None:
        """Note the boundary of a version whose push begins."""
        self._pushing = boundary

    def flip(self) -> None:
        """Note that the version which was pushed is the one that Redis holds."""
        self.published = self._pushing

    def copy_from(self, boundary: Boundary) -> None:
        """Begin to copy all rows ahead of a version: Redis lacks what changes from here on."""
        self.published = self._pushing = boundary

    def forget(self, state: CommitState, control: Control) -> Dropped:
        """Free change lists that neither the next checkpoint nor the next version needs. Collective.

        Returns:
            Readers whose changes were freed as well, because the lists were too long.
        """
        boundary, dropped = state.boundary, Dropped()
        while True:
            held = [mark for mark in (self.published, self._pushing) if mark is not None]
            published = [boundary, *(held if self._publishes else ())]
            needed = [*published, *([self._saved] if self._saves else ())]
            for name, table in state.tables.items():
                table.forget(min(mark.tables[name] for mark in needed))
            oldest = min(needed, key=lambda mark: mark.histories)
            state.left.forget(needed, published)
            if oldest is boundary:
                return dropped
            many = overgrown(state.tables.values()) or state.left.overgrown
            if not control.gather(np.array([many])).any():
                return dropped
            if oldest is self._saved and self._saves:
                self._saved, dropped = boundary, replace(dropped, checkpoint=True)
            else:
                self.published = self._pushing = None
                dropped = replace(dropped, version=True)
