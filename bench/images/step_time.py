"""Training step with images, and without, in turns (A B A B), and the parts of the difference.

ID fields of P's sizes and 13 numbers (`bench.peers.workloads`), K = 12, MLP 200-80; ID fields of the ad's
image and of the clicked ones are in both. A user has 7.5 examples in a batch, as in one of DICM's (§7.2,
§7.3). The parts are measured separately on the same batches; the rest of the difference is the
aggregator, with the first layer's part for images.
"""

from __future__ import annotations

import os
import sys
import tempfile
import time
from dataclasses import dataclass, replace
from functools import partial
from pathlib import Path

import numpy as np
import torch
from numpy.typing import NDArray

from bench.images.pipelines import display_ads
from bench.images.store import random_store
from bench.images.workload import I64, Ads, Batch
from bench.launch import answer, launch
from bench.peers.workloads import P
from bench.rows import products, row
from bench.turns import in_turns
from livectr.ingest.content.store import F16, ContentStore
from livectr.models.dicm import Basic
from livectr.models.precision import precision
from livectr.system.heap import tune_malloc
from livectr.trainer.comm.collectives import Collectives
from livectr.trainer.des.step import DesStep
from livectr.trainer.step_settings import Precision, StepSettings

WORLDS = (1, 2)
BASICS: dict[str, tuple[Basic, Precision]] = {
    "Embedding&MLP, fp32": ("mlp", "fp32"),
    "Embedding&MLP, bf16": ("mlp", "bf16"),
    "DIN, bf16": ("din", "bf16"),
}
"""Basic nets (DICM §7.4), and precision of products."""
MEASURED = "Embedding&MLP, fp32"
"""Model whose parts are measured."""
GOAL = 1 / 1.5
LOG = Ads(
    batch=4096,
    per_user=7.5,
    behaviors=32,
    user=P.cardinality[:16:2],
    own=(20_000, *P.cardinality[1:16:2], *P.cardinality[16:23]),
    clicked=P.cardinality[23:25],
    dense=P.dense,
    images=100_000,
    ads=20_000,
    exponent=1.1,
)
"""Its images follow Zipf's law with the exponent of P's most even field."""


@dataclass(frozen=True)
class Size:
    """Measures of a step."""

    log: Ads = LOG
    width: int = 4096
    steps: int = 3
    rounds: int = 5
    warm_up: int = 1


QUICK = Size(
    replace(LOG, batch=256, images=500, ads=200, user=(50, 8), own=(200, 20), clicked=(500,)), 64, 1, 1, 0
)


@dataclass(frozen=True)
class Found:
    """seconds: of a step, "<with|without> <basic net>"; parts: of a step of `MEASURED`; references and
    unique: images of a batch of one rank."""

    seconds: dict[str, float]
    parts: dict[str, float]
    references: float
    unique: float


def rows(quick: bool) -> list[dict[str, object]]:
    """Steps beside steps, then the parts."""
    size = QUICK if quick else Size()
    made: list[dict[str, object]] = []
    with tempfile.TemporaryDirectory(prefix="livectr-bench-") as folder:
        random_store(Path(folder), size.log.images, size.width)
        for world in WORLDS:
            reported = launch("bench.images.step_time", folder, *["--quick"] * quick, world=world)
            made += rows_of(size, world, Found(**reported))
    return made


def rows_of(size: Size, world: int, found: Found) -> list[dict[str, object]]:
    """Rows of a number of ranks."""
    log = size.log
    workload = (
        f"batch {log.batch:,}, {len(log.fields)} + {log.dense} features, {log.behaviors:g} behaviors a "
        f"sample, {found.references:,.0f} images a rank, {found.unique:,.0f} different, {world} rank"
        + "s"
        * (world > 1)
    )
    made = [
        row(f"training step with images, {basic}", workload + products(precision), "ms",
            1e3 * found.seconds[f"with {basic}"], peer_name="ID-only",
            peer=1e3 * found.seconds[f"without {basic}"], better="less", goal=GOAL)
        for basic, (_, precision) in BASICS.items()
    ]  # fmt: skip
    rest = (
        found.seconds[f"with {MEASURED}"] - found.seconds[f"without {MEASURED}"] - sum(found.parts.values())
    )
    parts = {**found.parts, "aggregator and first layer, by difference": rest}
    made += [row(f"of it: {name}", workload, "ms", 1e3 * spent) for name, spent in parts.items()]
    return made


# ── one rank ──


