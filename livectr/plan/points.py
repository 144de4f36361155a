"""Measured points of a plan: points.json, made of bench/results by `python -m bench.plan.points`."""

from __future__ import annotations

import functools
import json
from collections.abc import Mapping
from dataclasses import dataclass
from importlib import resources


@dataclass(frozen=True)
class Point:
    """Measured figure.

    Attributes:
        figure, workload: as in the results.
        value: in `unit`.
        processor, cores: of the machine.
        commit: that was measured.
        file: of bench/results.
    """

    figure: str
    workload: str
    value: float
    unit: str
    processor: str
    cores: int
    commit: str
    file: str


@functools.cache
def points() -> Mapping[str, Point]:
    """Points by name."""
    text = resources.files("livectr.plan").joinpath("points.json").read_text("utf-8")
    return {name: Point(**values) for name, values in json.loads(text).items()}


def value(name: str) -> float:
    """Value of a point. Raises KeyError without such a point."""
    return points()[name].value
