"""Every model of the zoo learns a log in one pass, with its defaults and the default batches.

The models of a log share one run: each has rows and a network of its own. DIN, DIEN and DICM read behavior
histories and pictures, which these logs do not have.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from typing import NamedTuple

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


class Figures(NamedTuple):
    """Figures of a model.

    Attributes:
        first: AUC of the first `FIRST` examples.
        end: AUC of all examples.
        least: calibration (clicks promised to clicks) in the worst twentieth after the first.
        most: the same at the other end.
    """

    first: float
    end: float
    least: float
    most: float


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
    rows: list[dict[str, object]] = []
    tables = []
    given: Sequence[tuple[Callable[[int, int], Log], int, int]] = (
        (ratings, 1, 100_000),
        (planted, 2, 50_000),
    )
    for make, seeds, size in given:
        logs = [make(seed, 2_000 if quick else size) for seed in range(1, seeds + 1)]
        each = [scores(log, seed, zoo(log)) for seed, log in enumerate(logs, 1)]
        found = {name: figures(logs, [of[name] for of in each]) for name in each[0]}
        rows += compared(f"{logs[0].name}, {seeds} seeds", found)
        tables.append(table(logs[0].name, found))
    return {"rows": rows, "tables": tables}


def figures(logs: Sequence[Log], found: Sequence[NDArray[np.float32]]) -> Figures:
    """Figures of a model's logits f32[n], by log; AUCs are means over logs."""
    first, end = (
        float(np.mean([auc_until(log, z, rows) for log, z in zip(logs, found, strict=True)]))
        for rows in (FIRST, len(logs[0]))
    )
    each = [c for log, z in zip(logs, found, strict=True) for c in slices(log, z)]
    return Figures(first, end, min(each), max(each))


def compared(workload: str, found: Mapping[str, Figures]) -> list[dict[str, object]]:
    """AUC of each model beside LR. Met: not clearly behind it, and calibrated."""
    rows = []
    for name, of in found.items():
        calibration = f"calibration {of.least:.2f} to {of.most:.2f}"
        given = row(
            f"AUC, {name}", f"{workload}, {calibration}", "AUC", of.end, peer_name="LR", peer=found["LR"].end
        )
        sound = of.least >= LOW and of.most <= HIGH and of.end >= found["LR"].end - BEHIND
        rows.append(given | {"met": sound})
    return rows


def table(title: str, found: Mapping[str, Figures]) -> dict[str, object]:
    """All figures of all models."""
    header = ["model", f"AUC of the first {FIRST:,}", "AUC of all", "calibration, least", "calibration, most"]
    lines = [[name, *(f"{figure:.4f}" for figure in of)] for name, of in found.items()]
    return {"title": f"zoo, {title}", "lines": [header, *lines]}
