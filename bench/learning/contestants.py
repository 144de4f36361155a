"""Peers of `bench learning`: their programs and environments, and their scores, which are kept.

A log may be the same for every seed, as the ratings and the ads are, and most peers need no seed: `Kept` runs
a program once for equal logs, and once more for each seed only if the program draws from it. A second run of
the benchmark takes the scores of the first.
"""

from __future__ import annotations

import hashlib
import os
import subprocess
import sys
import tempfile
from collections.abc import Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import numpy as np
from numpy.typing import NDArray

from bench.environment import ROOT, needs_torch, python
from bench.learning.logs import Log
from bench.peers.compare import PACKAGES, TORCH

HERE = Path(__file__).parent
NEURAL = HERE / "neural.py"
PEERS = HERE / "peers.txt"
"""Packages of Vowpal Wabbit, river and LightGBM."""
Arrays = Mapping[str, NDArray[Any]]
FEW = 2
"""Seeds of the slow programs: networks, and the batch reference."""


@dataclass(frozen=True)
class Program:
    """A program of peers, called with `LOG.npz SCORES.npz SEED`; it writes the logits of each by its name.

    Attributes:
        packages: requirements file of its environment.
        helper: module of ours that the program imports.
        beside_ours: the environment has our packages, too.
        seeds: how many seeds it learns, from 1 on; None: all.
        draws: the scores depend on the seed, besides the log.
    """

    path: Path
    packages: Path
    helper: Path | None = None
    beside_ours: bool = False
    seeds: int | None = None
    draws: bool = False


PROGRAMS = (
    Program(HERE / "peers.py", PEERS, HERE / "vowpal.py"),
    Program(HERE / "torchrec_peer.py", PACKAGES, NEURAL, beside_ours=True, seeds=FEW, draws=True),
    Program(HERE / "fuxictr_peer.py", HERE / "fuxictr.txt", NEURAL, beside_ours=True, seeds=FEW, draws=True),
    Program(HERE / "refit.py", PEERS, seeds=FEW),
)


def interpreters() -> dict[Program, Path]:
    """Interpreter of each program. Raises ConfigError when the peers cannot be had."""
    needs_torch(TORCH)
    program = "bench learning"
    return {p: python(p.packages, program=program, beside_ours=p.beside_ours) for p in PROGRAMS}


class Kept:
    """Scores of programs, each run once for a log (and a seed, if it draws).

    Args:
        programs: program → interpreter.
        folder: keeps scores in files named by their digest.
    """

    def __init__(self, programs: Mapping[Program, Path], folder: Path) -> None:
        folder.mkdir(parents=True, exist_ok=True)
        self._programs, self._folder = programs, folder

    def scores(self, log: Log, seed: int) -> dict[str, NDArray[np.float32]]:
        """Peer → logits f32[n]; no peers whose program leaves out this seed."""
        ids = np.stack([*log.fields.values()], axis=1)
        arrays: Arrays = {"ids": ids, "dense": log.dense, "label": log.label}
        found: dict[str, NDArray[np.float32]] = {}
        for program, interpreter in self._programs.items():
            if program.seeds is not None and seed > program.seeds:
                continue
            out = self._folder / f"{_digest(program, arrays, seed)}.npz"
            if not out.exists():
                with tempfile.NamedTemporaryFile(suffix=".npz") as given:
                    np.savez(given, **arrays)  # type: ignore[arg-type]  # the stub takes names for flags
                    given.flush()
                    _run(program, interpreter, Path(given.name), out, seed)
            with np.load(out) as scores:
                found |= dict(scores)
        return found


def _digest(program: Program, arrays: Arrays, seed: int) -> str:
    """Digest of all that scores depend on: program with its settings, versions of its packages, log, seed."""
    sources = [program.path, program.packages, *([] if program.helper is None else [program.helper])]
    digest = hashlib.sha256(b"".join(path.read_bytes() for path in sources))
    for name, array in arrays.items():
        digest.update(f"{name} {array.shape} {array.dtype}".encode())
        digest.update(np.ascontiguousarray(array).data)
    return hashlib.sha256(digest.digest() + str(seed if program.draws else "").encode()).hexdigest()


def _run(program: Program, interpreter: Path, given: Path, out: Path, seed: int) -> None:
    """Run a program: without its folder on the path, where modules could hide others of the same name."""
    part = out.with_suffix(".part.npz")  # a program that dies leaves no scores
    command = [str(interpreter), "-P", str(program.path), str(given), str(part), str(seed)]
    environment = {**os.environ, "PYTHONPATH": str(ROOT)}
    subprocess.run(command, check=True, stdout=sys.stderr, env=environment)
    part.rename(out)
