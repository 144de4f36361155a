"""LightGBM as a reference that learns in batches: `LOG.npz SCORES.npz SEED`, in the environment of peers.txt.
Imports nothing of ours, and is deterministic: the seed is not used.

After every twentieth of the log the trees are refit on all rows so far, and score the next. Ids are
categories.
"""

import itertools
import sys

import lightgbm
import numpy as np


def refit(ids: np.ndarray, dense: np.ndarray, label: np.ndarray) -> np.ndarray:
    """Logits of boosted trees over categories and numbers; the first twentieth has its own CTR."""
    codes = np.stack([np.unique(column, return_inverse=True)[1] for column in ids.T], axis=1)
    rows = np.concatenate([codes, dense], axis=1).astype(np.float64)
    settings = {
        "objective": "binary",
        "learning_rate": 0.05,
        "num_threads": 1,
        "deterministic": True,
        "seed": 1,
        "verbosity": -1,
    }
    found = np.zeros(len(label), np.float32)
    edges = np.linspace(0, len(label), 21).astype(int)
    rate = np.clip(label[: edges[1]].mean(), 1e-6, 1 - 1e-6)
    found[: edges[1]] = np.log(rate / (1 - rate))
    for start, end in itertools.pairwise(edges[1:]):
        if 0 < label[:start].sum() < start:
            data = lightgbm.Dataset(
                rows[:start], label[:start], categorical_feature=list(range(ids.shape[1]))
            )
            model = lightgbm.train(settings, data, num_boost_round=100)
            found[start:end] = model.predict(rows[start:end], raw_score=True)
    return found


if __name__ == "__main__":
    log = np.load(sys.argv[1])
    found = {"LightGBM, refit": refit(log["ids"], log["dense"], log["label"])}
    np.savez(sys.argv[2], **found)  # type: ignore[arg-type]  # the stub takes names for flags
