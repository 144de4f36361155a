"""DICM's Table 2: bytes stored and sent for a batch, all ranks together, for each way to train with images.

    worker storage   training data of a batch, as files
    server storage   features, as files, shared by all batches of a training
    communication    bytes of our collectives in a step; of images: ids, vectors and gradients or features

Training and number of images are scaled down alike: references of an example and references to an image are
as in the paper; the batch is a tenth of the paper's. The loss of every step, and the sub-model at the end,
must be equal for all three ways.

As in the paper, communication is between workers and servers. The all-reduce of the replicas of networks has
its own row: it is the same for all three ways, and does not grow with the batch.
"""

from __future__ import annotations

import functools
import sys
import tempfile
from collections.abc import Callable, Iterator
from dataclasses import dataclass, replace
from pathlib import Path

import numpy as np
import torch

from bench.images.baselines import (
    OnWorkers,
    StoreInServer,
    StoreInWorker,
    references,
    write_features,
    write_ids,
)
from bench.images.pipelines import display_ads
from bench.images.store import random_store
from bench.images.workload import CLICKED_IMAGES, IMAGE, Ads, Batch
from bench.launch import answer, launch
from bench.rows import row
from livectr.ingest.content.store import ContentStore
from livectr.system.heap import tune_malloc
from livectr.trainer.comm.collectives import Collectives
from livectr.trainer.des.step import DesStep

WORLD = 4
PAPER = Ads(
    batch=6_000,
    per_user=7.5,
    behaviors=32.6,
    user=(100_000, 8, 3, 400, 10, 6, 6, 50, 1000, 20, 100, 2000),
    own=(20_000, 5000, 3000, 1500, 24, 7, 10, 5, 300, 1000),
    clicked=(120_000, 5000, 3000),
    dense=0,
    images=120_000,
    ads=20_000,
)
BATCHES = 650
"""Sizes of the whole training: 0.12 billion images and 65,000 batches in the paper (§7.3)."""
OUT, WIDTH, HIDDEN = 12, 4096, (256, 64)
SAME = 2e-4
"""Losses and weights differ by this much at most, relatively: sums over ranks are taken in another order."""

PAPERS = {
    "store-in-worker": ("5.1G", "0", "128M", "0"),
    "store-in-server": ("134M", "30.3M", "5.1G", "5.0G"),
    "AMS": ("134M", "30.3M", "158M", "30M"),
}
"""DICM Table 2, bytes of a batch: storage of workers and of servers; communication, all and of images."""
STORAGE_GOAL, COMMUNICATION_GOAL = 31.0, 32.0


@dataclass(frozen=True)
class Size:
    """ads and features' width; batches that are trained, and batches of a whole training."""

    ads: Ads = PAPER
    width: int = WIDTH
    steps: int = 2
    batches: int = BATCHES
    world: int = WORLD


QUICK = Size(
    replace(PAPER, batch=240, images=2000, ads=500, user=(50, 8), own=(500, 20), clicked=(2000,)),
    width=64,
    steps=2,
    batches=20,
    world=2,
)


@dataclass(frozen=True)
class Cost:
    """Bytes of a batch, summed over ranks: sent for IDs, for images, for replicas."""

    ids: float
    images: float
    replicas: float
    losses: list[float]
    digest: list[float]
    """Sums of the sizes of the sub-model's parameters, and of their squares."""

    @property
    def sent(self) -> float:
        """Between workers and servers."""
        return self.ids + self.images


@dataclass(frozen=True)
class Found:
    """Result of a run. costs: by way and type of features. stored: bytes of a batch's training data without
    features, an image in a worker's data by type, and an image in the store; unique: images of a batch."""

    costs: dict[str, Cost]
    stored_ids: float
    stored_reference: dict[str, float]
    stored_image: float
    unique: float


def measured(quick: bool) -> tuple[Size, Found]:
    """Runs all three."""
    size = QUICK if quick else Size()
    with tempfile.TemporaryDirectory(prefix="livectr-bench-") as folder:
        random_store(Path(folder) / "store", size.ads.images, size.width)
        reported = launch("bench.images.table_2", folder, *["--quick"] * quick, world=size.world, threads=1)
    return size, Found(
        **reported | {"costs": {name: Cost(**cost) for name, cost in reported["costs"].items()}}
    )


