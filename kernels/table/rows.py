"""From the table rows that models ask for to the row layout that tables keep.

`models` imports nothing of ours, so its specifications (`models.base.SegmentSpec`) are taken by shape.
Trainer and servers both lay their rows out with this.
"""

from __future__ import annotations

from collections.abc import Sequence
from typing import Protocol

from livectr.kernels.errors import ConfigError
from livectr.kernels.table import layout
from livectr.kernels.table.layout import RowLayout, Segment, Values

OPTIMISERS: dict[str, type[layout.Optimiser]] = {
    kind.__name__: kind for kind in (layout.SGD, layout.AdaGrad, layout.RowAdaGrad, layout.Adam, layout.FTRL)
}


class OptimiserLike(Protocol):
    """An optimiser by name, with the parameters that differ from its defaults."""

    @property
    def name(self) -> str: ...

    @property
    def params(self) -> tuple[tuple[str, float], ...]: ...


class SegmentLike(Protocol):
    """A stretch of a row: see `kernels.table.layout.Segment`."""

    @property
    def name(self) -> str: ...

    @property
    def dim(self) -> int: ...

    @property
    def optimiser(self) -> OptimiserLike: ...

    @property
    def init_scale(self) -> float: ...


def row_layout(segments: Sequence[SegmentLike], values: Values = "fp32") -> RowLayout:
    """The layout of rows with these segments, their values stored in that type.

    Raises ConfigError for an optimiser, or a parameter of one, that does not exist.
    """
    made = (Segment(s.name, s.dim, optimiser(s.optimiser), s.init_scale) for s in segments)
    return RowLayout(tuple(made), values)


def optimiser(spec: OptimiserLike) -> layout.Optimiser:
    """The kernels' optimiser of a specification; an `adaptive_l2` above 0 makes it Adaptive."""
    kind = OPTIMISERS.get(spec.name)
    if kind is None:
        raise ConfigError(f"there is no optimiser {spec.name!r}; there are {', '.join(OPTIMISERS)}")
    params = dict(spec.params)
    adaptive_l2 = params.pop("adaptive_l2", 0.0)
    try:
        made = kind(**params)
    except TypeError:
        known = ", ".join(kind.__dataclass_fields__)
        raise ConfigError(f"{spec.name} takes {known}; not {', '.join(params)}") from None
    try:
        return layout.Adaptive(made, adaptive_l2) if adaptive_l2 else made
    except ValueError as error:
        raise ConfigError(f"{error}: leave out adaptive_l2, or take another optimiser") from None
