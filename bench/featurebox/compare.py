"""Extraction beside Polars and PySpark, the way from logs to a model beside a staged pipeline, and memory."""

from __future__ import annotations

import hashlib
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
from typing import Any

from bench.environment import ROOT, cache
from bench.featurebox import peers, schema, view
from bench.featurebox.equal import differences
from bench.featurebox.extracted import pipeline as extracted_pipeline
from bench.featurebox.ours import BATCH, first
from bench.featurebox.pipeline import pipeline
from bench.rows import row
from livectr.ingest.extract.extractor import Extractor

Rows = list[dict[str, object]]
GOAL_POLARS, GOAL_SPARK = 3.0, 15.0
GOAL_END_TO_END = 15.0
"""FeatureBox's best against its staged baseline is 10.19 (§6)."""
GOAL_FLAT = 0.95
"""Resident memory in the first quarter, as a share of that in the last."""


@dataclass(frozen=True)
class Sizes:
    """Rows of each comparison, and rounds in turns (A B A B)."""

    memory: int
    polars: int
    spark: int
    staged: int
    equal: int
    rounds: int


FULL = Sizes(memory=10_000_000, polars=1_000_000, spark=250_000, staged=250_000, equal=20_000, rounds=3)
QUICK = Sizes(memory=50_000, polars=50_000, spark=20_000, staged=20_000, equal=2_000, rounds=1)


def rows(quick: bool) -> Rows:
    """Every row. The logs lie in the cache folder, written once."""
    sizes = QUICK if quick else FULL
    cores = min(2, len(os.sched_getaffinity(0)))
    folders = {count: _log(count) for count in {sizes.memory, sizes.polars, sizes.spark, sizes.staged}}
    with tempfile.TemporaryDirectory(prefix="livectr-bench-") as scratch:
        check(folders[sizes.polars], sizes.equal, Path(scratch), cores)
        found = extraction(folders, sizes, cores) + launches()
        found += end_to_end(folders[sizes.staged], sizes.staged, Path(scratch), cores)
    return found + memory(folders[sizes.memory], sizes.memory, cores, goal=not quick)


def _log(count: int) -> str:
    sources = [Path(module.__file__ or "").read_bytes() for module in (schema, view)]
    folder = cache() / "featurebox" / f"{count}-{hashlib.sha256(b''.join(sources)).hexdigest()[:12]}"
    view.write(folder, count)
    return str(folder)


def check(folder: str, count: int, scratch: Path, cores: int) -> None:
    """RuntimeError unless both peers' features of the first rows are ours."""
    ours = first(pipeline, folder, count)
    for peer in ("polars_peer", "spark_peer"):
        values = scratch / f"{peer}.parquet"
        peers.run(peer, folder, "--rows", str(count), "--values", str(values), cores=cores)
        if found := differences(pipeline.plan, ours, values):
            raise RuntimeError(f"{peer} computes other features: {'; '.join(found[:10])}")


def extraction(folders: dict[int, str], sizes: Sizes, cores: int) -> Rows:
    """Rows per second from Parquet files to features that are dropped, process start left out."""
    found: Rows = []
    for name, count, goal in (("polars", sizes.polars, GOAL_POLARS), ("spark", sizes.spark, GOAL_SPARK)):
        ours, peer, version = [], [], ""
        for _ in range(sizes.rounds):
            ours.append(count / _ours(folders[count], cores)["seconds"])
            theirs = peers.run(f"{name}_peer", folders[count], cores=cores)
            peer.append(count / theirs["seconds"])
            version = theirs["version"]
        kind = {"polars": "Polars {}, lazy, streaming", "spark": "PySpark {}, local"}[name]
        found.append(
            row(
                "extraction: Parquet → 5 look-ups → 200 features",
                f"{count:,} rows, {cores} cores, equal on {sizes.equal:,} rows",
                "rows/s",
                statistics.median(ours),
                peer_name=kind.format(version),
                peer=statistics.median(peer),
                goal=goal,
            )
        )
    return found