@functools.cache
def stream(size: Size) -> tuple[float, float]:
    """(references of a batch, unique images of a training, by batch) of a whole training's ids."""
    rng = np.random.default_rng(size.ads.seed)
    seen = np.zeros(size.ads.images, bool)
    count = 0
    users = round(size.ads.batch / size.ads.per_user)
    for _ in range(size.batches):
        images = size.ads.image_references(rng, users, size.ads.batch)[1]
        seen[images] = True
        count += len(images)
    return count / size.batches, float(seen.sum()) / size.batches


@dataclass(frozen=True)
class Line:
    """A line of the table, bytes of a batch."""

    name: str
    worker: float
    server: float
    sent: float
    images: float


def lines(size: Size, found: Found, dtype: str) -> list[Line]:
    """Store-in-worker and store-in-server with features of `dtype`, and AMS, which keeps float16."""
    refers, unique = stream(size)
    each = found.stored_reference[dtype]
    server = unique * found.stored_image
    whole = server if dtype == "float16" else 2 * server
    worker, kept, ams = (found.costs[name] for name in (f"worker {dtype}", f"server {dtype}", "AMS"))
    return [
        Line("store-in-worker", found.stored_ids + refers * each, 0, worker.sent, worker.images),
        Line("store-in-server", found.stored_ids, whole, kept.sent, kept.images),
        Line("AMS", found.stored_ids, server, ams.sent, ams.images),
    ]


def result(quick: bool) -> tuple[list[dict[str, object]], list[dict[str, object]]]:
    """Rows, and tables in the shape of the paper's."""
    size, found = measured(quick)
    check_same(found)
    refers = stream(size)[0]
    workload = (
        f"DICM §7.3 / 10: batch {size.ads.batch}, {refers:,.0f} images a batch, {found.unique:,.0f} "
        f"different ones, of {size.ads.images:,}; {size.width}-d features, {size.world} ranks"
    )
    rows, tables = [], []
    for dtype in ("float32", "float16"):
        worker, server, ams = made = lines(size, found, dtype)
        compared: list[tuple[str, float, float, str, float]] = [
            ("stored for a batch", ams.worker + ams.server, worker.worker, "store-in-worker", STORAGE_GOAL),
            ("sent for a batch", ams.sent, server.sent, "store-in-server", COMMUNICATION_GOAL),
            ("sent for a batch, of images", ams.images, server.images, "store-in-server", 0.0),
        ]
        for figure, ours, peer, name, goal in compared:
            rows.append(
                row(f"{figure}: AMS", workload, "MB", ours / 1e6, peer_name=f"{name}, {dtype}",
                    peer=peer / 1e6, better="less", goal=goal or None)
            )  # fmt: skip
        tables.append(table(made, dtype))
    replicas = found.costs["AMS"].replicas
    rows.append(row("sent to keep replicas of networks in step, all three", workload, "MB", replicas / 1e6))
    return rows, tables


def table(made: list[Line], dtype: str) -> dict[str, object]:
    """Lines of cells: ours, and the paper's figure in brackets."""
    head = ["strategy", "storage: worker", "server", "communication: all", "image"]
    cells = [
        [
            one.name,
            *(
                f"{_short(ours)} ({papers})"
                for ours, papers in zip(
                    (one.worker, one.server, one.sent, one.images), PAPERS[one.name], strict=True
                )
            ),
        ]
        for one in made
    ]
    title = (
        f"Bytes of a batch, of a tenth of DICM's (in brackets DICM Table 2), features of the others {dtype}"
    )
    return {"title": title, "lines": [head, *cells]}


def _short(nbytes: float) -> str:
    for unit, size in (("G", 1e9), ("M", 1e6), ("k", 1e3)):
        if nbytes >= size:
            return f"{nbytes / size:.3g}{unit}"
    return f"{nbytes:.0f}"


def check_same(found: Found) -> None:
    """Raises RuntimeError when the ways have not learned the same."""
    ours = found.costs["AMS"]
    for name, cost in found.costs.items():
        for what in ("losses", "digest"):
            a, b = getattr(ours, what), getattr(cost, what)
            if not np.allclose(a, b, rtol=SAME):
                raise RuntimeError(f"{name} has not learned what AMS has: {what} {b}, not {a}")


