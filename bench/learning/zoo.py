"""Every model of the zoo learns a log in one pass, with its defaults and the default batches.

The models of a log share one run: each has rows and a network of its own. DIN, DIEN and DICM read behavior
histories and pictures, which these logs do not have.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence

import numpy as np
from numpy.typing import NDArray

from bench.learning.compare import HIGH, LOW, auc_until, slices
from bench.learning.logs import Log, planted, ratings
from bench.learning.ours import scores
from bench.rows import row
from livectr.models import (
    DCN,
    DNN,
    FLEN,
    FM,
    LR,
    PNN,
    AutoInt,
    DeepFM,
    ModelConfig,
    TwoTower,
    WideDeep,
    XDeepFM,
)

FIRST = 10_000
"""Examples until which AUC is taken, besides the end of the log."""
BEHIND = 0.005
"""AUC that a model may be behind LR at the end."""


def zoo(log: Log) -> dict[str, ModelConfig]:
    """Models of all defaults; FLEN's groups and the towers are halves of a log's fields."""
    names = tuple(log.fields)
    dense = tuple(f"I{i + 1}" for i in range(log.dense.shape[1]))
    half = len(names) // 2
    return {
        "LR": LR(),
        "FM": FM(),
        "DNN": DNN(),
        "WideDeep": WideDeep(),
        "DeepFM": DeepFM(),
        "PNN": PNN(),
        "DCN": DCN(),
        "FLEN": FLEN(groups=(names[:half], names[half:])),
        "xDeepFM": XDeepFM(),
        "AutoInt": AutoInt(),
        "TwoTower": TwoTower(user=(*names[:half], *dense), item=names[half:]),
    }


def run(quick: bool = False) -> dict[str, object]:
    """Rows of `livectr bench zoo`, and a table for each log."""
    rows, tables = [], []
    given: Sequence[tuple[Callable[[int, int], Log], int, int]] = ((ratings, 1, 100_000), (planted, 2, 50_000))
    for make, seeds, size in given:
        logs = [make(seed, 2_000 if quick else size) for seed in range(1, seeds + 1)]
        found = [scores(log, seed, zoo(log)) for seed, log in enumerate(logs, 1)]
        lines = [[name, *figures(logs, [of[name] for of in found])] for name in found[0]]
        ends = {name: end for name, _, end, *_ in lines}
        for name, _, end, least, most in lines:
            workload = f"{logs[0].name}, {seeds} seeds, calibration {least:.2f} to {most:.2f}"
            one = row(f"AUC, {name}", workload, "AUC", end, peer_name="LR", peer=ends["LR"])
            sound = LOW <= least and most <= HIGH and end >= ends["LR"] - BEHIND
            rows.append(one | {"met": sound})
        header = ["model", f"AUC of {FIRST:,}", "AUC of all", "calibration, least", "most"]
        shown = [[name, *(f"{figure:.4f}" for figure in of)] for name, *of in lines]
        tables.append({"title": logs[0].name, "lines": [header, *shown]})
    return {"rows": rows, "tables": tables}


def figures(logs: Sequence[Log], found: Sequence[NDArray[np.float32]]) -> list[float]:
    """Mean AUC until `FIRST` and of all, and the least and most calibration of all twentieths after the
    first, of a model's logits f32[n] by log."""
    aucs = [
        float(np.mean([auc_until(log, z, rows) for log, z in zip(logs, found, strict=True)]))
        for rows in (FIRST, len(logs[0]))
    ]
    each = [c for log, z in zip(logs, found, strict=True) for c in slices(log, z)]
    return [*aucs, min(each), max(each)]
