"""DeepFM training, samples/s of the whole batch, beside plain torch in the same run.

Workload P: 26 categorical fields of Zipf 1.1 to 1.3, about 1M ids in all, 13 numbers, K = 16, batch 4096, MLP
256-128. Ours keeps every id apart and grows; the peer hashes ids into as many rows as there are ids
(`bench.peer`).
"""

import statistics
import sys
import time
from collections.abc import Callable

import numpy as np
import torch

from bench.launch import answer, launch
from bench.peer import Peer
from bench.planted import Planted, pipeline
from bench.rows import row
from livectr.models import DeepFM
from livectr.trainer.comm.collectives import Collectives
from livectr.trainer.des.step import DesStep

FIELDS, DENSE, K, HIDDEN, BATCH = 26, 13, 16, (256, 128), 4096
CARDINALITY = np.geomspace(10, 300_000, FIELDS).astype(int).tolist()
WORLDS = (1, 2)


def run(quick: bool = False) -> list[dict[str, object]]:
    """Rows of `livectr bench train`."""
    rows = []
    for world in WORLDS:
        found = launch("bench.train", *["--quick"] * quick, world=world)
        ranks = f"{world} rank" + "s" * (world > 1)
        workload = f"P, {FIELDS}+{DENSE} fields, {sum(CARDINALITY):,} ids, batch {BATCH}, {ranks}"
        peer = "torch EmbeddingBag, hash-mod, sparse Adagrad" + (", DDP" if world > 1 else "")
        rows.append(
            row(
                "DeepFM training",
                workload,
                "samples/s",
                found["ours"],
                peer_name=peer,
                peer=found["peer"],
                goal=1.0,
            )
        )
        rows.append(row("bytes sent by a rank", workload, "MB/step", found["bytes"] / 1e6))
    return rows


def measure(shared: Collectives, quick: bool) -> dict[str, float]:
    """Median samples/s of ours and the peer over rounds in turns (A B A B), and bytes a step on the wire."""
    rounds, steps = (2, 5) if quick else (7, 20)
    rank, world = shared.rank, shared.world
    source, rng = Planted(CARDINALITY, DENSE), np.random.default_rng(rank)
    batches = [source.batch(rng, BATCH // world)[:2] for _ in range(steps)]
    built = pipeline(DeepFM(dim=K, hidden=HIDDEN), fields=FIELDS, dense=DENSE)
    des = DesStep(built, seed=1, collectives=shared)
    peer = Peer(rows=sum(CARDINALITY), fields=FIELDS, dense=DENSE, dim=K, hidden=HIDDEN, world=world)

    def rate(step: Callable[..., object]) -> float:
        shared.all_reduce(torch.zeros(1), "barrier")
        start = time.perf_counter()
        for features, label in batches:
            step(features, label)
        return BATCH * steps / (time.perf_counter() - start)

    rate(des.step), rate(peer.step)
    sent = sum(shared.bytes.values())
    pairs = [(rate(des.step), rate(peer.step)) for _ in range(rounds)]
    return {
        "ours": statistics.median(ours for ours, _ in pairs),
        "peer": statistics.median(other for _, other in pairs),
        "bytes": (sum(shared.bytes.values()) - sent) / (rounds * steps),
    }


def main() -> None:
    """One rank of a measurement: `OUT [--quick]`."""
    answer(lambda shared: measure(shared, "--quick" in sys.argv))


if __name__ == "__main__":
    main()