# ── one rank ──


def contestants(size: Size, shared: Collectives, store: ContentStore) -> Iterator[tuple[str, DesStep]]:
    """Every way to train, and type of features, in a step that counts for itself."""
    pipeline = display_ads(size.ads, images=True, width=size.width)
    ways: dict[str, Callable[[DesStep, Collectives], OnWorkers] | None] = {"AMS": None}
    for dtype in ("float16", "float32"):
        for name, way in (("worker", StoreInWorker), ("server", StoreInServer)):
            ways[f"{name} {dtype}"] = lambda des, counted, way=way, dtype=dtype: way.of(  # type: ignore[misc]
                des.ams, counted, size.ads.common, dtype
            )
    for name, replaced in ways.items():
        counted = Collectives(shared.rank, shared.world)
        des = DesStep(
            pipeline,
            seed=1,
            collectives=counted,
            content={"images": store},
        )
        if replaced is not None:
            des.ams = replaced(des, counted)
        yield name, des


def train(des: DesStep, batches: list[Batch], shared: Collectives) -> Cost:
    """Learns the batches; means of all ranks' bytes. Collective."""
    losses = [des.step(batch.features, batch.label).loss for batch in batches]
    kinds = np.zeros(3)
    for operator, sent in des.collectives.bytes.items():
        kind = 1 if operator.startswith("content") else 2 if operator in ("networks", "check") else 0
        kinds[kind] += sent / len(batches)
    ids, images, replicas = np.asarray(shared.all_gather(kinds, "bench")).sum(axis=0).tolist()
    assert des.ams is not None
    weights = torch.cat([p.detach().flatten() for p in des.ams.networks["images"].parameters()]).double()
    return Cost(ids, images, replicas, losses, [float(weights.abs().sum()), float((weights**2).sum())])


def measure(size: Size, shared: Collectives, folder: Path) -> Found:
    """All ways on the same batches. Collective."""
    held = [
        s for s in range(ContentStore.open(folder / "store", []).shards) if s % shared.world == shared.rank
    ]
    own, whole = ContentStore.open(folder / "store", held), ContentStore.open(folder / "store")
    batches = size.ads.batches(shared.rank, shared.world, size.steps)
    fields = (size.ads.fields.index(CLICKED_IMAGES), size.ads.fields.index(IMAGE))
    images = [references(batch, fields, size.ads.common) for batch in batches]
    mine = folder / f"worker-{shared.rank}"
    ids = sum(write_ids(mine / str(i), batch) for i, batch in enumerate(batches))
    nbytes = dict.fromkeys(("float16", "float32"), 0.0)
    costs = {}
    for name, des in contestants(size, shared, own):
        if isinstance(des.ams, StoreInWorker):
            dtype = des.ams.dtype
            for i, refers in enumerate(images):
                file = mine / f"{i}.features.npy"
                nbytes[dtype.name] += write_features(file, refers, whole, dtype)
                des.ams.feed(file)
        costs[name] = train(des, batches, shared)
    counts = np.array([ids, sum(map(len, images)), *nbytes.values()], float)
    total = np.asarray(shared.all_gather(counts, "bench")).sum(axis=0)
    longest = max(map(len, images))
    unique = np.mean([_unique(refers, longest, shared) for refers in images])
    return Found(
        costs,
        float(total[0]) / size.steps,
        {name: float(part / total[1]) for name, part in zip(nbytes, total[2:], strict=True)},
        whole.bytes_on_disk / len(whole),
        float(unique),
    )


def _unique(images: np.ndarray, room: int, shared: Collectives) -> int:
    """Different images of all ranks' batch. Collective."""
    room = int(np.asarray(shared.all_gather(np.array([room], np.int64), "bench")).max())
    padded = np.r_[images, np.full(room - len(images), images[0])]
    return len(np.unique(shared.all_gather(padded, "bench")))


def main() -> None:
    """One rank: `OUT FOLDER [--quick]`."""
    torch.set_num_threads(1)
    tune_malloc()
    size = QUICK if "--quick" in sys.argv else Size()
    answer(lambda shared: measure(size, shared, Path(sys.argv[2])))


if __name__ == "__main__":
    main()
