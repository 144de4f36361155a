"""One rank of test_ranks.py: trains every model with every exchange for a few steps and writes the results.

Run by `run_ranks` with arguments OUT [full]; writes
OUT/<model>.<way>.rank<r>.safetensors and .json.
"""

import json
from collections import deque
from collections.abc import Iterator, Sequence
from concurrent.futures import Future, ThreadPoolExecutor
from dataclasses import replace
from pathlib import Path

import numpy as np
import torch
from numpy.typing import NDArray

from bench.planted import pipeline
from livectr.ingest.language.content import Content
from livectr.ingest.plan.features import Features
from livectr.models import DIN, DeepFM, EmbeddingModel, ModelConfig, TwoTower, products
from livectr.trainer.comm.collectives import Collectives, connect
from livectr.trainer.des.batch import PreparedBatch
from livectr.trainer.des.item_vectors import item_vectors
from livectr.trainer.des.result import StepResult
from livectr.trainer.des.small_batch import MOST
from livectr.trainer.des.step import DesStep
from livectr.trainer.placement.placement import FieldPlacement
from livectr.trainer.step_settings import StepSettings
from tests.models.examples import CONTENT_EXAMPLES, EXAMPLES, SHARED
from tests.trainer.checksums import checksum
from tests.waiting import left_s

FIELDS, DENSE, STEPS, ITEMS = 6, 3, 6, 11
TOWERS = TwoTower(user=("C1", "C3", "C5", "I1"), item=("C2", "C4"), dim=4, hidden=(8,), out=6)
ROLES: dict[str, tuple[ModelConfig, TwoTower | None]] = {
    **{name: (config, None) for name, (config, _) in EXAMPLES.items()},
    "both": (DeepFM(dim=4, hidden=(16, 8)), TOWERS),
    **{name: (config, None) for name, (config, _, _) in CONTENT_EXAMPLES.items()},
    "wide": (DeepFM(dim=8, hidden=(32, 16)), None),
    "few": (DeepFM(dim=8, hidden=(32, 16)), None),
    "both, gathered": (DIN(target=("C2",), behaviors=("C6",), dim=4, hidden=(8,), attention=(6,)), TOWERS),
}
WAYS = {
    "allreduce": StepSettings("allreduce"),
    "partial": StepSettings("reducescatter", "partial"),
    "vectors": StepSettings("reducescatter", "vectors"),
    "rows": StepSettings("reducescatter", "rows"),
    "mixed": StepSettings("reducescatter", {"C1": "rows", "C2": "vectors", "C3": "vectors", "C6": "rows"}),
    "auto": StepSettings(),
    "packed": StepSettings(products="packed"),
}
WAYS = {name: replace(settings, online=120) for name, settings in WAYS.items()}
"""Aggregation ⊕ and field exchange by name. Of batches of 20 to 200 examples, some are small enough to learn
the first order example by example."""
WORLDS = (2, 4)
IMAGES = EmbeddingModel(width=6, hidden=(5, 4), out=3)
ADDITIVE = ("both", "LR", "FM", "DeepFM", "TwoTower")
EVERY_WAY = ("both", "xDeepFM")
CASES = [(name, "auto") for name in ROLES]
CASES += [(name, way) for name in EVERY_WAY for way in WAYS if way not in ("auto", "packed")]
CASES += [
    ("DICM on DIN", "rows"),
    ("TwoTower with images", "mixed"),
    ("DIEN", "allreduce"),
    ("wide", "packed"),
    ("few", "allreduce"),
]
"""Every model with the default strategy; a model of sums and a model that gathers with every exchange. DIEN
has an auxiliary loss, which both strategies sum; the wide model has products of the packed kernel; the
batches of "few" are learned by compiled calls, where every rank finishes all examples."""
FULL = [(name, "allreduce") for name in ROLES if name not in EVERY_WAY]
FULL += [(name, way) for name in (*ADDITIVE, "AutoInt+") for way in WAYS if way != "packed"]
FULL = [case for case in dict.fromkeys(FULL) if case not in CASES]
"""Cases of the product that `make test-full` adds."""
AHEAD = [(name, way) for name, way in CASES if name in EVERY_WAY or name in CONTENT_EXAMPLES]
"""Cases that two ranks also train with a thread that prepares batches ahead; four ranks always do."""


def batch(rng: np.random.Generator, rows: int) -> tuple[Features, NDArray[np.float32]]:
    """Examples whose fields 3 and 6 are lists, sometimes empty; some dense features are beyond ±1."""
    lengths = np.ones((FIELDS, rows), np.int32)
    lengths[2], lengths[5] = rng.integers(0, 4, rows), rng.integers(0, 6, rows)
    offsets = np.r_[0, np.cumsum(lengths)].astype(np.int32)
    keys = rng.zipf(1.5, offsets[-1]).astype(np.int64) * 0x9E3779B97F4A7C1 - 7
    dense = (5 * rng.normal(size=(rows, DENSE))).astype(np.float32)
    return Features(rows, offsets, keys, dense), (rng.random(rows) < 0.3).astype(np.float32)