def step_of(
    log: Ads, width: int, images: bool, shared: Collectives, store: ContentStore, basic: str = MEASURED
) -> DesStep:
    """A rank's step; basic: of `BASICS`."""
    net, precision = BASICS[basic]
    return DesStep(
        display_ads(log, images=images, width=width, basic=net),
        seed=1,
        collectives=Collectives(shared.rank, shared.world),
        settings=StepSettings(precision=precision),
        content={"images": store} if images else {},
    )


def held(folder: Path, shared: Collectives) -> ContentStore:
    """A rank's shards of a store."""
    shards = range(shared.rank, ContentStore.open(folder, []).shards, shared.world)
    return ContentStore.open(folder, shards)


def measure(size: Size, shared: Collectives, folder: Path) -> Found:
    """Steps in turns, then their parts. Collective."""
    store = held(folder, shared)
    batches = size.log.batches(shared.rank, shared.world, size.steps)
    steps = {
        f"{'with' if images else 'without'} {basic}": step_of(
            size.log, size.width, images, shared, store, basic
        )
        for basic in BASICS
        for images in (True, False)
    }
    found = in_turns(
        {name: partial(_run, des, batches) for name, des in steps.items()}, size.rounds, size.warm_up
    )
    seconds = {name: one.seconds / size.steps for name, one in found.items()}
    ours = steps[f"with {MEASURED}"]
    swapped = ours.collectives.seconds["content"] / (size.steps * (size.rounds + size.warm_up))
    spent, references, unique = parts(ours, batches, size.rounds)
    if shared.world > 1:
        spent["vectors and gradients between ranks, with waiting"] = swapped
    return Found(seconds, spent, references, unique)


def _run(des: DesStep, batches: list[Batch]) -> None:
    for batch in batches:
        des.step(batch.features, batch.label)


class Watched:
    """A store that counts its rows and seconds."""

    def __init__(self, store: ContentStore) -> None:
        self.store, self.width, self.shards, self.shard_of = store, store.width, store.shards, store.shard_of
        self.refresh = store.refresh
        self.seconds, self.rows = 0.0, 0

    def read(self, ids: I64, out: F16 | None = None) -> tuple[F16, NDArray[np.bool_]]:
        """As the store's."""
        start = time.perf_counter()
        found = self.store.read(ids, out)
        self.seconds += time.perf_counter() - start
        self.rows += len(ids)
        return found


def parts(des: DesStep, batches: list[Batch], rounds: int) -> tuple[dict[str, float], float, float]:
    """Mean seconds of parts of a step, references and unique images of this rank. Collective."""
    ams = des.ams
    assert ams is not None
    content = ams.contents["images"]
    before = content.store
    content.store = store = Watched(before)  # type: ignore[assignment,arg-type]
    taking = forward = backward = 0.0
    references = 0
    waited = des.collectives.seconds.copy()
    for batch in batches * rounds:
        times = [time.perf_counter()]
        requested = ams.prepare(batch.features)["images"]
        features, known = requested.reading.result()
        times.append(time.perf_counter())
        with precision(des.spec.settings.precision, products=des.spec.settings.library):  # as in a step
            vectors = content.embed(features, known)
            times.append(time.perf_counter())
            vectors.backward(torch.ones_like(vectors))  # type: ignore[no-untyped-call]
            times.append(time.perf_counter())
        taking, forward, backward = (
            total + spent for total, spent in zip((taking, forward, backward), np.diff(times), strict=True)
        )
        references += sum(map(len, requested.lists.values()))
    content.store = before
    content.network.zero_grad()
    asking = sum(
        des.collectives.seconds.get(name, 0.0) - waited.get(name, 0.0)
        for name in ("content ids", "content sizes")
    )
    count = len(batches) * rounds
    found = {
        "unique images": taking - store.seconds - asking,
        "reading features": store.seconds,
        "sub-model, forward": forward,
        "sub-model, backward": backward,
    }
    if des.collectives.world > 1:
        found["ids to owners"] = asking
    return {name: spent / count for name, spent in found.items()}, references / count, store.rows / count


def main() -> None:
    """One rank: `OUT FOLDER [--quick]`."""
    torch.set_num_threads(int(os.environ["OMP_NUM_THREADS"]))
    tune_malloc()
    size = QUICK if "--quick" in sys.argv else Size()
    answer(lambda shared: measure(size, shared, Path(sys.argv[2])))


if __name__ == "__main__":
    main()
