"""Row layouts of tables from the segments that models specify.

`models` imports nothing of ours, so its specifications (`models.segments.SegmentSpec`) are typed by
protocols. Trainer and servers both lay their rows out with this module.
"""

from __future__ import annotations

from collections.abc import Container, Sequence
from typing import Protocol

from livectr.kernels.table import layout
from livectr.kernels.table.layout import SGD, RowLayout, Segment, Values
from livectr.system.errors import ConfigError

OPTIMISERS: dict[str, type[layout.Optimiser]] = {
    kind.__name__: kind for kind in (layout.SGD, layout.AdaGrad, layout.RowAdaGrad, layout.Adam, layout.FTRL)
}


class OptimiserLike(Protocol):
    """Optimiser by name, with the parameters that differ from its defaults."""

    @property
    def name(self) -> str:
        """Class of kernels.table.layout."""

    @property
    def params(self) -> tuple[tuple[str, float], ...]:
        """Parameters that differ from the class's defaults, as (name, value)."""


class SegmentLike(Protocol):
    """Segment of a row: see `kernels.table.layout.Segment`."""

    @property
    def name(self) -> str:
        """Name of the segment: "role.name"."""

    @property
    def dim(self) -> int:
        """Values of the segment."""

    @property
    def optimiser(self) -> OptimiserLike:
        """Optimiser of these values, by name."""

    @property
    def init_scale(self) -> float:
        """Bound of new values, which are uniform in [-init_scale, init_scale]."""


def row_layout(segments: Sequence[SegmentLike], values: Values = "fp32") -> RowLayout:
    """Builds a row layout.

    Args:
        segments: segments of a row.
        values: storage type of their values.

    Raises:
        ConfigError: an optimiser or a parameter does not exist.
    """
    made = (Segment(s.name, s.dim, optimiser(s.optimiser), s.init_scale) for s in segments)
    return RowLayout(tuple(made), values)


def values_only(segments: Sequence[SegmentLike], roles: Container[str], values: Values = "fp32") -> RowLayout:
    """Builds the layout of some models' values, without optimiser state.

    Values have the trainer's type and places, so that new rows get the same initial values.

    Args:
        segments: segments of the trainer's whole row, named "role.segment".
        roles: of the models whose values are kept.
        values: storage type of the values.
    """
    kept, place = [], 0
    for s in segments:
        if s.name.partition(".")[0] in roles:
            kept.append(Segment(s.name, s.dim, SGD(), s.init_scale, place))
        place += s.dim
    return RowLayout(tuple(kept), values)


def optimiser(spec: OptimiserLike) -> layout.Optimiser:
    """Builds the kernels' optimiser of a specification; an `adaptive_l2` above 0 makes it Adaptive."""
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
