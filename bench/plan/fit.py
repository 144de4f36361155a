"""Fit of the plan's trainer to measured steps: waits, and core-seconds of a key, value and product.

Fitted are the steps of `scaling` on one and two ranks, and of `peers` on one rank, all on CPUs of one name.
Relative errors are least; all other runs are left to judge the fit (`bench.plan.check`).
"""

from __future__ import annotations

from functools import cache

import numpy as np

from bench.plan.runs import Run, rates, scaling
from livectr.system.errors import InternalError

NAMES = ("wait_s", "key_s", "value_s", "mac_s")
MOST_RANKS = 2
"""Ranks of a fitted run: each has a core to itself."""


def fitted_runs() -> list[Run]:
    """Runs that the fit uses."""
    return [run for run in scaling() if run.ranks <= MOST_RANKS] + [
        run for run in rates() if run.file == "peers" and run.ranks == 1
    ]


@cache
def fit() -> tuple[dict[str, float], float]:
    """Coefficients, to three digits, and the median of the relative errors.

    Raises:
        InternalError: a coefficient is not above 0.
    """
    runs = fitted_runs()
    matrix = np.array([_sizes(run) for run in runs])
    seconds = np.array([run.seconds for run in runs])
    found = np.linalg.lstsq(matrix / seconds[:, None], np.ones(len(runs)), rcond=None)[0]
    if (found <= 0).any():
        raise InternalError(f"bench.plan.fit: {dict(zip(NAMES, found, strict=True))} are not all above 0")
    rounded = np.array([float(f"{x:.3g}") for x in found])
    errors = abs(matrix @ rounded / seconds - 1)
    return dict(zip(NAMES, rounded.tolist(), strict=True)), float(np.median(errors))


def _sizes(run: Run) -> list[float]:
    """Factors of the coefficients in a step's seconds."""
    own = run.batch / run.ranks / run.cores
    model = run.model
    sizes = (model.keys, model.fields * model.row.dim, model.parameters)
    return [float(run.ranks > 1), *(own * size for size in sizes)]
