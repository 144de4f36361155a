"""End of a run that learns nothing: the gradients of batch after batch are not finite.

A weight that is not finite spoils every batch, and no step can mend it. A row of the log with an extreme
number spoils only the batches that hold it: after a stretch of these the run learns again.
"""

from __future__ import annotations

import logging

from livectr.system.errors import NotLearningError
from livectr.trainer.checkpoint.keeping import readable
from livectr.trainer.des.skipped import SKIPPED_IN_A_ROW
from livectr.trainer.finite import broken_numbers
from livectr.trainer.parts import Parts

LOG = logging.getLogger(__name__)


class Unlearned:
    """Watch over the batches that are not learned.

    Args:
        parts: of the run.
    """

    def __init__(self, parts: Parts) -> None:
        self._parts = parts
        self._next = SKIPPED_IN_A_ROW

    def look(self) -> None:
        """End the run if no batch has been learned for long, and none will be. Collective.

        A block holds many batches, so that a stretch may have ended since the last look.

        Raises:
            NotLearningError: on every rank alike; nothing more is committed. A supervisor starts the run
                again: where the newest generation is whole, a passing fault is over then.
        """
        step = self._parts.step
        ended, step.ended = step.ended, []
        for stretch in ended:
            self._look(stretch.batches)
            self._next = SKIPPED_IN_A_ROW
        self._look(step.skipped.batches)

    def _look(self, skipped: int) -> None:
        if skipped < SKIPPED_IN_A_ROW:
            self._next = SKIPPED_IN_A_ROW
        if skipped < self._next:
            return
        self._next = skipped + SKIPPED_IN_A_ROW
        control = self._parts.control
        broken = next(filter(None, control.gather_json(broken_numbers(self._parts.step))), "")
        said = f"{skipped:,} batches in a row were not learned, since their gradients are not finite"
        if broken:
            way_back = control.broadcast_json(_way_back(self._parts))
            raise NotLearningError(
                f"{said}: the model holds numbers that are not finite ({broken}). Nothing of them is "
                f"committed; {way_back}"
            )
        LOG.warning(
            "%s. The model's numbers are finite, so look at the dense features that come (clip(x, low, high) "
            "bounds one) and at the learning rates",
            said,
        )


def _way_back(parts: Parts) -> str:
    """Words on the last generation that is whole."""
    kept = readable(parts.checkpoint.root) if parts.checkpoint is not None else []
    sound = [m for m in kept if m.sound and m.examples]
    if not sound:
        return (
            "no generation of a whole model is kept: lower the learning rates, and begin another checkpoint"
        )
    return (
        f"`livectr versions rollback --generation {sound[-1].generation} --and-train` goes back to the last "
        f"whole model, of {sound[-1].examples:,} examples"
    )
