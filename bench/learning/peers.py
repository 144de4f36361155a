"""Peers of one pass, example by example: `LOG.npz SCORES.npz SEED`, in the environment of peers.txt. Imports
nothing of ours, and needs no seed.

Vowpal Wabbit writes the prediction that precedes each update ("progressive validation"). `pairs` is `-q ::`,
all pairs of fields.
"""

import sys
import tempfile
from pathlib import Path

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
    np.savez(out, **found)  # type: ignore[arg-type]  # the stub takes names for flags


if __name__ == "__main__":
    main()
