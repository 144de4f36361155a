"""Vowpal Wabbit's side of a log: its text format, and one pass over it."""

from __future__ import annotations

import sys
import time
from pathlib import Path

import numpy as np

COMMON = "--quiet --loss_function logistic -b 22"


def lines(ids: np.ndarray, dense: np.ndarray, label: np.ndarray) -> list[str]:
    """Examples in Vowpal Wabbit's text format, a namespace for each field."""
    texts = []
    for keys, values, y in zip(ids.tolist(), dense.tolist(), label.tolist(), strict=True):
        fields = " ".join(f"|{chr(97 + f) if f < 26 else chr(65 + f - 26)} {k}" for f, k in enumerate(keys))
        numbers = " |0 " + " ".join(f"i{d}:{x:.6g}" for d, x in enumerate(values)) if values else ""
        texts.append(f"{1 if y else -1} {fields}{numbers}")
    return texts


def one_pass(arguments: str, file: Path, out: Path) -> float:
    """Learn the examples of a file, writing the logit that each had before; returns seconds."""
    from vowpalwabbit import Workspace  # of the peers' environment

    began = time.perf_counter()
    Workspace(f"-d {file} -p {out} {COMMON} {arguments}").finish()
    return time.perf_counter() - began


if __name__ == "__main__":
    print(one_pass("", Path(sys.argv[1]), Path(sys.argv[2])))
