"""Holds: reasons for which no version may be published. Rank 0 knows them.

A model whose newest batch had gradients that are not finite may score nothing but NaN, even if its weights
are finite: they may be so large that their products are not.
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import TYPE_CHECKING, Any

from livectr.trainer.des.step import DesStep
from livectr.trainer.publish.telemetry import PUBLISH_HELD
from livectr.trainer.quality.gate import PublishGate

if TYPE_CHECKING:  # redis is imported where something is published
    from livectr.trainer.publish.publisher import Publisher


@dataclass(frozen=True)
class Holds:
    """An operator's hold of the namespace, the publish gate, and batches that are not learned.

    Attributes:
        gate: None on other ranks than 0, and where nothing is published.
    """

    publisher: Publisher | None
    gate: PublishGate | None
    step: DesStep

    def reason(self) -> str:
        """Reason for which no version may be published; "": versions may be published.

        A release by an operator is told to the gate.
        """
        if self.publisher is None:
            return ""
        if self.publisher.released() and self.gate is not None:
            self.gate.accept()
        skipped = self.step.skipped
        PUBLISH_HELD.labels("not_learned").set(bool(skipped))
        if self.publisher.hold is not None:
            return f"operator: {self.publisher.hold.reason}"
        if self.gate is not None and self.gate.held:
            return f"publish gate: {' and '.join(self.gate.held)}"
        if skipped:
            return f"not learned: the newest {skipped} batches"
        return ""

    def measured(self, held: str) -> dict[str, Any]:
        """Measures for the manifest: of the gate's newest window, `held`, and batches that were skipped."""
        skipped = {"skipped": self.step.skipped} if self.step.skipped else {}
        return (self.gate.measured() | {"held": held} if self.gate is not None else {}) | skipped