def _ours(folder: str, cores: int) -> dict[str, Any]:
    done = subprocess.run(
        [sys.executable, "-m", "bench.featurebox.ours", folder],
        cwd=ROOT,
        env=_threads(cores),
        stdout=subprocess.PIPE,
        text=True,
        check=True,
    )
    found: dict[str, Any] = json.loads(done.stdout)
    return found


def _threads(cores: int) -> dict[str, str]:
    return os.environ | {"LIVECTR_THREADS": str(cores), "OMP_NUM_THREADS": str(cores)}


def launches() -> Rows:
    """Kernels of a batch."""
    plan = pipeline.plan
    return [
        row(
            "launches per batch",
            f"{len(plan.sparse) + len(plan.dense)} features",
            "launches",
            len(plan.layers) - 1,
            peer_name="one per operator",
            peer=sum(not node.is_root for node in plan.nodes),
            better="less",
        )
    ]


def end_to_end(folder: str, count: int, scratch: Path, cores: int) -> Rows:
    """Seconds from raw logs to a trained model, processes' starts included, and bytes in between.

    Our bytes are those that the trainer writes beyond a run whose features come from files.
    """
    extracted = scratch / "stages"
    for built in (pipeline, extracted_pipeline):
        Extractor(built.plan, engine="fused")
    # the first run compiles kernels and modules, which an installation has
    _train("pipeline", _log(QUICK.staged), cores, keep_bytecode=True)
    ours, written = _train("pipeline", folder, cores)
    start = time.perf_counter()
    peers.run("spark_peer", folder, "--stages", str(extracted), cores=cores)
    staged = time.perf_counter() - start
    training, trainers_own = _train("extracted", str(extracted), cores)
    between = sum(file.stat().st_size for file in extracted.rglob("*") if file.is_file())
    beyond = round(max(0, written - trainers_own) / count)
    name = "PySpark local: clean, join, extract, each to Parquet; then the same trainer"
    workload = f"{count:,} rows, {cores} cores, logistic regression of 200 features"
    return [
        row(
            "end to end: logs → trained model",
            workload,
            "s",
            ours,
            peer_name=name,
            peer=staged + training,
            better="less",
            goal=GOAL_END_TO_END,
        ),
        row("intermediate files, beside the trainer's own log of predictions", workload, "bytes/row", beyond)
        | dict(peer_name=name, peer=round(between / count), goal=0, met=beyond == 0),
    ]


def _train(module: str, folder: str, cores: int, *, keep_bytecode: bool = False) -> tuple[float, int]:
    """(seconds, bytes that the process wrote to disk) of `livectr train`; it may keep compiled modules."""
    start, before = time.perf_counter(), resource.getrusage(resource.RUSAGE_CHILDREN).ru_oublock
    command = [sys.executable, "-m", "livectr", "train", "--pipeline", f"bench/featurebox/{module}.py"]
    subprocess.run(
        [*command, "--source", f"file:{folder}", "--until-end", "--set", "batch_ramp=0"],
        cwd=ROOT,
        env=_threads(cores) | {"PYTHONDONTWRITEBYTECODE": "" if keep_bytecode else "1"},
        check=True,
        stdout=subprocess.DEVNULL,
    )
    written = resource.getrusage(resource.RUSAGE_CHILDREN).ru_oublock - before
    return time.perf_counter() - start, 512 * written


def memory(folder: str, count: int, cores: int, *, goal: bool) -> Rows:
    """Resident memory over a long log."""
    found = _ours(folder, cores)
    return [
        row(
            "resident memory of extraction, last quarter of the log",
            f"{count:,} rows in {found['seconds']:.0f} s; a batch is {BATCH} rows × "
            f"({found['row_bytes']:.0f} B in + {found['feature_bytes']:.0f} B of features)",
            "MiB",
            found["last_quarter_mib"],
            peer_name="the same run's first quarter",
            peer=found["first_quarter_mib"],
            better="less",
            goal=GOAL_FLAT if goal else None,
        )
    ]
