"""How a step is run; none of it changes the model but for rounding."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass
from typing import Literal

from models.precision import Precision
from trainer.route import Mode, Travel


@dataclass(frozen=True)
class StepSettings:
    """How a step is run.

    aggregate: how ⊕ is run. travel: what of every field travels, "auto", one for all or by field name; see
        `trainer.route`. precision: of the networks' matrix products; see `models.precision`.
    """

    aggregate: Mode = "reducescatter"
    travel: Travel | Literal["auto"] | Mapping[str, Travel] = "auto"
    precision: Precision = "fp32"
