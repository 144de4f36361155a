"""Holds: reasons for which no version may be published. Rank 0 knows them.

A model may be unfit to score though its weights are finite (`Skipped.blind`). It is published again once a
batch is learned.
"""

from __future__ import annotations

from dataclasses import asdict, dataclass
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
        PUBLISH_HELD.labels("not_learned").set(skipped.blind)
        if self.publisher.hold is not None:
            return f"operator: {self.publisher.hold.reason}"
        if self.gate is not None and self.gate.held:
            return f"publish gate: {' and '.join(self.gate.held)}"
        if skipped.blind:
            return f"not learned: the newest {skipped.batches} batches"
        return ""

    def measured(self, held: str) -> dict[str, Any]:
        """Measures for the manifest: of the gate's newest window, `held`, and batches that were skipped."""
        skipped = {"skipped": asdict(self.step.skipped)} if self.step.skipped else {}
        return (self.gate.measured() | {"held": held} if self.gate is not None else {}) | skipped
