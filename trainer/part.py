"""Part of a run: it hangs on the stages, and owns its state, its measures and its lines of the report.

    trainer.build                  makes one ordered list of parts, and loads their states
    trainer.quality.evaluation     gives every part the examples whose labels are final
    trainer.commit_state           puts their states into the checkpoint
    trainer.report                 puts their lines into the report

A part's metrics are declared in the `telemetry` module of its folder, its settings in trainer.options.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass
from typing import Any, ClassVar, NamedTuple

import numpy as np
import numpy.typing as npt

Arrays = Mapping[str, npt.NDArray[Any]]
F32 = npt.NDArray[np.float32]
F64 = npt.NDArray[np.float64]
I64 = npt.NDArray[np.int64]


class Scaled(NamedTuple):
    """Weights f64[n] that are 1 in the mean over all examples, and over those with a click."""

    by_example: F64
    by_click: F64


@dataclass(frozen=True)
class Scored:
    """Examples with final labels, as they were scored before they were learned.

    Attributes:
        records: records[B] (trainer.quality.predictions).
        logits: role → f32[B], columns of the records.
        step: number of the step that brought them.
        champion: role of the ranking model that is published.
        bounds: int64[P + 1], bounds of the records that each of the last P steps brought; None: `step` alone
            brought them.
        scaled: weights of the examples; None: each counts once.
        at_ms: int64[B], event times at which impressions that came again would have been shown, had they
            waited for their click alone; None: the times of the records.
    """

    records: npt.NDArray[np.void]
    logits: Mapping[str, F32]
    step: int
    champion: str
    bounds: I64 | None = None
    scaled: Scaled | None = None
    at_ms: I64 | None = None

    def step_of(self, record: int) -> int:
        """Number of the step that brought a record."""
        if self.bounds is None:
            return self.step
        return self.step - len(self.bounds) + 1 + int(self.bounds.searchsorted(record, "right"))

    @property
    def served(self) -> F32:
        """Logits f32[B] of the probabilities that servers answer with: the champion's, calibrated."""
        return self.logits.get("calibrated", self.logits[self.champion])


class Part:
    """Part without state, measures and lines; a part overrides what it has.

    Attributes:
        kind: of its file in a checkpoint, which rank 0 writes; "": it has no state.
        by_step: it notes the step that brought examples.
    """

    kind: ClassVar[str] = ""
    by_step: ClassVar[bool] = False

    def state(self) -> Arrays:
        """State for a checkpoint: equal for equal states."""
        return {}

    def load(self, state: Arrays) -> None:
        """Resume from a `state`; the part is new."""

    def measure(self, scored: Scored) -> None:
        """Take examples in the global order, on rank 0."""

    def measure_again(self, again: Scored) -> None:
        """Take impressions that came again for labels beside the click, on rank 0.

        Of their records, the labels of the click are unknown.
        """

    def report(self) -> Mapping[str, Any]:
        """Fields of trainer.report.Report; a part of all ranks may be collective here."""
        return {}
