"""river's logistic regression with FTRL-proximal, example by example: `LOG.npz SCORES.npz`, in the
environment of peers.txt. It prints the seconds of its pass.
"""

from __future__ import annotations

import sys
import time

import numpy as np
from river import linear_model, optim

NAME = "river, FTRL"


def river_ftrl(ids: np.ndarray, dense: np.ndarray, label: np.ndarray) -> np.ndarray:
    """Logits f32[n] from before each example of ids i64[n, F] and dense f32[n, Dd] is learned."""
    model = linear_model.LogisticRegression(optim.FTRLProximal())
    found = np.empty(len(label), np.float32)
    for row, (keys, values, y) in enumerate(zip(ids.tolist(), dense.tolist(), label.tolist(), strict=True)):
        x = {(f, k): 1.0 for f, k in enumerate(keys)} | dict(enumerate(values))
        p = min(max(model.predict_proba_one(x)[True], 1e-7), 1 - 1e-7)
        found[row] = np.log(p / (1 - p))
        model.learn_one(x, bool(y))
    return found


def main() -> None:
    """Score a log."""
    log = np.load(sys.argv[1])
    began = time.perf_counter()
    found = river_ftrl(log["ids"], log["dense"], log["label"])
    print(time.perf_counter() - began)
    np.savez(sys.argv[2], **{NAME: found})  # type: ignore[arg-type]  # the stub takes names for flags


if __name__ == "__main__":
    main()
