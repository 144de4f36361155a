"""Common features: extraction and training step, a user's examples in groups or every row on its own.

Workload: the view of `bench.features`, each user with a history of 50 items, DeepFM K = 16, MLP 256-128,
batch 4096. Extraction and step are timed in turns (A B A B), in a single thread a rank. "User features"
are the bytes of their keys, offsets and dense numbers for a batch, with the index of groups.
"""

import json
import statistics
import sys
import time
from collections.abc import Callable
from dataclasses import replace
from pathlib import Path
from typing import Literal

import numpy as np
import pyarrow as pa
import torch
from numpy.typing import NDArray

from bench.features import display_ads, rows_of
from bench.launch import launch
from bench.rows import row
from livectr.ingest.common_features import Common, CommonExtractor, CommonFeatures
from livectr.ingest.extract.extractor import Extractor
from livectr.ingest.pipeline import Pipeline
from livectr.ingest.plan.features import Features
from livectr.models import DeepFM
from livectr.trainer.comm.collectives import Collectives, connect
from livectr.trainer.des.step import DesStep

BATCH, HISTORY, ITEMS = 4096, 50, 100_000
PER_USER = (5.0, 2.0, 1.0)
"""Impressions of a user in a batch."""
WORLDS = (1, 2)


def run(quick: bool = False) -> list[dict[str, object]]:
    """Rows of `livectr bench common`."""
    rows = []
    for world in WORLDS:
        for found in launch("bench.common", *["--quick"] * quick, world=world, threads=1):
            ranks = f"{world} rank" + "s" * (world > 1)
            workload = f"{found['per_user']:.3g} impressions a user, batch {BATCH}, {ranks}"
            figures: list[tuple[str, str, str, Literal["more", "less"]]] = [
                ("training with common features", "examples/s", "rate", "more"),
                ("user features", "MB/batch", "user MB", "less"),
                ("bytes sent by a rank", "MB/step", "sent MB", "less"),
            ]
            for figure, unit, name, better in figures[: 3 if world > 1 else 2]:
                apart = found[f"{name} apart"]
                rows.append(
                    row(
                        figure,
                        workload,
                        unit,
                        found[name],
                        peer_name="each row apart",
                        peer=apart,
                        better=better,
                    )
                )
    return rows


def examples(
    pipeline: Pipeline, rows: int, per_user: float, seed: int
) -> tuple[pa.RecordBatch, NDArray[np.int64], NDArray[np.float32]]:
    """Root columns, users and labels of a batch: rows / per_user users, whose rows are at random places."""
    rng = np.random.default_rng(seed)
    users = round(rows / per_user)
    index = np.r_[np.arange(users), rng.integers(0, users, rows - users)].astype(np.int64)
    rng.shuffle(index)
    ids = rng.permutation(10 * users)[:users]
    columns = rows_of(pipeline, rows, seed)
    arrays = []
    for name, column in zip(columns.schema.names, columns.columns, strict=True):
        if name.startswith("recent("):
            items = rng.integers(0, ITEMS, users * HISTORY)
            offsets = np.arange(users + 1, dtype=np.int32) * HISTORY
            column = pa.ListArray.from_arrays(pa.array(offsets), pa.array(items)).take(pa.array(index))
        elif name == "impressions.user_id":
            column = pa.array(ids[index])
        elif name.startswith("users."):
            column = column.take(pa.array(index))
        arrays.append(column)
    batch = pa.RecordBatch.from_arrays(arrays, names=columns.schema.names)
    return batch, ids[index], (rng.random(rows) < 0.2).astype(np.float32)


Examples = tuple[pa.RecordBatch, NDArray[np.int64], NDArray[np.float32]]
Extract = Callable[[pa.RecordBatch, NDArray[np.int64]], Features | CommonFeatures]


def measure(shared: Collectives, quick: bool) -> list[dict[str, float]]:
    """Median examples/s, user bytes and bytes sent for each workload, in groups and apart."""
    rounds, steps = (5, 2) if quick else (25, 2)
    rank, world = shared.rank, shared.world
    pipeline = replace(display_ads(), rank=DeepFM(dim=16, hidden=(256, 128)))
    whole, common = Extractor(pipeline.plan, engine="fused"), Common.of(pipeline)
    extracts: tuple[Extract, Extract] = (
        CommonExtractor(pipeline, whole),
        lambda columns, user: whole(columns),
    )

    def rate(side: tuple[Extract, DesStep], batches: list[Examples]) -> float:
        extract, des = side
        shared.all_reduce(torch.zeros(1), "barrier")
        start = time.perf_counter()
        for columns, user, label in batches:
            des.step(extract(columns, user), label)
        return BATCH * len(batches) / (time.perf_counter() - start)

    found = []
    for per_user in PER_USER:
        batches = [examples(pipeline, BATCH // world, per_user, 100 * step + rank) for step in range(steps)]
        both = [
            (extract, DesStep(pipeline, seed=1, collectives=Collectives(rank, world))) for extract in extracts
        ]
        for side in both:
            rate(side, batches)
        rates = [[rate(side, batches) for side in both] for _ in range(rounds)]
        one = {"per_user": per_user}
        for i, suffix in enumerate(("", " apart")):
            one["rate" + suffix] = statistics.median(pair[i] for pair in rates)
            sent = sum(both[i][1].collectives.bytes.values())
            one["sent MB" + suffix] = sent / 1e6 / ((rounds + 1) * steps)
            one["user MB" + suffix] = user_bytes(extracts[i](*batches[0][:2]), common) * world / 1e6
        found.append(one)
    return found


def user_bytes(features: Features | CommonFeatures, common: Common) -> int:
    """Bytes of the users' features."""
    if isinstance(features, CommonFeatures):
        side = features.common
        return features.index.nbytes + side.keys.nbytes + side.offsets.nbytes + side.dense.nbytes
    side = features.select_fields(common.fields)
    return side.keys.nbytes + side.offsets.nbytes + side.dense[:, list(common.dense)].nbytes


def main() -> None:
    """One rank of a measurement: `OUT [--quick]`."""
    with connect() as shared:
        found = measure(shared, "--quick" in sys.argv)
        if shared.rank == 0:
            Path(sys.argv[1]).write_text(json.dumps(found))


if __name__ == "__main__":
    main()
