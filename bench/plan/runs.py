"""Measured training steps in bench/results, as runs that the model of `livectr plan` can predict."""

from __future__ import annotations

import json
import re
from collections.abc import Iterator
from dataclasses import dataclass
from functools import cache
from typing import Any

from bench.peers.workloads import P, W, Workload
from bench.scaling import HIDDEN, IDS
from bench.sections import RESULTS
from livectr.plan.model import Model, Shape, deepfm
from livectr.plan.trainer import Ids

MACHINE_CORES = 2
"""Cores of each machine in bench/results."""


@dataclass(frozen=True)
class Run:
    """Measured step.

    Attributes:
        file: of bench/results.
        name: of the contestant.
        ranks, cores: N, and the cores that each rank has; a fraction where ranks share one.
        way: field exchange; "auto": the cheapest.
        gbit: bandwidth; None: no limit.
        seconds: of a step.
        sent: bytes that a rank sends in a step; None: not measured.
        wire: bytes of a number on the wire.
    """

    file: str
    processor: str
    name: str
    model: Model
    ids: Ids
    ranks: int
    cores: float
    batch: int
    way: str
    seconds: float
    gbit: float | None = None
    sent: float | None = None
    wire: int = 4


def result(name: str) -> dict[str, Any]:
    """A file of bench/results."""
    found: dict[str, Any] = json.loads((RESULTS / f"{name}.json").read_text())
    return found


@cache
def of_workload(work: Workload) -> tuple[Model, Ids]:
    """Model and ids of a workload."""
    keys = sum(work.lengths) if work.lengths else float(work.fields)
    shape = Shape(work.fields, work.dense, work.dim, work.hidden, "adagrad", keys)
    return deepfm(shape), Ids(sum(work.cardinality), sum(work.exponent) / 2)


def scaling() -> list[Run]:
    """Steps of `livectr bench scaling`."""
    found = result("scaling")
    sent = {
        (r["figure"].split(":")[0], r["workload"]): r["ours"]
        for r in found["rows"]
        if "all bytes" in r["figure"]
    }
    runs = []
    for row in found["rows"]:
        way, _, figure = row["figure"].partition(": ")
        if figure != "step":
            continue
        n, b, f, k = map(int, re.findall(r"= (\d+)", row["workload"]))
        model, ids = of_workload(Workload("scaling", (IDS,) * f, dense=0, dim=k, hidden=HIDDEN, batch=b))
        kilobytes = sent.get((way, row["workload"]))
        runs.append(
            Run(
                "scaling", found["hardware"]["processor"], f"{row['workload']}, {way}", model, ids, n,
                min(1.0, MACHINE_CORES / n), b, way, row["ours"] / 1e3,
                sent=None if kilobytes is None else 1e3 * kilobytes,
            )
        )  # fmt: skip
    return runs


def rates() -> Iterator[Run]:
    """Steps of `train`, `peers` and `mesh`, given in samples a second; fp32 DeepFM."""
    seen = set()
    for file, figures in (
        ("train", ("DeepFM training",)),
        ("peers", ("DeepFM training, fp32",)),
        ("mesh", ("training beside a mesh",)),
    ):
        found = result(file)
        for row in found["rows"]:
            work = {"P,": P, "W,": W}.get(row["workload"].removeprefix("DeepFM, ")[:2])
            if row["figure"] not in figures or work is None or (file, row["workload"]) in seen:
                continue
            seen.add((file, row["workload"]))
            ranks = int(re.findall(r"(\d+) ranks?$", row["workload"])[0])
            model, ids = of_workload(work)
            name = f"{work.name}, {ranks} rank" + "s" * (ranks > 1)
            processor = found["hardware"]["processor"]
            yield Run(
                file, processor, name, model, ids, ranks, MACHINE_CORES / ranks, work.batch, "auto",
                work.batch / row["ours"],
            )  # fmt: skip


def network() -> Iterator[Run]:
    """Steps of `livectr bench network`: ours, at every bandwidth."""
    found = result("network")
    rows = {(r["figure"], r["workload"]): r["ours"] for r in found["rows"]}
    for work, ranks in ((P, 2), (W, 4)):
        model, ids = of_workload(work)
        workload = f"{work}, {ranks} ranks"
        for way in ("partial", "vectors", "rows", "auto", "auto, bf16"):
            busiest = 1e6 * rows[f"ours, {way}: busiest wire", workload]
            for gbit in found["settings"]["gbits"]:
                at = "no limit" if gbit is None else f"{gbit:g} Gbit/s"
                yield Run(
                    "network", found["hardware"]["processor"], f"{work.name}, {ranks} ranks, {way}, {at}",
                    model, ids, ranks, min(1.0, MACHINE_CORES / ranks), work.batch, way.split(",")[0],
                    work.batch / rows[f"ours, {way} at {at}", workload], gbit, busiest,
                    2 if "bf16" in way else 4,
                )  # fmt: skip
