"""Targets over shared tables and networks: one run of several heads, on any ranks, and as it is scored."""

from __future__ import annotations

import json
from pathlib import Path

import numpy as np
import pytest

import livectr
from livectr import Pipeline, Stream, Target, labelled
from livectr.models import DNN, PLE, SharedBottom
from livectr.models.configs import model_configs
from livectr.trainer.checkpoint.manifest import newest_manifest
from livectr.trainer.quality.predictions import quality_of, read_predictions
from livectr.trainer.run import TrainOptions, train
from tests.ranks import run_ranks
from tests.tiers import few
from tests.trainer.kills import OPTIONS
from tests.trainer.label_kinds_once import MODELS, placed_shop, shop, shop_log, write_shop

SHARED = [name for name in MODELS if name != "LR"]
ROLES = ("rank", "rank.cart", "rank.order")


def test_a_target_has_a_tower_and_no_row() -> None:
    configs = model_configs(shop(PLE(dim=4)))
    assert {role: config.width for role, config in configs.items()} == dict(
        zip(ROLES, (4, 0, 0), strict=True)
    )
    assert {config.schedule for config in configs.values()} == {PLE().schedule}


@pytest.mark.parametrize("name", SHARED)
def test_every_task_is_learned_and_scored_as_in_the_run(name: str) -> None:
    rows = 6_000
    pipeline = shop(MODELS[name])
    run = livectr.train(pipeline, shop_log(rows), seed=1, threads=1, batch_size=64, batch_ramp=32)
    late = read_predictions(Path(run.checkpoint) / "predictions")[rows // 2 :]
    for role, least in zip(ROLES, (0.52, 0.65, 0.65), strict=True):
        found = quality_of(late, role)
        assert found.auc > least and found.calibration == pytest.approx(1, abs=0.15), role
    asked = [{"user": 1, "ad": ad, "place": ad % 4} for ad in range(16)]
    click, cart, order = (
        livectr.score(pipeline, run.checkpoint, asked, target=target) for target in (None, "cart", "order")
    )
    assert (order < click).all() and np.corrcoef(cart, np.arange(16) % 4)[0, 1] > 0.8


def test_a_rare_target_gains_by_what_clicks_teach() -> None:
    """4 % of 40,000 rows of 2,000 ads have an order: tables of its own know too little of each ad."""
    rng = np.random.default_rng(0)
    rows, ads, users = 40_000, 2_000, 200
    ad, user = rng.integers(0, ads, rows), rng.integers(0, users, rows)
    taste, kind = rng.normal(0, 1, (users, 2)), rng.normal(0, 1, (ads, 2))
    logit = -1.5 + 0.3 * (taste[user] * kind[ad]).sum(1) + 0.8 * kind[ad, 0]
    clicked = rng.random(rows) < 1 / (1 + np.exp(-logit))
    ordered = clicked & (rng.random(rows) < 1 / (1 + np.exp(2.2 - kind[ad, 0])))
    columns = dict(user="int64", ad="int64", clicked="int32", ordered="int32")
    log = labelled(Stream("shown", key="user", columns=columns), label="clicked")
    data = dict(user=user, ad=ad, clicked=clicked.astype(np.int32), ordered=ordered.astype(np.int32))
    found = []
    for model in (DNN(dim=8, hidden=(32, 16)), SharedBottom(dim=8, hidden=(32, 16), tower=(8,))):
        targets = [Target("order", log.ordered)]
        pipeline = Pipeline(log, sparse={"ad": log.ad, "user": log.user}, rank=model, targets=targets)
        run = livectr.train(pipeline, data, seed=1, threads=1, batch_size=128, batch_ramp=64)
        late = read_predictions(Path(run.checkpoint) / "predictions")[rows // 2 :]
        found.append(quality_of(late, "rank.order").auc)
    assert found[1] > found[0] + 0.01, found


@pytest.mark.parametrize("name", few(SHARED, "PLE"))
@pytest.mark.parametrize("way", ["allreduce", "reducescatter"])
def test_two_ranks_equal_one(tmp_path: Path, name: str, way: str) -> None:
    source = write_shop(tmp_path / "logs", 1_500)
    options = {**OPTIONS, "source": source, "aggregate": way}
    train(placed_shop(MODELS[name]), TrainOptions(**options, checkpoint=str(tmp_path / "one")))  # type: ignore[arg-type]
    words = json.dumps({**options, "checkpoint": str(tmp_path / "two")})
    run_ranks(2, "tests.trainer.label_kinds_once", words, name)
    one, two = (read_predictions(tmp_path / run / "predictions") for run in ("one", "two"))
    assert (one["instance"] == two["instance"]).all()
    for role in ROLES:
        np.testing.assert_allclose(two[role], one[role], atol=2e-3)
    first, second = (newest_manifest(tmp_path / run) for run in ("one", "two"))
    assert first is not None and second is not None and first.table_rows == second.table_rows
