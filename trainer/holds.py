"""Holds: reasons for which no version may be published. Rank 0 knows them."""

from __future__ import annotations

from dataclasses import dataclass
from typing import TYPE_CHECKING, Any

from livectr.trainer.quality.gate import PublishGate

if TYPE_CHECKING:  # redis is imported where something is published
    from livectr.trainer.publish.publisher import Publisher


@dataclass(frozen=True)
class Holds:
    """An operator's hold of the namespace, and the publish gate.

    Attributes:
        gate: None on other ranks than 0, and where nothing is published.
    """

    publisher: Publisher | None
    gate: PublishGate | None

    def reason(self) -> str:
        """Reason for which no version may be published; "": versions may be published.

        A release by an operator is told to the gate.
        """
        if self.publisher is None:
            return ""
        if self.publisher.released() and self.gate is not None:
            self.gate.accept()
        if self.publisher.hold is not None:
            return f"operator: {self.publisher.hold.reason}"
        if self.gate is not None and self.gate.held:
            return f"publish gate: {' and '.join(self.gate.held)}"
        return ""

    def measured(self, held: str) -> dict[str, Any]:
        """Measures of the gate's newest window for the manifest, with `held`; {} without a gate."""
        return self.gate.measured() | {"held": held} if self.gate is not None else {}
