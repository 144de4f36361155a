"""The first rows of a log like Criteo's: seconds from the start of the process to its report, and examples/s.

Ours and peers learn in turn, each in a process of its own, with their defaults. Caches are warm.
"""

from __future__ import annotations

import json
import statistics
import subprocess
import sys
import tempfile
import time
from collections.abc import Callable, Sequence
from functools import partial
from pathlib import Path
from typing import NamedTuple

import numpy as np
import pyarrow as pa
import pyarrow.parquet as pq

from bench.environment import ROOT, needs_torch, python
from bench.learning.contestants import PEERS
from bench.learning.logs import DENSE, PLANTED, Log, planted
from bench.learning.vowpal import lines
from bench.peers.compare import PACKAGES, TORCH
from bench.rows import bounded, row
from bench.serving.process import environment

ROWS = (1_000, 10_000, 100_000)
ROUNDS = 3
MODELS = ("DeepFM", "LR")
VOWPAL, RIVER, TORCHREC = "Vowpal Wabbit", "river, FTRL", "TorchRec, DeepFM"
BESIDE = {"DeepFM": (VOWPAL, TORCHREC), "LR": (VOWPAL, RIVER)}
"""Peers of each model."""
SECONDS = {("DeepFM", 10_000): 4.0}
"""Goals: model and rows → most seconds to the report."""
SPEED = {"DeepFM": 10_000.0, "LR": 200_000.0}
"""Goals: model → least examples a second, in the batches of 4 of the first 10,000 rows."""
FILE = """\
from bench.planted import pipeline as planted
from livectr.models import MODEL

pipeline = planted(MODEL(), fields=FIELDS, dense=DENSE)
"""


class Run(NamedTuple):
    """Seconds of a process, and examples a second without its start."""

    seconds: float
    speed: float


def run(quick: bool = False) -> list[dict[str, object]]:
    """Rows of both models beside their peers, for each length of a log."""
    sizes, rounds = (ROWS[:2], 1) if quick else (ROWS, ROUNDS)
    asked = contestants()
    found: list[dict[str, object]] = []
    with tempfile.TemporaryDirectory() as folder:
        work = Path(folder)
        for model in MODELS:
            pipeline_file(model, work)
        for rows in sizes:
            write(planted(1, rows), work / str(rows))
        for ask in asked.values():  # fills the caches
            ask(work, sizes[0])
        for rows in sizes:
            runs: dict[str, list[Run]] = {name: [] for name in asked}
            for _ in range(rounds):
                for name, ask in asked.items():
                    runs[name].append(ask(work, rows))
            found += lines_of(rows, {name: median(each) for name, each in runs.items()})
    return found


def contestants() -> dict[str, Callable[[Path, int], Run]]:
    """Name → run of a log of some rows in a folder. Raises ConfigError when the peers cannot be had."""
    needs_torch(TORCH)
    program = "bench first-rows"
    alone = python(PEERS, program=program)
    beside_ours = python(PACKAGES, program=program, beside_ours=True)
    return {
        **{model: partial(ours, model) for model in MODELS},
        VOWPAL: partial(vowpal, alone),
        RIVER: partial(scored, alone, "river_peer"),
        TORCHREC: partial(scored, beside_ours, "torchrec_peer"),
    }


def pipeline_file(model: str, work: Path) -> Path:
    """Write the pipeline of a model; returns its file."""
    path, text = work / f"{model}.py", FILE.replace("MODEL", model)
    path.write_text(text.replace("FIELDS", str(len(PLANTED))).replace("DENSE", str(DENSE)))
    return path


def write(log: Log, folder: Path) -> None:
    """Write a log for both sides."""
    topic = folder / "planted"
    topic.mkdir(parents=True)
    columns = {"user": np.arange(len(log)), "item": np.arange(len(log)), "label": log.label, **log.fields}
    columns |= {f"I{i + 1}": column for i, column in enumerate(log.dense.T)}
    pq.write_table(pa.table(columns), topic / "00000-log.parquet")
    ids = np.stack([*log.fields.values()], axis=1)
    (folder / "examples").write_text("\n".join(lines(ids, log.dense, log.label)) + "\n")
    np.savez(folder / "log.npz", ids=ids, dense=log.dense, label=log.label)


def ours(model: str, work: Path, rows: int) -> Run:
    """One run of `livectr train`."""
    report = work / "report.json"
    source = ("--source", f"file:{work / str(rows)}", "--until-end")
    words = ("train", "--pipeline", str(work / f"{model}.py"), *source, "--report", str(report))
    seconds, _ = timed([sys.executable, "-m", "livectr", *words])
    found = json.loads(report.read_text())
    assert found["examples_trained"] == rows, f"{found['examples_trained']} of {rows} rows were learned"
    return Run(seconds, found["examples_per_second"])


def vowpal(interpreter: Path, work: Path, rows: int) -> Run:
    """One run of Vowpal Wabbit."""
    words = (str(work / str(rows) / "examples"), str(work / "scores"))
    seconds, said = timed([str(interpreter), "-m", "bench.learning.vowpal", *words])
    assert len((work / "scores").read_text().splitlines()) == rows
    return Run(seconds, rows / float(said))


def scored(interpreter: Path, program: str, work: Path, rows: int) -> Run:
    """One run of a program of `bench.learning`."""
    given, found = work / str(rows) / "log.npz", work / "scores.npz"
    words = (str(given), str(found), "1")
    seconds, said = timed([str(interpreter), "-m", f"bench.learning.{program}", *words])
    with np.load(found) as scores:
        assert [len(logits) for logits in scores.values()] == [rows]
    return Run(seconds, rows / float(said))


def timed(command: Sequence[str]) -> tuple[float, str]:
    """Seconds of a process, and what it printed."""
    began = time.monotonic()
    done = subprocess.run(
        command, cwd=ROOT, env=environment({}), check=True, stdout=subprocess.PIPE, text=True
    )
    return time.monotonic() - began, done.stdout


def median(runs: Sequence[Run]) -> Run:
    """Median of each figure."""
    return Run(*(statistics.median(figure) for figure in zip(*runs, strict=True)))


def lines_of(rows: int, runs: dict[str, Run]) -> list[dict[str, object]]:
    """Rows of a log's length: goals, then beside the peers."""
    found = []
    for model in MODELS:
        mine, workload = runs[model], f"{model}, {rows:,} rows"
        goal_s, goal = SECONDS.get((model, rows)), SPEED[model] if rows == ROWS[1] else None
        found.append(bounded("seconds to the report", workload, "s", mine.seconds, goal=goal_s))
        speed = ("examples learned a second", workload, "examples/s", mine.speed)
        found.append(bounded(*speed, goal=goal, better="more"))
        for name in BESIDE[model]:
            peer, beside = runs[name], ("seconds to the report, beside a peer", workload, "s", mine.seconds)
            found.append(row(*beside, peer_name=name, peer=peer.seconds, better="less"))
            found.append(row(f"{speed[0]}, beside a peer", *speed[1:], peer_name=name, peer=peer.speed))
    return found
