"""Growth of a step's cost with ranks N, batch B, fields F and vector length K, for every field exchange.

DeepFM with first layer H, one key in each of F fields; D = 1 + K numbers a row and S = H + 1 + K a sample.
Bytes that a rank sends for the model in a step, U unique keys of its own B / N samples (see docs/scaling.md):

    partial   8 (N − 1)/N · B · S                  partial results, and their gradients back
    vectors   8 (N − 1)/N² · B · F · D             every field's vector, and its gradient back
    rows      8 (N − 1)/N · U · D                  rows, and their gradients back

Keys, labels, scores and the network's gradients come on top: "all bytes".
"""

from __future__ import annotations

import json
import os
import statistics
import sys
import time
from collections.abc import Iterator
from dataclasses import asdict, dataclass, replace

import numpy as np
import torch

from bench.launch import answer, launch
from bench.peers.ours import Ours, trainer
from bench.peers.workloads import Batch, Workload
from bench.rows import row
from livectr.trainer.comm.collectives import Collectives
from livectr.trainer.step_settings import FIELD_EXCHANGES, FieldExchange, StepSettings

HIDDEN, IDS = (64, 32), 20_000


@dataclass(frozen=True)
class Point:
    """One measurement's sizes."""

    n: int = 2
    b: int = 2048
    f: int = 32
    k: int = 8

    def __str__(self) -> str:
        return f"N = {self.n}, B = {self.b}, F = {self.f}, K = {self.k}"

    @property
    def work(self) -> Workload:
        """Its batches."""
        return Workload("scaling", (IDS,) * self.f, dense=0, dim=self.k, hidden=HIDDEN, batch=self.b)

    def predicted(self, field_exchange: FieldExchange, unique: float) -> float:
        """Bytes that a rank sends for the model, by the formulas."""
        width, share = 1 + self.k, (self.n - 1) / self.n
        sizes = {
            "partial": self.b * (HIDDEN[0] + width),
            "vectors": self.b * self.f * width / self.n,
            "rows": unique * width,
        }
        return 8 * share * sizes[field_exchange]


BASE = Point()
AXES: dict[str, tuple[int, ...]] = {
    "n": (1, 2, 4),
    "b": (512, 1024, 2048, 4096, 8192),
    "f": (8, 16, 32, 64, 128),
    "k": (4, 8, 16, 32),
}


def points(quick: bool) -> list[Point]:
    """Base point, and points that differ from it in a single size."""
    found = [replace(BASE, **{axis: size}) for axis, sizes in AXES.items() for size in sizes]
    if quick:
        found = [replace(BASE, b=512), replace(BASE, b=1024)]
    return list(dict.fromkeys(found))


def run(quick: bool = False) -> list[dict[str, object]]:
    """Rows of `livectr bench scaling`."""
    rows: list[dict[str, object]] = []
    wanted = points(quick)
    for world in sorted({point.n for point in wanted}):
        own = [asdict(point) for point in wanted if point.n == world]
        for found in launch("bench.scaling", json.dumps(own), world=world, threads=1):
            rows += point_rows(Found(**found | {"point": Point(**found["point"])}))
    return rows


@dataclass(frozen=True)
class Found:
    """Measures of a step on rank 0: bytes and seconds by collective, seconds of the step."""

    point: Point
    field_exchange: FieldExchange
    unique: float
    bytes: dict[str, float]
    seconds: dict[str, float]
    step: float

    @property
    def model(self) -> float:
        """Bytes that the formulas speak of."""
        own = {"partial": ("sum",), "vectors": ("vectors",), "rows": ("rows",)}[self.field_exchange]
        return sum(self.bytes.get(collective, 0.0) for collective in own)


def point_rows(found: Found) -> list[dict[str, object]]:
    """Bytes beside the formula, all bytes; milliseconds of the slowest collectives and of the step."""
    workload, rows = str(found.point), []
    if found.point.n > 1:
        predicted = found.point.predicted(found.field_exchange, found.unique)
        name = "formula"
        rows += [
            row(f"{found.field_exchange}: sent for the model", workload, "kB/step", found.model / 1e3,
            peer_name=name,
                peer=predicted / 1e3),
            row(f"{found.field_exchange}: all bytes", workload, "kB/step", sum(found.bytes.values()) / 1e3),
        ]  # fmt: skip
        for collective, spent in sorted(found.seconds.items(), key=lambda item: -item[1])[:3]:
            rows.append(row(f"{found.field_exchange}: in {collective}", workload, "ms/step", 1e3 * spent))
    return [*rows, row(f"{found.field_exchange}: step", workload, "ms/step", 1e3 * found.step)]


def measure(shared: Collectives, point: Point, field_exchange: FieldExchange) -> Found:
    """Means over some steps of rank 0's bytes, and medians of its seconds."""
    steps = 5
    batches = point.work.batches(shared.rank, point.n, steps + 1)
    counted = Collectives(shared.rank, shared.world)
    step = trainer(point.work, counted, Ours(settings=StepSettings(field_exchange=field_exchange)))
    step(batches[0])
    before, waited = dict(counted.bytes), dict(counted.seconds)
    seconds = []
    for batch in batches[1:]:
        start = time.perf_counter()
        step(batch)
        seconds.append(time.perf_counter() - start)
    sent = {name: (total - before.get(name, 0)) / steps for name, total in counted.bytes.items()}
    spent = {name: (total - waited.get(name, 0.0)) / steps for name, total in counted.seconds.items()}
    unique = statistics.mean(_unique(batch) for batch in batches[1:])
    return Found(point, field_exchange, unique, sent, spent, statistics.median(seconds))


def _unique(batch: Batch) -> int:
    """U: keys of different fields are different."""
    bounds = batch.features.offsets[:: batch.features.rows]
    return sum(len(np.unique(batch.ids[a:b])) for a, b in _pairs(bounds))


def _pairs(bounds: np.ndarray[tuple[int], np.dtype[np.int32]]) -> Iterator[tuple[int, int]]:
    return zip(bounds[:-1].tolist(), bounds[1:].tolist(), strict=True)


def main() -> None:
    """One rank: `OUT POINTS`."""
    torch.set_num_threads(int(os.environ["OMP_NUM_THREADS"]))
    wanted = [Point(**one) for one in json.loads(sys.argv[2])]
    answer(
        lambda shared: [
            measure(shared, point, field_exchange)
            for point in wanted
            for field_exchange in (FIELD_EXCHANGES if point.n > 1 else FIELD_EXCHANGES[:1])
        ]
    )


if __name__ == "__main__":
    main()
