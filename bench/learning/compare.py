"""Rows of `livectr bench learning`: AUC until a number of examples, ours beside the best peer."""

from __future__ import annotations

import itertools
import statistics
from collections.abc import Callable, Mapping, Sequence
from concurrent.futures import ThreadPoolExecutor

import numpy as np
from numpy.typing import NDArray

from bench.environment import cache
from bench.learning.contestants import Kept, interpreters
from bench.learning.logs import LOGS, Log
from bench.learning.ours import scores
from bench.rows import row
from livectr.trainer.quality.metrics import auc

SEEDS, ROWS = 5, 200_000
AT = (1_000, 2_000, 5_000, 10_000, 20_000, 50_000, 100_000)
"""Examples until which AUC is taken, besides the end of the log."""
OURS = "DeepFM"
REFERENCE = "LightGBM, refit"
SHOWN = (OURS, "LR", REFERENCE, "Bayes")
"""Learners that are shown and are no peers: ours, a batch reference, and the truth."""
TOLERANCE = 0.002
"""AUC that ours may be behind the best peer."""
LOW, HIGH = 0.8, 1.25
"""Bounds of calibration in every twentieth of a log after the first."""

Scores = Mapping[str, NDArray[np.float32]]


def measured(quick: bool) -> dict[str, object]:
    """Rows, and a table of all learners for each log."""
    seeds, rows = (2, 2_000) if quick else (SEEDS, ROWS)
    programs = interpreters()
    out: list[dict[str, object]] = []
    tables = []
    kept = Kept(programs, cache() / "logs" / "scores")
    for make in LOGS:
        logs = [make(seed, rows) for seed in range(1, seeds + 1)]
        found = contests(logs, kept)
        points = [n for n in AT if n < len(logs[0])] + [len(logs[0])]
        curves = {
            name: [
                [auc_until(log, of[name], n) for n in points]
                for log, of in zip(logs, found, strict=True)
                if name in of
            ]
            for name in found[0]
        }
        out += compared(logs[0].name, points, curves)
        out += calibrated(logs, found)
        tables.append(table(logs[0].name, points, curves))
    return {"rows": out, "tables": tables}


def contests(logs: Sequence[Log], kept: Kept) -> list[dict[str, NDArray[np.float32]]]:
    """Contest of each log; the seeds are 1, 2, …"""
    with ThreadPoolExecutor(1) as pool:  # peers learn beside ours: the figures are no times
        theirs = [pool.submit(kept.scores, log, seed) for seed, log in enumerate(logs, 1)]
        each = zip(logs, itertools.count(1), theirs, strict=False)
        return [contest(log, seed, of.result) for log, seed, of in each]


def contest(log: Log, seed: int, peers: Callable[[], Scores]) -> dict[str, NDArray[np.float32]]:
    """Learner → logits of a log; "Bayes" is the truth, where it is known."""
    found = scores(log, seed) | dict(peers())
    return found | ({"Bayes": log.bayes.astype(np.float32)} if log.bayes is not None else {})


def auc_until(log: Log, logits: NDArray[np.float32], rows: int) -> float:
    """AUC of the first rows of a log."""
    return auc(logits[:rows], log.label[:rows])


Curves = Mapping[str, Sequence[Sequence[float]]]
"""Learner → AUC at each point, for each seed; some peers have the first seeds alone."""


def mean_at(curves: Curves, learner: str, point: int) -> float:
    return statistics.mean(curve[point] for curve in curves[learner])


def apart(curves: Curves, peer: str, point: int) -> list[float]:
    """AUC of ours less a peer's, for each seed of the peer."""
    return [a[point] - b[point] for a, b in zip(curves[OURS], curves[peer], strict=False)]


def compared(name: str, points: Sequence[int], curves: Curves) -> list[dict[str, object]]:
    """Ours beside the best peer at every point, on the peer's seeds; at the end ours must be ahead."""
    peers = [learner for learner in curves if learner not in SHOWN]
    rows = []
    for i, point in enumerate(points):
        best = min(peers, key=lambda peer: statistics.mean(apart(curves, peer, i)))
        gaps = apart(curves, best, i)
        theirs = mean_at(curves, best, i)
        ours = statistics.mean(curve[i] for curve in curves[OURS][: len(gaps)])
        end = point == points[-1]
        workload = f"{name}, {len(gaps)} seeds, {ours - theirs:+.4f} ± {statistics.stdev(gaps):.4f}"
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
    """AUC of every learner until every point, and a note on seeds and references."""
    lines = [
        [learner, *(f"{mean_at(curves, learner, i):.4f}" for i in range(len(points)))] for learner in curves
    ]
    header = ["learner", *(f"{n:,}" for n in points)]
    return {"title": f"AUC, {name}", "lines": [header, *lines], "note": note(curves)}


def note(curves: Curves) -> str:
    """Sentences below a table: seeds of the means, and which learner is no peer."""
    few: dict[int, list[str]] = {}
    for learner, of in curves.items():
        if len(of) < len(curves[OURS]):
            few.setdefault(len(of), []).append(learner)
    said = [f"Means of {len(curves[OURS])} seeds."]
    said += [f"Means of the first {n} seeds: {'; '.join(names)}." for n, names in few.items()]
    said += [f"{REFERENCE} learns in batches: a reference, no peer."] * (REFERENCE in curves)
    return " ".join(said)
