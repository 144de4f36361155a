"""One rank of test_split.py: models on placements that are not f mod N, one of them with tables split by key.

Run by `run_ranks`; writes OUT/<model>.<way>.<placement>.rank<r>.safetensors as des_worker does.
"""

from pathlib import Path

import torch

from livectr.trainer.comm.collectives import Collectives, connect
from livectr.trainer.placement.placement import FieldPlacement, place
from tests.trainer.des_worker import train

TABLES = ("C1", "C2", "C3", "C4", "C5", "C2")
SPLIT = frozenset({"C1", "C2"})
"""C2 is C6's table, too."""
CASES = [
    ("DeepFM", "auto", "elsewhere"),
    ("DeepFM", "allreduce", "elsewhere"),
    ("DeepFM", "partial", "split"),
    ("DeepFM", "vectors", "split"),
    ("xDeepFM", "auto", "split"),
    ("both", "rows", "split"),
    ("both", "mixed", "split"),
    ("both, gathered", "partial", "split"),
]
"""Model, exchange, placement."""


def placed(kind: str, world: int) -> FieldPlacement:
    """elsewhere: the deal turned round, with other neighbours; split: whole tables on the last ranks, so that
    the first of several has rows of split tables only."""
    if kind == "elsewhere":
        dealt = place(TABLES, world)
        return FieldPlacement(tuple(world - 1 - r for r in dealt.owner), 0, world)
    owner = {"C1": world - 1, "C2": 0, "C3": world - 1, "C4": world // 2, "C5": world - 1}
    return FieldPlacement(tuple(owner[table] for table in TABLES), 0, world, SPLIT)


def main(folder: str) -> None:
    """Run all cases."""
    torch.set_num_threads(1)
    with connect(timeout_s=120) as shared:
        for name, way, kind in CASES:
            out = Path(folder) / kind
            out.mkdir(exist_ok=True)
            train(name, way, Collectives(shared.rank, shared.world), out, placed(kind, shared.world))
