"""Figures of a plan, and warnings where it leaves what was measured."""

from __future__ import annotations

from dataclasses import dataclass


@dataclass(frozen=True)
class Figure:
    """Figure of a plan.

    Attributes:
        name: what it is.
        value: in `unit`; a text has no unit.
        unit: "bytes", "1/s", "s", …
        how: formula or assumption.
        points: names of the measured points that it rests on.
    """

    name: str
    value: float | str
    unit: str = ""
    how: str = ""
    points: tuple[str, ...] = ()


@dataclass(frozen=True)
class Beyond:
    """Size of a plan outside of what was measured.

    Attributes:
        size: its name.
        planned: value in the plan.
        measured: nearest measured value.
        factor: of the larger to the smaller.
    """

    size: str
    planned: float
    measured: float
    factor: float


def beyond(size: str, planned: float, least: float, most: float) -> list[Beyond]:
    """A warning if `planned` is outside of the measured range, else none."""
    if least <= planned <= most:
        return []
    nearest = least if planned < least else most
    factor = max(planned, nearest) / max(min(planned, nearest), 1e-12)
    return [Beyond(size, planned, nearest, factor)]
