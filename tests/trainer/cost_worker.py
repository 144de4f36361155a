"""One rank of test_cost.py: bytes of a step by exchange, measured and by the cost model: OUT/rank<r>.json.

OUT/kept<r>.json has the exchanges that a run takes from a checkpoint.
"""

import json
from collections.abc import Sequence
from pathlib import Path

import numpy as np
import torch
from numpy.typing import NDArray

from bench.planted import Planted, pipeline
from livectr.ingest.plan.features import Features
from livectr.models import DeepFM
from livectr.trainer.comm.collectives import Collectives, connect
from livectr.trainer.des.exchange_choice import exchange_state, gather_state, measure_batch
from livectr.trainer.des.step import DesStep
from livectr.trainer.step_settings import FIELD_EXCHANGES, FieldExchange, StepSettings, Wire
from tests.waiting import left_s

FIELDS, DENSE, ROWS = 9, 2, 3_000
CARDINALITY = np.geomspace(10, 20_000, FIELDS).astype(int).tolist()
CONFIG = DeepFM(dim=8, hidden=(32, 16))
MIXED = {"C1": "rows", "C2": "rows", "C9": "vectors"}


def main(folder: str) -> None:
    """Run every exchange over both wires, and the automatic choice."""
    torch.set_num_threads(1)
    source, found = Planted(CARDINALITY, DENSE), []
    with connect(timeout_s=left_s()) as shared:
        features, label, _ = source.batch(np.random.default_rng(0), ROWS)
        mine = np.array_split(np.arange(ROWS), shared.world)[shared.rank]
        wires: tuple[Wire, ...] = ("fp32", "bf16")
        for wire in wires:
            for field_exchange in (*FIELD_EXCHANGES, MIXED, "auto"):
                counted = Collectives(shared.rank, shared.world, wire=wire)
                des = DesStep(
                    pipeline(CONFIG, fields=FIELDS, dense=DENSE),
                    seed=1,
                    collectives=counted,
                    settings=StepSettings("reducescatter", field_exchange),  # type: ignore[arg-type]
                )
                measured = measure_batch(des.routed.exchange, features.take(mine))
                counted.bytes.clear()
                logits = des.step(features.take(mine), label[mine]).logits["rank"]
                logits = des.step(features.take(mine), label[mine]).logits["rank"]
                network = sum(t.numel() for n, t in des.dense.replicated().items() if "/C" not in n)
                found.append(
                    {
                        "wire": wire,
                        "field_exchange": field_exchange,
                        "chosen": des.route.field_exchange,
                        "bytes": dict(counted.bytes),
                        "network": network,
                        "predicted": des.routed.cost.bytes(measured, des.route.field_exchange),
                        "seconds": des.routed.cost.seconds(measured, des.route.field_exchange),
                        "exchanges": [
                            des.routed.cost.seconds(measured, [exchange] * FIELDS)
                            for exchange in FIELD_EXCHANGES
                        ],
                        "logits": logits.tolist(),
                    }
                )
        Path(folder, f"rank{shared.rank}.json").write_text(json.dumps(found))
        own = features.take(mine), label[mine]
        Path(folder, f"kept{shared.rank}.json").write_text(json.dumps(kept(shared, *own)))


def kept(shared: Collectives, features: Features, label: NDArray[np.float32]) -> dict[str, Sequence[str]]:
    """Exchange of every field: of a first run, of a run resumed from its checkpoint, and of two runs resumed
    from a checkpoint with another exchange, of as many and of more ranks."""
    made = pipeline(CONFIG, fields=FIELDS, dense=DENSE)
    first = DesStep(made, seed=1, collectives=shared)
    first.step(features, label)
    state = gather_state(shared, first.state_dense())
    found = {"first": first.route.field_exchange}
    other: list[FieldExchange] = [*FIELD_EXCHANGES] * (FIELDS // 3)
    for name, more in {
        "resumed": {},
        "another": exchange_state(other, shared.world),
        "more ranks": exchange_state(other, shared.world + 1),
    }.items():
        des = DesStep(made, seed=1, collectives=shared)
        des.load_dense({**state, **more})
        des.step(features, label)
        found[name] = des.route.field_exchange
    return {**found, "given": other}
