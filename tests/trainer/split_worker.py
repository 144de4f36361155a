"""One rank of test_split.py: models on placements that are not f mod N, one of them with tables split by key.

Run by `run_ranks` with arguments OUT [full]; writes OUT/<placement>/<model>.<way>.rank<r>.safetensors as
des_worker does, OUT/common/… as common_worker does, and OUT/cost<r>.json.
"""

import json
from pathlib import Path
from typing import Any

import numpy as np
import torch

from bench.planted import Planted, pipeline
from livectr.models import DeepFM
from livectr.trainer.comm.collectives import Collectives, connect
from livectr.trainer.des.exchange_choice import exchange_state, gather_state, measure_batch
from livectr.trainer.des.step import DesStep
from livectr.trainer.placement.placement import FieldPlacement, place
from livectr.trainer.step_settings import FieldExchange, StepSettings
from tests.models.examples import EXAMPLES
from tests.trainer import common_worker
from tests.trainer.des_worker import train
from tests.waiting import left_s

TABLES = ("C1", "C2", "C3", "C4", "C5", "C2")
SPLIT = frozenset({"C1", "C2"})
"""C2 is C6's table, too."""
CASES = [
    ("DeepFM", "auto", "elsewhere"),
    ("DeepFM", "allreduce", "elsewhere"),
    ("DeepFM", "partial", "split"),
    ("DeepFM", "vectors", "split"),
    ("LR", "vectors", "split"),
    ("xDeepFM", "auto", "split"),
    ("xDeepFM", "vectors", "split"),
    ("both", "rows", "split"),
    ("both", "mixed", "split"),
    ("both, gathered", "partial", "split"),
    ("both, gathered", "vectors", "split"),
]
"""Model, exchange, placement."""
FULL = [case for name in EXAMPLES if (case := (name, "vectors", "split")) not in CASES]
"""Cases that `make test-full` adds."""
COMMON = [("both", "grouped", "vectors"), ("both", "some", "vectors")]
COMMON_SPLIT = frozenset({"user", "ad"})
"""Tables of a common field, and of a common list and a field of examples."""


def placed(kind: str, world: int) -> FieldPlacement:
    """elsewhere: the deal turned round, with other neighbours; split: whole tables on the last ranks, so that
    the first of several has rows of split tables only."""
    if kind == "elsewhere":
        dealt = place(TABLES, world)
        return FieldPlacement(tuple(world - 1 - r for r in dealt.owner), 0, world)
    owner = {"C1": world - 1, "C2": 0, "C3": world - 1, "C4": world // 2, "C5": world - 1}
    return FieldPlacement(tuple(owner[table] for table in TABLES), 0, world, SPLIT)


def measured(shared: Collectives) -> dict[str, Any]:
    """Bytes of a step by `vectors`, and predicted; exchange of every field where a table is split again."""
    fields, split = [f"C{f + 1}" for f in range(4)], frozenset({"C2", "C4"})
    placement = FieldPlacement(tuple(f % shared.world for f in range(4)), 0, shared.world, split)
    features, label, _ = Planted([10, 300, 3_000, 20_000], 0).batch(np.random.default_rng(0), 3_000)
    mine = np.array_split(np.arange(3_000), shared.world)[shared.rank]
    own = features.take(mine), label[mine]
    made = pipeline(DeepFM(dim=8, hidden=(16, 8)), fields=4, dense=0)

    def step(way: FieldExchange | None, collectives: Collectives) -> DesStep:
        settings = StepSettings() if way is None else StepSettings("reducescatter", way)
        return DesStep(made, seed=1, collectives=collectives, settings=settings, placement=placement)

    counted = Collectives(shared.rank, shared.world)
    des = step("vectors", counted)
    sizes = measure_batch(des.routed.exchange, own[0])
    des.step(*own)
    counted.bytes.clear()
    des.step(*own)
    network = sum(t.numel() for n, t in des.dense.replicated().items() if "/C" not in n)
    networks = 2 * 4 * (shared.world - 1) * network / shared.world
    sent = sum(counted.bytes.get(name, 0) for name in ("keys", "vectors", "networks")) - networks
    state = gather_state(shared, des.state_dense())
    found: dict[str, Any] = {
        "predicted": des.routed.cost.bytes(sizes, des.route.field_exchange),
        "sent": sent,
        "forced": des.route.field_exchange,
    }
    before: list[FieldExchange] = ["partial"] * len(fields)
    for name in ("again", "resumed"):
        auto = step(None, shared)
        auto.load_dense({**state, **exchange_state(before, shared.world)})
        found[f"{name}, undecided"] = auto.choice.undecided
        auto.step(*own)
        before = found[name] = list(auto.route.field_exchange)
        found["fastest"] = auto.routed.cost.fastest(sizes, auto.spec.placement.split_fields(fields))
    return found


def main(folder: str, which: str = "") -> None:
    """Run all cases."""
    torch.set_num_threads(1)
    with connect(timeout_s=left_s()) as shared:
        for name, way, kind in [*CASES, *FULL] if which == "full" else CASES:
            out = Path(folder) / kind
            out.mkdir(exist_ok=True)
            train(name, way, Collectives(shared.rank, shared.world), out, placed(kind, shared.world))
        out, world = Path(folder) / "common", shared.world
        out.mkdir(exist_ok=True)
        for name, form, how in COMMON:
            owner = tuple(f % world for f in (0, 1, 2, 3, 1, 4))
            placement = FieldPlacement(owner, 0, world, COMMON_SPLIT)
            common_worker.train(name, form, how, Collectives(shared.rank, world), out, placement)
        Path(folder, f"cost{shared.rank}.json").write_text(json.dumps(measured(shared)))
