"""Final labels of targets that are learned before they are final (`Label(…, delayed=…)`).

A score of the time when an impression left for the label waits until the label's window has passed, as one of
the click does (trainer.quality.final_labels).
"""

from __future__ import annotations

from collections.abc import Iterable, Iterator, Sequence

import numpy as np
import numpy.typing as npt

from livectr.trainer.part import I64, Arrays, Part
from livectr.trainer.quality.final_labels import FinalLabels
from livectr.trainer.quality.predictions import Records
from livectr.trainer.setup import Setup


class LateLabels(Part):
    """Scores that wait for final labels, by target. Rank 0 holds it.

    Args:
        windows: role of a target → window of its label in milliseconds.
        roles: models that score.
        weighted: examples have weights.
        worths: names of measured worths (`Worths.measured`).
    """

    kind = "late_labels"

    def __init__(
        self, windows: dict[str, int], roles: Iterable[str], *, weighted: bool, worths: Sequence[str] = ()
    ) -> None:
        self.windows, every = windows, list(roles)
        self._of = {
            role: FinalLabels(ms, every, weighted=weighted, worths=worths) for role, ms in windows.items()
        }

    @staticmethod
    def of(setup: Setup, roles: Iterable[str]) -> LateLabels | None:
        """Labels of a run on rank 0; None where each is final when it is learned, and on other ranks."""
        pipeline = setup.pipeline
        windows = {label.name: label.window_ms for label in pipeline.log.late_labels}
        if setup.rank != 0 or not windows:
            return None
        by_role = {target.role: windows[target.name] for target in pipeline.targets if target.name in windows}
        worths = () if pipeline.worths is None else pipeline.worths.measured
        return LateLabels(by_role, roles, weighted=pipeline.example_weights is not None, worths=worths)

    def add(self, role: str, scored: Records, late: npt.NDArray[np.bool_], order: I64) -> Records:
        """Add impressions that left for a target's label; returns those whose windows have passed."""
        return self._of[role].add(scored, late, order)

    def finish(self) -> Iterator[tuple[str, Records]]:
        """All that wait, by target."""
        for role, labels in self._of.items():
            yield role, labels.finish()

    def state(self) -> Arrays:
        """State for a checkpoint: equal for equal states."""
        return {
            f"{role}/{name}": array
            for role, labels in self._of.items()
            for name, array in labels.state().items()
        }

    def load(self, state: Arrays) -> None:
        """Resume from a `state`; a target that it lacks begins anew."""
        for role, labels in self._of.items():
            begin = f"{role}/"
            own = {name.removeprefix(begin): a for name, a in state.items() if name.startswith(begin)}
            if own:
                labels.load(own)
