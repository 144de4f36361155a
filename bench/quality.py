"""One-pass AUC on planted logs: each batch is scored before it is learned, and the last half of it counts.

1 DeepFM on TorchRec's table (fused row-wise Adagrad): the same log, batches and widths, both with rates
  chosen on another seed. Ours is to reach its mean over five seeds, and ours in bf16 that of ours in fp32.
2 An asynchronous parameter server on four ranks (`bench.mesh`), each with batches of its own of the same
  size, as in the paper's Tables 5 and 6; ours trains on the same batches one after the other, and learns the
  same on any number of ranks.

A seed draws another truth and another log. The spread is the standard deviation over seeds.
"""

from __future__ import annotations

import statistics
from collections.abc import Mapping, Sequence

from bench.environment import needs_torch, python
from bench.launch import launch
from bench.one_pass import BATCHES, LOG, MODELS, SEEDS
from bench.peers.compare import PACKAGES, TORCH
from bench.peers.ours import OURS
from bench.rows import products, row

RANKS = 4
TABLE_6 = {"W&D": 1.59, "DeepFM": 0.82, "FM": 0.85}
"""DES Table 6: points of AUC that synchronous training gains."""
TOLERANCE = 0.0005
"""Share of AUC that counts as equal: bf16 beside fp32."""


def run(quick: bool = False) -> list[dict[str, object]]:
    """Rows of `livectr bench quality`. Raises ConfigError when the peers cannot be had."""
    needs_torch(TORCH)
    peers = python(PACKAGES, program="bench quality", beside_ours=True)
    seeds, batches = (2, 16) if quick else (SEEDS, BATCHES)
    sizes = str(seeds), str(batches)
    beside: dict[str, list[float]] = launch("bench.peers.one_pass", *sizes, world=1, python=peers)
    ours: dict[str, list[float]] = launch("bench.one_pass", *sizes, world=1)
    stale: dict[str, list[float]] = launch("bench.mesh.one_pass", *sizes, world=RANKS)
    return torchrec_rows(beside, batches) + mesh_rows(ours, stale, batches)


def torchrec_rows(found: Mapping[str, Sequence[float]], batches: int) -> list[dict[str, object]]:
    """Ours in each precision beside TorchRec, and the others beside fp32."""
    pairs = [(name, "TorchRec", 1.0) for name in OURS]
    pairs += [(name, "fp32", 1 - TOLERANCE) for name in OURS if name != "fp32"]
    return [
        row(
            f"one-pass AUC, DeepFM, {name}",
            _log(found[name], found[peer], batches) + products(OURS[name].settings.precision),
            "AUC",
            statistics.mean(found[name]),
            peer_name="ours, fp32" if peer in OURS else "TorchRec, fused row-wise Adagrad",
            peer=statistics.mean(found[peer]),
            goal=goal,
        )
        for name, peer, goal in pairs
    ]


def mesh_rows(
    ours: Mapping[str, Sequence[float]], stale: Mapping[str, Sequence[float]], batches: int
) -> list[dict[str, object]]:
    """Ours beside stale weights, model by model: AUC, and points (hundredths) ahead beside the paper's."""
    rows = []
    for model in MODELS:
        workload = _log(ours[model], stale[model], batches)
        mine, theirs = statistics.mean(ours[model]), statistics.mean(stale[model])
        name = f"mesh, asynchronous, {RANKS} ranks"
        rows.append(
            row(f"one-pass AUC, {model}", workload, "AUC", mine, peer_name=name, peer=theirs, goal=1.0)
        )
        if model in TABLE_6:
            rows.append(
                row(
                    f"AUC ahead of stale weights, {model}",
                    workload,
                    "points",
                    100 * (mine - theirs),
                    peer_name="DES Table 6, 20 workers",
                    peer=TABLE_6[model],
                )
            )
    return rows


def _log(ours: Sequence[float], peer: Sequence[float], batches: int) -> str:
    """Log, and spread over seeds, in words."""
    each = [100 * (a - b) for a, b in zip(ours, peer, strict=True)]
    gain = f"{statistics.mean(each):+.2f} ± {statistics.stdev(each):.2f} points"
    return (
        f"{LOG}, {batches} batches, {len(ours)} seeds, spread {statistics.stdev(ours):.4f} and "
        f"{statistics.stdev(peer):.4f}, {gain} on the same log"
    )
