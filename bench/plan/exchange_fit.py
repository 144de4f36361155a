"""Fit of the field exchange's work (`trainer.placement.exchange_cost.WORK`) to measured steps.

Fitted are the steps of `livectr bench scaling` on two ranks. What every exchange costs alike is the mean of a
point's exchanges: only differences from it are fitted, relative to the point's mean.
"""

from __future__ import annotations

from dataclasses import astuple, fields
from functools import cache

import numpy as np

from bench.plan.fit import MOST_RANKS
from bench.plan.runs import Run, scaling
from livectr.system.errors import InternalError
from livectr.trainer.placement.exchange_cost import Work


def contests() -> dict[str, list[Run]]:
    """Point → its steps with each exchange."""
    found: dict[str, list[Run]] = {}
    for run in scaling():
        if 1 < run.ranks <= MOST_RANKS:
            found.setdefault(run.name.rpartition(",")[0], []).append(run)
    return found


def seconds(run: Run, work: Work) -> float:
    """Seconds that an exchange costs a rank, with the bytes that it has sent."""
    return float(np.dot(_sizes(run), astuple(work)))


@cache
def fit() -> Work:
    """Seconds of the work, to three digits.

    Raises:
        InternalError: one of them is not above 0.
    """
    rows, rests = [], []
    for runs in contests().values():
        sizes, steps = np.array([_sizes(run) for run in runs]), np.array([run.seconds for run in runs])
        rows.append((sizes - sizes.mean(axis=0)) / steps.mean())
        rests.append(steps / steps.mean() - 1)
    matrix = np.concatenate(rows)
    scale = abs(matrix).max(axis=0)
    found = np.linalg.lstsq(matrix / scale, np.concatenate(rests), rcond=None)[0] / scale
    names = [field.name for field in fields(Work)]
    if (found <= 0).any():
        raise InternalError(
            f"bench.plan.exchange_fit: {dict(zip(names, found, strict=True))} are not all above 0"
        )
    return Work(*(float(f"{x:.3g}") for x in found))


def _sizes(run: Run) -> list[float]:
    """Factors of `Work` in a step's seconds."""
    own = run.batch / run.ranks
    return [
        run.batch * run.model.partial if run.way == "partial" else 0.0,
        own * run.model.fields * run.model.row.dim if run.way != "partial" else 0.0,
        own * run.model.keys if run.way == "rows" else 0.0,
        run.sent or 0.0,
    ]
