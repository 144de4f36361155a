"""Bytes that cross ranks in a training step, as in DES Table 2: measured, beside the mesh strategy's formula.

In the mesh strategy (DES §4) a rank fetches, for the U unique keys of a batch, (N − 1)/N of

    LR   U (8 + 4)                  key, weight
    FM   U (8 + 4 K)                key, vector (§4.2 leaves the first order to LR)
    DNN  U (8 + 4 K) + 4 F K H₁     key, vector; the first layer

The saving compares the bytes that ⊕ was measured to send with that formula at Table 2's own numbers of unique
keys, so that both sides are of the same log; ours is FM with its first order. The second row of each pair
counts everything that a rank sends, beside the formula at the keys of our own batch: the paper's features are
on their ranks already, our keys and labels have to get there.

Table 2's figures give away K = 8 and F · H₁ = 153,600, here 600 fields and H₁ = 256. 950 keys a sample (DES
§6); Zipf's exponent is set so that a batch has 2 to 7 % more unique keys than the paper's.
"""

import sys
from dataclasses import dataclass

import numpy as np
import torch
from numpy.typing import NDArray

from bench.launch import answer, launch
from bench.planted import pipeline
from bench.rows import row
from livectr.ingest.plan.features import Features
from livectr.models import DNN, FM, LR, ModelConfig
from livectr.trainer.comm.collectives import Collectives
from livectr.trainer.des.step import DesStep
from livectr.trainer.step_settings import StepSettings

WORLD, FIELDS, SINGLE, KEYS, K, H = 4, 600, 530, 950, 8, 256
MODELS: dict[str, ModelConfig] = {"LR": LR(), "FM": FM(dim=K), "DNN": DNN(dim=K, hidden=(H, 128))}
PAPER = {
    512: {"LR": 99.769, "FM": 99.376, "DNN": 90.310},
    1024: {"LR": 99.735, "FM": 99.285, "DNN": 86.226},
    2048: {"LR": 99.696, "FM": 99.179, "DNN": 81.658},
    4096: {"LR": 99.654, "FM": 99.066, "DNN": 77.015},
    8192: {"LR": 99.607, "FM": 98.939, "DNN": 72.264},
}
"""DES Table 2: batch → saving in percent."""
AS_THE_PAPER = StepSettings(aggregate="allreduce", field_exchange="partial")
UNIQUE = {512: 147_664, 1024: 257_757, 2048: 448_814, 4096: 789_511, 8192: 1_389_353}
"""DES Table 2: batch → unique keys."""


def run(quick: bool = False) -> list[dict[str, object]]:
    """Rows of `livectr bench des-bytes`."""
    sizes = list(PAPER)[: 2 if quick else None]
    rows = []
    for found in (
        Found(**one) for one in launch("bench.des_bytes", *map(str, sizes), world=WORLD, threads=1)
    ):
        workload = f"{found.model}, batch {found.batch}, {found.unique:,} unique keys, {WORLD} ranks"
        saved = 1 - found.aggregated / mesh_bytes(found.model, UNIQUE[found.batch])
        rows.append(
            row(
                "bytes saved by ⊕ against mesh",
                workload,
                "%",
                round(100 * saved, 3),  # as many digits as Table 2 has
                peer_name="DES Table 2",
                peer=PAPER[found.batch][found.model],
                goal=1.0,
            )
        )
        rows.append(
            row(
                "all bytes sent by a rank",
                workload,
                "MB/step",
                found.sent / 1e6,
                peer_name="mesh, by formula",
                peer=mesh_bytes(found.model, found.unique) / 1e6,
                better="less",
            )
        )
    return rows


def mesh_bytes(model: str, unique: int) -> float:
    """Bytes that the mesh strategy brings to a rank for a batch with `unique` keys (DES §4.1 to §4.3)."""
    whole = {
        "LR": unique * (8 + 4),
        "FM": unique * (8 + 4 * K),
        "DNN": unique * (8 + 4 * K) + 4 * FIELDS * K * H,
    }
    return (WORLD - 1) / WORLD * whole[model]


def example_batch(rng: np.random.Generator, rows: int) -> tuple[Features, NDArray[np.float32]]:
    """`rows` samples of `KEYS` keys each: most fields have one, the last fields share the rest evenly."""
    per_field = np.r_[
        np.ones(SINGLE, np.int64), np.full(FIELDS - SINGLE, (KEYS - SINGLE) // (FIELDS - SINGLE))
    ]
    offsets = np.r_[0, np.cumsum(np.repeat(per_field, rows))].astype(np.int32)
    field = np.repeat(np.arange(FIELDS), per_field * rows)
    keys = rng.zipf(1.26, len(field)) % 1_000_000 * FIELDS + field
    dense = np.zeros((rows, 0), np.float32)
    return Features(rows, offsets, keys, dense), (rng.random(rows) < 0.2).astype(np.float32)


@dataclass(frozen=True)
class Found:
    """Bytes that rank 0 sent in a step: for ⊕, and in all."""

    model: str
    batch: int
    unique: int
    aggregated: int
    sent: int


def measure(shared: Collectives, sizes: list[int]) -> list[Found]:
    """One step of every model and batch size."""
    found = []
    for name, config in MODELS.items():
        for size in sizes:
            counted = Collectives(shared.rank, shared.world)
            built = pipeline(config, fields=FIELDS)
            des = DesStep(
                built,
                seed=1,
                collectives=counted,
                settings=AS_THE_PAPER,
            )
            features, label = example_batch(np.random.default_rng(size), size)
            unique = len(np.unique(features.keys))
            share = np.array_split(np.arange(size), shared.world)[shared.rank]
            des.step(features.take(share), label[share])
            found.append(Found(name, size, unique, counted.bytes["sum"], sum(counted.bytes.values())))
    return found


def main() -> None:
    """One rank of the measurement: `OUT BATCH…`."""
    torch.set_num_threads(1)
    answer(lambda shared: measure(shared, [int(size) for size in sys.argv[2:]]))


if __name__ == "__main__":
    main()
