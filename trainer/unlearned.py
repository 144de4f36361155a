"""End of a run that learns nothing: the gradients of batch after batch are not finite.

A row of the log with an extreme number spoils the batches that hold it. A weight that is not finite spoils
every batch, and no step can mend it.
"""

from __future__ import annotations

from livectr.system.errors import NotLearningError
from livectr.trainer.checkpoint.keeping import readable
from livectr.trainer.finite import broken_numbers
from livectr.trainer.parts import Parts

SKIPPED_IN_A_ROW = 100
"""Batches after which a run ends.

The scale of mixed precision (`torch.amp.GradScaler`, 65,536 at first) takes 16 batches in a row to fall to 1,
after which a batch that is not finite is an error elsewhere (DeepSpeed, fairseq). Here are some more: a user
whose events have an extreme number may be in many small batches.
"""


def end_if_nothing_is_learned(parts: Parts) -> None:
    """End the run if no batch has been learned for long. Collective.

    Raises:
        NotLearningError: on every rank alike; nothing more is committed. A supervisor starts the run again:
            where the newest generation is whole, a passing fault is over then.
    """
    skipped = parts.step.skipped
    if skipped < SKIPPED_IN_A_ROW:
        return
    broken = next(filter(None, parts.control.gather_json(broken_numbers(parts.step))), "")
    if broken:
        cause = f"the model holds numbers that are not finite ({broken})"
    else:
        cause = (
            "the model's numbers are finite, so look at the dense features that come (clip(x, low, high) "
            "bounds one) and at the learning rates"
        )
    raise NotLearningError(
        f"{skipped} batches in a row were not learned, since their gradients are not finite: {cause}. "
        f"Nothing of them is committed; {parts.control.broadcast_json(_way_back(parts))}"
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
