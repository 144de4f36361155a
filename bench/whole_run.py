"""CPU time of a whole training run beside that of steps: reading, joining, extracting, measuring, too.

A run learns a stored log of `livectr logs simulate`. CPU time is that of all threads of a long run, less that
of a short run: start and compiling are left out. Steps of a known workload, in turns with the runs, tell the
machine's speed: where others share its cores, CPU time grows, too.
"""

from __future__ import annotations

import json
import os
import resource
import statistics
import subprocess
import sys
import tempfile
import time
from dataclasses import dataclass
from pathlib import Path

import torch

from bench.environment import ROOT
from bench.peers.ours import Ours, trainer
from bench.peers.workloads import Workload
from bench.rows import row
from livectr.system.children import with_parent
from livectr.trainer.comm.collectives import Collectives

PIPELINE = ROOT / "bench" / "plan" / "pipeline.py"
SIXTEEN = Workload("sixteen", (10_000,) * 16, dense=1, dim=16, hidden=(256, 128))
RATE, SHORT_S = 5000, 4
"""Impressions a second of event time, and seconds of the short log."""
WHOLE, STEPS, KEYS = "CPU of a whole run", "CPU of steps alone", "keys of an example"


@dataclass(frozen=True)
class _Ran:
    cpu_s: float
    examples: int
    keys: int


def run(quick: bool = False) -> list[dict[str, object]]:
    """Rows of `livectr bench whole-run`."""
    seconds, rounds = (8, 1) if quick else (60, 3)
    whole, steps = [], []
    with tempfile.TemporaryDirectory(prefix="livectr-bench-") as folder:
        for name, length in (("short", SHORT_S), ("long", seconds)):
            target = ["--to", f"file:{folder}/{name}", "--seconds", str(length), "--rate", str(RATE)]
            _livectr(["logs", "simulate", *target, "--fast", "--no-images"])
        _learn(Path(folder), "short")  # compiles
        for _ in range(rounds):
            short = _learn(Path(folder), "short")
            steps.append(_step_s())
            long = _learn(Path(folder), "long")
            whole.append((long.cpu_s - short.cpu_s) / (long.examples - short.examples))
    workload = f"{long.examples:,} examples of JSON, 16 fields, DeepFM 256-128, K = 16, batch 4096, 1 thread"
    return [
        row(WHOLE, workload, "µs/example", 1e6 * statistics.median(whole)),
        row(STEPS, f"{SIXTEEN}, 1 thread", "µs/example", 1e6 * statistics.median(steps)),
        row(KEYS, workload, "keys", long.keys / long.examples),
    ]


def _step_s() -> float:
    """CPU seconds of an example in steps of SIXTEEN."""
    threads = torch.get_num_threads()
    torch.set_num_threads(1)
    step, batches = trainer(SIXTEEN, Collectives(), Ours()), SIXTEEN.batches(0, 1, 4)
    for batch in batches:
        step(batch)
    start = time.process_time()
    for _ in range(5):
        for batch in batches:
            step(batch)
    spent = time.process_time() - start
    torch.set_num_threads(threads)
    return spent / (5 * len(batches) * SIXTEEN.batch)


def _learn(folder: Path, name: str) -> _Ran:
    report, before = folder / f"{name}.json", _children_s()
    source = ["--pipeline", str(PIPELINE), "--source", f"file:{folder}/{name}", "--until-end"]
    _livectr(["train", *source, "--set", "batch_ramp=0", "threads=1", "--report", str(report)])
    spent, found = _children_s() - before, json.loads(report.read_text())
    return _Ran(spent, found["examples_trained"], sum(found["field_keys"].values()))


def _livectr(arguments: list[str]) -> None:
    done = subprocess.run(
        with_parent([sys.executable, "-m", "livectr", *arguments]),
        cwd=ROOT,
        env=os.environ | {"OMP_NUM_THREADS": "1", "LIVECTR_THREADS": "1"},
        capture_output=True,
        text=True,
        check=False,
    )
    if done.returncode:
        raise RuntimeError(f"livectr {arguments[0]} ended with {done.returncode}: {done.stderr[-2000:]}")


def _children_s() -> float:
    used = resource.getrusage(resource.RUSAGE_CHILDREN)
    return used.ru_utime + used.ru_stime
