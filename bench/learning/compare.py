"""Rows of `livectr bench learning`: AUC until a number of examples, ours beside the best peer."""

from __future__ import annotations

import itertools
import statistics
import subprocess
import sys
import tempfile
from collections.abc import Callable, Mapping, Sequence
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path

import numpy as np
from numpy.typing import NDArray

from bench.environment import ROOT, python
from bench.learning.logs import LOGS, Log
from bench.learning.ours import scores
from bench.rows import row
from livectr.trainer.quality.metrics import auc

SEEDS, ROWS = 5, 200_000
AT = (1_000, 2_000, 5_000, 10_000, 20_000, 50_000, 100_000)
"""Examples until which AUC is taken, besides the end of the log."""
OURS = "DeepFM"
SHOWN = (OURS, "LR", "LightGBM, refit", "Bayes")
"""Learners that are shown and are no peers: ours, a batch reference, and the truth."""
TOLERANCE = 0.002
"""AUC that ours may be behind the best peer."""
LOW, HIGH = 0.8, 1.25
"""Bounds of calibration in every twentieth of a log after the first."""

Scores = Mapping[str, NDArray[np.float32]]


def measured(quick: bool) -> dict[str, object]:
    """Rows, and a table of all learners for each log."""
    seeds, rows = (2, 2_000) if quick else (SEEDS, ROWS)
    peers = python(Path(__file__).with_name("peers.txt"), program="bench learning")
    out: list[dict[str, object]] = []
    tables = []
    for make in LOGS:
        logs = [make(seed, rows) for seed in range(1, seeds + 1)]
        with ThreadPoolExecutor(1) as pool:  # peers learn beside ours: the figures are no times
            theirs = [pool.submit(run_peers, log, peers) for log in logs]
            each = zip(logs, itertools.count(1), theirs, strict=False)
            found = [contest(log, seed, of.result) for log, seed, of in each]
        points = [n for n in AT if n < len(logs[0])] + [len(logs[0])]
        curves = {
            name: [[auc_until(log, of[name], n) for n in points] for log, of in zip(logs, found, strict=True)]
            for name in found[0]
        }
        out += compared(logs[0].name, points, curves)
        out += calibrated(logs, found)
        tables.append(table(logs[0].name, points, curves))
    return {"rows": out, "tables": tables}


def contest(log: Log, seed: int, peers: Callable[[], Scores]) -> dict[str, NDArray[np.float32]]:
    """Learner → logits of a log; "Bayes" is the truth, where it is known."""
    found = scores(log, seed) | dict(peers())
    return found | ({"Bayes": log.bayes.astype(np.float32)} if log.bayes is not None else {})


def run_peers(log: Log, interpreter: Path) -> dict[str, NDArray[np.float32]]:
    """Peer → logits of a log."""
    with tempfile.TemporaryDirectory() as folder:
        given, out = Path(folder) / "log.npz", Path(folder) / "scores.npz"
        np.savez(given, ids=np.stack([*log.fields.values()], axis=1), dense=log.dense, label=log.label)
        program = ROOT / "bench" / "learning" / "peers.py"
        subprocess.run([str(interpreter), str(program), str(given), str(out)], check=True, stdout=sys.stderr)
        with np.load(out) as found:
            return dict(found)


def auc_until(log: Log, logits: NDArray[np.float32], rows: int) -> float:
    """AUC of the first rows of a log."""
    return auc(logits[:rows], log.label[:rows])


Curves = Mapping[str, Sequence[Sequence[float]]]
"""Learner → AUC at each point, for each seed."""


def mean_at(curves: Curves, learner: str, point: int) -> float:
    return statistics.mean(curve[point] for curve in curves[learner])


def compared(name: str, points: Sequence[int], curves: Curves) -> list[dict[str, object]]:
    """Ours beside the best peer at every point; at the end ours must be ahead."""
    peers = [learner for learner in curves if learner not in SHOWN]
    rows = []
    for i, point in enumerate(points):
        best = max(peers, key=lambda peer: mean_at(curves, peer, i))
        ours, theirs = mean_at(curves, OURS, i), mean_at(curves, best, i)
        apart = [a[i] - b[i] for a, b in zip(curves[OURS], curves[best], strict=True)]
        end = point == points[-1]
        workload = f"{name}, {len(apart)} seeds, {ours - theirs:+.4f} ± {statistics.stdev(apart):.4f}"
        figure = f"AUC of {'all' if end else 'the first'} {point:,} rows"
        found = row(figure, workload, "AUC", ours, peer_name=best, peer=theirs, goal=1.0 if end else None)
        rows.append(found | {"met": ours >= theirs - (0 if end else TOLERANCE)})
    return rows


def calibrated(logs: Sequence[Log], found: Sequence[Scores]) -> list[dict[str, object]]:
    """Calibration in the worst twentieth of a log, of all seeds; no row where clicks are too few."""
    each = [c for log, of in zip(logs, found, strict=True) for c in slices(log, of[OURS])]
    if not each:
        return []
    rows = []
    for worst, bound, of in ((min, LOW, "least"), (max, HIGH, "most")):
        value = worst(each)
        workload = f"{logs[0].name}, {len(logs)} seeds, of 19 twentieths after the first"
        one = row(f"calibration, {of}", workload, "clicks promised to clicks", value, goal=bound)
        rows.append(one | {"met": value >= bound if worst is min else value <= bound})
    return rows


def slices(log: Log, logits: NDArray[np.float32]) -> list[float]:
    """Promised clicks by clicks in each twentieth of a log after the first, where it has 10 clicks."""
    p = 1 / (1 + np.exp(-logits.astype(np.float64)))
    edges = np.linspace(0, len(log), 21).astype(int)[1:]
    parts = [slice(a, b) for a, b in itertools.pairwise(edges)]
    return [float(p[s].sum() / log.label[s].sum()) for s in parts if log.label[s].sum() >= 10]


def table(name: str, points: Sequence[int], curves: Curves) -> dict[str, object]:
    """AUC of every learner until every point."""
    lines = [
        [learner, *(f"{mean_at(curves, learner, i):.4f}" for i in range(len(points)))] for learner in curves
    ]
    return {"title": f"AUC, {name}", "lines": [["learner", *(f"{n:,}" for n in points)], *lines]}
