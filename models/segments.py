"""Segments of a table row: values that one optimiser learns."""

from __future__ import annotations

from dataclasses import dataclass

from livectr.models.learning import OptimiserSpec


@dataclass(frozen=True)
class SegmentSpec:
    """Segment of a table row: values with one optimiser.

    Args:
        name: name of the segment, distinct in its model.
        dim: number of float32 values.
        optimiser: optimiser that learns them.
        init_scale: a new row starts uniform in (-init_scale, init_scale).
        order: 1: the logit has the plain sum of these values over an example's keys. 2: it has FM's second
            order of them, ½ (‖Σ_f v_f‖² − Σ_f ‖v_f‖²), v_f their sum over the keys of field f. 0: neither.
    """

    name: str
    dim: int
    optimiser: OptimiserSpec
    init_scale: float = 0.0
    order: int = 0
