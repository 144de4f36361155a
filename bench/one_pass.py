"""The logs of `bench.quality`, and ours on them: `OUT SEEDS BATCHES`."""

from __future__ import annotations

import json
import os
import sys
from collections.abc import Callable, Sequence
from dataclasses import replace
from functools import partial
from pathlib import Path

import numpy as np
import torch
from numpy.typing import NDArray

from bench.peers.workloads import Batch, Workload
from bench.planted import pipeline
from livectr.models import FM, LR, DeepFM, ModelConfig, WideDeep
from livectr.trainer.des.step import DesStep
from livectr.trainer.quality.metrics import auc

F32 = NDArray[np.float32]
LOG = Workload(
    "planted",
    tuple(np.geomspace(10, 20_000, 12).astype(int).tolist()),
    dense=4,
    dim=8,
    hidden=(64, 32),
    batch=512,
)
SEEDS, BATCHES = 5, 240
DENSE_RATE = 4e-3
"""With AdaGrad's own 0.05, the best of nine for DeepFM on the log of another seed."""
MODELS: dict[str, ModelConfig] = {
    "LR": LR(),
    "FM": FM(dim=LOG.dim),
    "W&D": WideDeep(dim=LOG.dim, hidden=LOG.hidden, dense_lr=DENSE_RATE),
    "DeepFM": DeepFM(dim=LOG.dim, hidden=LOG.hidden, dense_lr=DENSE_RATE),
}


def log(seed: int, batches: int) -> tuple[Workload, list[Batch]]:
    """The log of a seed, whole."""
    work = replace(LOG, seed=seed)
    return work, work.batches(0, 1, batches)


def one_pass(step: Callable[[Batch], F32], batches: Sequence[Batch]) -> float:
    """AUC of the last half of the logits that `step` gives before it learns a batch."""
    return late_auc([step(batch) for batch in batches], batches)


def late_auc(logits: Sequence[F32], batches: Sequence[Batch]) -> float:
    """AUC of the last half of the batches."""
    half = len(batches) // 2
    return auc(np.concatenate(logits[half:]), np.concatenate([batch.label for batch in batches[half:]]))


def _step(des: DesStep, batch: Batch) -> F32:
    return des.step(batch.features, batch.label).logits["rank"]


def main() -> None:
    """Writes model → AUC of each seed."""
    out, seeds, count = sys.argv[1:4]
    torch.set_num_threads(int(os.environ["OMP_NUM_THREADS"]))
    found: dict[str, list[float]] = {model: [] for model in MODELS}
    for seed in range(int(seeds)):
        work, batches = log(seed, int(count))
        for name, config in MODELS.items():
            built = pipeline(config, fields=work.fields, dense=work.dense)
            des = DesStep(built, seed=seed)
            found[name].append(one_pass(partial(_step, des), batches))
    Path(out).write_text(json.dumps(found))


if __name__ == "__main__":
    main()
