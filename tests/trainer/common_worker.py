"""One rank of test_common.py: trains with users' examples in groups, and with the same rows written out.

Run by `run_ranks`; writes OUT/<model>.<form>.<how>.rank<r>.safetensors and .json.
"""

import json
from pathlib import Path

import numpy as np
import torch
from numpy.typing import NDArray

from livectr.ingest.common_features import Common, CommonFeatures
from livectr.ingest.language.streams import Stream, labelled
from livectr.ingest.language.tables import Table
from livectr.ingest.pipeline import Field, Pipeline
from livectr.ingest.plan.features import Features
from livectr.models import FM, LR, DeepFM, ModelConfig, TwoTower
from livectr.trainer.comm.collectives import Collectives, connect
from livectr.trainer.des.step import DesStep
from livectr.trainer.placement.placement import FieldPlacement
from livectr.trainer.step_settings import StepSettings
from tests.trainer.checksums import checksum
from tests.waiting import left_s

STEPS, SIZE = 4, 240
TOWERS = TwoTower(user=("user", "city", "age", "hour"), item=("ad", "price"), dim=4, hidden=(8,), out=6)
ROLES: dict[str, tuple[ModelConfig, TwoTower | None]] = {
    "LR": (LR(), None),
    "FM": (FM(dim=4), None),
    "both": (DeepFM(dim=4, hidden=(16, 8)), TOWERS),
}
FORMS = ("plain", "grouped", "some")
"""Form of the rows: written out, in groups, or in groups on some ranks in some steps."""
SETTINGS = {
    "allreduce": StepSettings("allreduce"),
    "partial": StepSettings("reducescatter", "partial"),
    "sample-parallel": StepSettings(
        "reducescatter", {"user": "vectors", "liked": "rows", "ad": "vectors", "words": "rows"}
    ),
    "vectors": StepSettings("reducescatter", "vectors"),
}
WAYS = [(form, how) for form in FORMS for how in SETTINGS if how != "vectors"]
"""user and liked are common fields, ad and words are not; liked and ad share a table."""


def pipeline(rank: ModelConfig, prerank: TwoTower | None = None) -> Pipeline:
    """Six fields, 0, 2 and 4 of the user; the user's list `liked` reads the table of `ad`. Dense: the user's
    age is number 1 of three."""
    events = Stream(
        "events",
        key="user",
        columns={"user": "int64", "ad": "int64", "hour": "int32", "words": "list<int64>", "label": "float32"},
    )
    users = Table(
        "users",
        key="user",
        columns={"user": "int64", "city": "int64", "liked": "list<int64>", "age": "float32"},
    )
    ads = Table("ads", key="ad", columns={"ad": "int64", "price": "float32", "weight": "float32"})
    log = labelled(events, label="label").lookup(users).lookup(ads)
    return Pipeline(
        log,
        sparse=dict(
            user=log.user,
            ad=log.ad,
            city=users.city,
            hour=log.hour,
            liked=Field(users.liked, table="ad"),
            words=log.words,
        ),
        dense=dict(price=ads.price, age=users.age, weight=ads.weight),
        rank=rank,
        prerank=prerank,
        items=ads if prerank is not None else None,
    )


def batch(rng: np.random.Generator, rows: int, groups: int) -> tuple[CommonFeatures, NDArray[np.float32]]:
    """Rows of random groups; lists are sometimes empty."""

    def features(count: int, lists: tuple[bool, ...], dense: int) -> Features:
        lengths = np.ones((len(lists), count), np.int32)
        for field in np.flatnonzero(lists):
            lengths[field] = rng.integers(0, 5, count)
        offsets = np.r_[0, np.cumsum(lengths)].astype(np.int32)
        keys = rng.zipf(1.5, offsets[-1]).astype(np.int64) * 0x9E3779B97F4A7C1 - 7
        return Features(count, offsets, keys, (5 * rng.normal(size=(count, dense))).astype(np.float32))

    index = np.r_[np.arange(groups), rng.integers(0, groups, rows - groups)].astype(np.int32)
    rng.shuffle(index)
    nothing = np.empty((0, rows), np.int64), np.zeros(rows, bool)
    common, own = features(groups, (False, False, True), 1), features(rows, (False, False, True), 2)
    return CommonFeatures(common, own, index, *nothing), (rng.random(rows) < 0.3).astype(np.float32)


def train(
    name: str,
    form: str,
    how: str,
    collectives: Collectives,
    out: Path,
    placement: FieldPlacement | None = None,
) -> None:
    """Train a model; write logits, tables, dense state and the collectives' bytes."""
    rank, world = collectives.rank, collectives.world
    built = pipeline(*ROLES[name])
    common = Common.of(built)
    des = DesStep(built, seed=5, collectives=collectives, settings=SETTINGS[how], placement=placement)
    rng, checksums = np.random.default_rng(0), []
    tensors: dict[str, torch.Tensor] = {}
    for step in range(STEPS):
        features, label = batch(rng, SIZE, SIZE // 6)
        cuts = np.linspace(0, SIZE, world + 1).astype(int)
        if step == 1 and world > 1:
            cuts[1] = 0  # rank 0 has no rows
        mine = np.arange(cuts[rank], cuts[rank + 1])
        own: CommonFeatures | Features = features.take(mine)
        assert isinstance(own, CommonFeatures)
        if form == "plain" or (form == "some" and (rank + step) % 2):
            own = own.plain(common)
        result = des.step(own, label[mine])
        np.testing.assert_array_equal(result.label, label)
        tensors |= {f"logits.{role}.{step}": torch.from_numpy(z) for role, z in result.logits.items()}
        checksums.append(checksum(des.dense))
    for table in des.tables.values():
        keys, values = table.export()
        order = np.argsort(keys)
        tensors |= {
            f"keys.{table.name}": torch.from_numpy(keys[order]),
            f"rows.{table.name}": torch.from_numpy(values[order]),
        }
    tensors |= {f"dense.{n}": t for n, t in des.state_dense().items()}
    from safetensors.torch import save_file  # the GPU kit reads this module without it

    save_file(tensors, out / f"{name}.{form}.{how}.rank{rank}.safetensors")
    facts = {"checksums": checksums, "bytes": dict(collectives.bytes)}
    (out / f"{name}.{form}.{how}.rank{rank}.json").write_text(json.dumps(facts))


def main(folder: str) -> None:
    """Run all cases."""
    torch.set_num_threads(1)
    with connect(timeout_s=left_s()) as shared:
        for name in ROLES:
            for form, how in WAYS:
                if shared.world > 1 or how == "partial":
                    train(name, form, how, Collectives(shared.rank, shared.world), Path(folder))
