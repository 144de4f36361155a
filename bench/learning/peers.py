"""Peers of one pass, example by example: `LOG.npz SCORES.npz SEED`, in the environment of peers.txt. Needs
no seed.

Vowpal Wabbit writes the prediction that precedes each update ("progressive validation"). Without arguments
its updates are adaptive, normalised and importance-invariant; `adaptive` leaves out the latter two. `ftrl`
has an α of 0.005, its default, or as named. `pairs` is `-q ::`, all pairs of fields.
"""

import sys
import tempfile
from pathlib import Path

import numpy as np

from bench.learning import river_peer
from bench.learning.vowpal import lines, one_pass

VOWPAL = {
    "Vowpal Wabbit": "",
    "Vowpal Wabbit, ftrl": "--ftrl",
    "Vowpal Wabbit, ftrl .05": "--ftrl --ftrl_alpha .05",
    "Vowpal Wabbit, ftrl .1": "--ftrl --ftrl_alpha .1",
    "Vowpal Wabbit, coin": "--coin",
    "Vowpal Wabbit, adaptive": "--adaptive",
    "Vowpal Wabbit, pairs": "-q ::",
}


def vowpal(arguments: str, file: Path, folder: Path) -> np.ndarray:
    """Logits of the examples of a file."""
    out = folder / "scores"
    one_pass(arguments, file, out)
    return np.loadtxt(out, dtype=np.float32, ndmin=1)


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
    found[river_peer.NAME] = river_peer.river_ftrl(*given)
    np.savez(out, **found)  # type: ignore[arg-type]  # the stub takes names for flags


if __name__ == "__main__":
    main()
