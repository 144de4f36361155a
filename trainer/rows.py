"""From the table rows that models ask for to the row layout that the kernels keep."""

from __future__ import annotations

from collections.abc import Sequence

from kernels import layout
from kernels.errors import ConfigError
from kernels.layout import RowLayout, Segment
from models.base import OptimiserSpec, SegmentSpec

OPTIMISERS = {kind.__name__: kind for kind in (layout.SGD, layout.AdaGrad, layout.Adam, layout.FTRL)}


def row_layout(segments: Sequence[SegmentSpec]) -> RowLayout:
    """The layout of rows with these segments; raises ConfigError for parameters an optimiser does not have."""
    return RowLayout(tuple(Segment(s.name, s.dim, optimiser(s.optimiser), s.init_scale) for s in segments))


def optimiser(spec: OptimiserSpec) -> layout.Optimiser:
    """The kernels' optimiser of a specification."""
    kind = OPTIMISERS.get(spec.name)
    if kind is None:
        raise ConfigError(f"there is no optimiser {spec.name!r}; there are {', '.join(OPTIMISERS)}")
    try:
        return kind(**dict(spec.params))
    except TypeError:
        known = ", ".join(kind.__dataclass_fields__)
        raise ConfigError(f"{spec.name} takes {known}; not {', '.join(dict(spec.params))}") from None