def shares(rng: np.random.Generator, rows: int, world: int, step: int) -> NDArray[np.int64]:
    """Bounds of each rank's rows: uneven, and in some steps a rank has none."""
    cuts = np.sort(rng.integers(0, rows + 1, world - 1))
    if step % 3 == 1 and world > 1:
        cuts[0] = 0
    if step % 3 == 2 and world > 1:
        cuts[-1] = rows
    return np.r_[0, np.sort(cuts), rows]


class Pictures:
    """Features f16[n, 6] as a function of the id; every third id has none."""

    width, shards = 6, 7

    def shard_of(self, ids: NDArray[np.int64]) -> NDArray[np.int64]:
        return np.asarray(ids % 7)

    def read(
        self, ids: NDArray[np.int64], out: NDArray[np.float16] | None = None
    ) -> tuple[NDArray[np.float16], NDArray[np.bool_]]:
        known = ids % 3 != 0
        out = np.empty((len(ids), 6), np.float16) if out is None else out
        out[:] = np.sin(ids[:, None] % 1009 * np.arange(1, 7)) * known[:, None]
        return out, known

    def refresh(self) -> bool:
        return False


def learned(
    des: DesStep, batches: Sequence[tuple[Features, np.ndarray]], *, ahead: bool
) -> Iterator[StepResult]:
    """Results of the batches; `ahead`: a thread prepares a batch while the batch before is learned."""
    if not ahead:
        yield from (des.step(*batch) for batch in batches)
        return
    des.run_ahead()
    left = iter(batches)
    while des.choice.undecided and (batch := next(left, None)) is not None:
        yield des.step(*batch)
    with ThreadPoolExecutor(1) as worker:
        held = deque[Future[PreparedBatch]]()
        for batch in left:
            held.append(worker.submit(des.prepare, *batch))
            if len(held) == 2:
                yield des.learn(held.popleft().result())
        yield from (des.learn(prepared.result()) for prepared in held)


def train(
    name: str,
    way: str,
    collectives: Collectives,
    out: Path,
    placement: FieldPlacement | None = None,
    *,
    ahead: bool = False,
) -> None:
    """Train a model with an exchange; write logits, tables, dense state and the collectives' bytes."""
    rank, world = collectives.rank, collectives.world
    roles = ROLES[name]
    pictured = name in CONTENT_EXAMPLES
    content = {"images": Content(("C2", "C3", "C6"), IMAGES)} if pictured else {}
    built = pipeline(roles[0], prerank=roles[1], fields=FIELDS, dense=DENSE, shared=SHARED, content=content)
    settings = WAYS[way]
    des = DesStep(
        built,
        seed=5,
        collectives=collectives,
        settings=settings,
        placement=placement,
        content={"images": Pictures()} if pictured else {},  # type: ignore[dict-item]
    )
    assert (name, way) != ("few", "allreduce") or des.small is not None, "the compiled step is what is tested"
    rng, checksums, losses = np.random.default_rng(0), [], []
    tensors: dict[str, torch.Tensor] = {}
    batches, expected = [], []
    bounds = (1, MOST + 1) if name == "few" else (20, 200)
    for step in range(STEPS):
        rows = 0 if step == 4 else int(rng.integers(*bounds))
        features, label = batch(rng, rows)
        cuts = shares(np.random.default_rng(step), rows, world, step)
        mine = np.arange(cuts[rank], cuts[rank + 1])
        batches.append((features.take(mine), label[mine]))
        expected.append((slice(cuts[rank], cuts[rank + 1]), label))
    for step, result in enumerate(learned(des, batches, ahead=ahead or world == max(WORLDS))):
        own, label = expected[step]
        assert result.own(rank) == own
        np.testing.assert_array_equal(result.label, label)
        tensors |= {f"logits.{role}.{step}": torch.from_numpy(z) for role, z in result.logits.items()}
        checksums.append(checksum(des.dense))
        losses.append(result.loss)
    for table in des.tables.values():
        keys, values = table.export()
        order = np.argsort(keys)
        tensors |= {
            f"keys.{table.name}": torch.from_numpy(keys[order]),
            f"rows.{table.name}": torch.from_numpy(values[order]),
        }
    if roles[1] is not None:
        items, _ = batch(np.random.default_rng(9), ITEMS)
        tensors["items"] = torch.from_numpy(item_vectors(des, items))
    tensors |= {f"dense.{n}": t for n, t in des.state_dense().items()}
    called = f"{name}.{way}{'.ahead' * ahead}.rank{rank}"
    from safetensors.torch import save_file  # the GPU kit reads this module without it

    save_file(tensors, out / f"{called}.safetensors")
    facts = {
        "checksums": checksums,
        "losses": losses,
        "bytes": dict(collectives.bytes),
        "partial_size": sum(m.partial_size for m in des.models.values()),
        "placement": des.spec.placement.owner,
    }
    (out / f"{called}.json").write_text(json.dumps(facts))


def main(folder: str, which: str = "") -> None:
    """Run all cases; a single rank has only the exchange `auto`."""
    torch.set_num_threads(1)
    products.SMALL = 1  # these batches' products are small
    with connect(timeout_s=left_s()) as shared:
        for name, way in [*CASES, *FULL] if which == "full" else CASES:
            if shared.world > 1 or way == "auto":
                train(name, way, Collectives(shared.rank, shared.world), Path(folder))
        for name, way in AHEAD if shared.world == min(WORLDS) else ():
            train(name, way, Collectives(shared.rank, shared.world), Path(folder), ahead=True)
