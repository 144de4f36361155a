"""Peers' one-pass scores: `LOG.npz SCORES.npz`, in the environment of peers.txt. Imports nothing of ours.

Vowpal Wabbit writes the prediction that precedes each update ("progressive validation"). `pairs` is `-q ::`,
all pairs of fields. LightGBM is refit on all rows so far after every twentieth of the log, and scores the
next: a reference that learns in batches.
"""

import itertools
import sys
import tempfile
from pathlib import Path

import lightgbm
import numpy as np
from river import linear_model, optim
from vowpalwabbit import Workspace

COMMON = "--quiet --loss_function logistic -b 22"
VOWPAL = {
    "Vowpal Wabbit": "",
    "Vowpal Wabbit, ftrl": "--ftrl",
    "Vowpal Wabbit, adaptive": "--adaptive",
    "Vowpal Wabbit, pairs": "-q ::",
}


def lines(ids: np.ndarray, dense: np.ndarray, label: np.ndarray) -> list[str]:
    """Examples in Vowpal Wabbit's text format, a namespace for each field."""
    texts = []
    for keys, values, y in zip(ids.tolist(), dense.tolist(), label.tolist(), strict=True):
        fields = " ".join(f"|{chr(97 + f) if f < 26 else chr(65 + f - 26)} {k}" for f, k in enumerate(keys))
        numbers = " |0 " + " ".join(f"i{d}:{x:.6g}" for d, x in enumerate(values)) if values else ""
        texts.append(f"{1 if y else -1} {fields}{numbers}")
    return texts


def vowpal(arguments: str, file: Path, folder: Path) -> np.ndarray:
    """Logits of the examples of a file."""
    out = folder / "scores"
    Workspace(f"-d {file} -p {out} {COMMON} {arguments}").finish()
    return np.loadtxt(out, dtype=np.float32, ndmin=1)


def river_ftrl(ids: np.ndarray, dense: np.ndarray, label: np.ndarray) -> np.ndarray:
    """Logits of river's logistic regression with FTRL-proximal."""
    model = linear_model.LogisticRegression(optim.FTRLProximal())
    found = np.empty(len(label), np.float32)
    for row, (keys, values, y) in enumerate(zip(ids.tolist(), dense.tolist(), label.tolist(), strict=True)):
        x = {(f, k): 1.0 for f, k in enumerate(keys)} | dict(enumerate(values))
        p = min(max(model.predict_proba_one(x)[True], 1e-7), 1 - 1e-7)
        found[row] = np.log(p / (1 - p))
        model.learn_one(x, bool(y))
    return found


def lightgbm_refit(ids: np.ndarray, dense: np.ndarray, label: np.ndarray) -> np.ndarray:
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


def main() -> None:
    """Score a log with every peer."""
    log, out = np.load(sys.argv[1]), Path(sys.argv[2])
    given = log["ids"], log["dense"], log["label"]
    found = {}
    with tempfile.TemporaryDirectory() as folder:
        file = Path(folder) / "examples"
        file.write_text("\n".join(lines(*given)) + "\n")
        for name, arguments in VOWPAL.items():
            found[name] = vowpal(arguments, file, Path(folder))
    found["river, FTRL"] = river_ftrl(*given)
    found["LightGBM, refit"] = lightgbm_refit(*given)
    np.savez(out, **found)  # type: ignore[arg-type]  # the stub takes names for flags


if __name__ == "__main__":
    main()
