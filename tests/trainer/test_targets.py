"""Targets in runs: heads beside the click's, which learn labels of their own."""

from __future__ import annotations

import json
import random
from dataclasses import replace
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import torch

import livectr
from livectr import Target
from livectr.analysis.score_log import Scoring, score_log
from livectr.ingest.language.calibration import Calibration
from livectr.ingest.language.streams import Stream, label_join, labelled, recent
from livectr.ingest.operators import fill_null, length, zscore
from livectr.ingest.pipeline import Pipeline
from livectr.models import FM, LR, DeepFM, Hedge, ModelConfig
from livectr.models.esmm import after_click
from livectr.models.losses import weighted_cross_entropy
from livectr.system.errors import ConfigError
from livectr.trainer.quality.metrics import auc, calibration
from livectr.trainer.quality.predictions import Records, quality_of, read_predictions, roles_of
from livectr.trainer.run import TrainOptions, train
from tests.ranks import Processes
from tests.trainer.ad_logs import write_files
from tests.trainer.kills import OPTIONS, kill_group, kill_one_rank, kill_somewhere
from tests.trainer.processes import finish
from tests.trainer.run_result import Result, assert_close, assert_same
from tests.trainer.targets_once import targets_of_ads

ROWS = 16_000
STREAM = Stream(
    "shown",
    key="user",
    columns=dict(
        user="int64", ad="int64", place="int64", clicked="int32", ordered="int32", tags="list<int64>"
    ),
)
LOG = labelled(STREAM, label="clicked")
ORDER = Target("order", LOG.ordered, after="click")


def shop(rows: int = ROWS) -> dict[str, Any]:
    """Clicks by ad, and orders after them by place: 12 % and a third of them."""
    rng = np.random.default_rng(0)
    ad, place = rng.integers(0, 20, rows), rng.integers(0, 4, rows)
    click = 1 / (1 + np.exp(2 - rng.normal(0, 0.5, 20)[ad]))
    clicked = rng.random(rows) < click
    ordered = clicked & (rng.random(rows) < np.array([0.05, 0.2, 0.4, 0.7])[place])
    columns = dict(user=np.arange(rows), ad=ad, place=place)
    return columns | {"clicked": clicked.astype(np.int32), "ordered": ordered.astype(np.int32)}


def shop_pipeline(model: ModelConfig | Hedge | None = None, **changes: Any) -> Pipeline:
    rank = LR() if model is None else model
    return Pipeline(LOG, sparse={"ad": LOG.ad, "place": LOG.place}, rank=rank, **changes)


def learned(pipeline: Pipeline, log: dict[str, Any]) -> tuple[livectr.Trained, Records]:
    run = livectr.train(pipeline, log, seed=1, threads=1, batch_size=64)
    return run, read_predictions(Path(run.checkpoint) / "predictions")


@pytest.mark.parametrize("model", [LR(), DeepFM(dim=4, hidden=(8,))])
def test_an_order_is_predicted_beside_the_click(model: ModelConfig) -> None:
    """The click's head learns the same bits as without targets; orders are calibrated by place."""
    log = shop()
    _, alone = learned(shop_pipeline(model), log)
    run, found = learned(shop_pipeline(model, targets=[ORDER, Target("other", LOG.ordered)]), log)
    assert found["rank"].tobytes() == alone["rank"].tobytes()
    assert (found["rank.order.label"] == log["ordered"]).all()
    assert (found["rank.order"] < found["rank"]).all()
    late = slice(ROWS // 2, None)
    for place in range(1, 4):  # a dozen orders of place 0 say little
        of = (log["place"] == place)[late]
        label = found["rank.order.label"][late][of].astype(np.float32)
        assert calibration(found["rank.order"][late][of], label) == pytest.approx(1, abs=0.35), place
    order = run.report.targets["order"]
    assert order["auc"] == pytest.approx(quality_of(found, "rank.order").auc, abs=1e-9)
    assert order["auc"] > auc(found["rank"], log["ordered"].astype(np.float32)) + 0.1
    assert order["auc"] > run.report.targets["other"]["auc"] - 0.005
    p = livectr.score(shop_pipeline(model, targets=[ORDER, Target("other", LOG.ordered)]), run.checkpoint,
                      {name: log[name] for name in ("user", "ad", "place")}, target="order")  # fmt: skip
    assert p.sum() / log["ordered"].sum() == pytest.approx(1, abs=0.15)


def test_a_sampled_and_calibrated_log_has_targets_of_the_whole_one() -> None:
    log = shop()
    stays = (log["clicked"] == 1) | (np.random.default_rng(1).random(ROWS) < 0.2)
    part = {name: values[stays] for name, values in log.items()}
    pipeline = shop_pipeline(targets=[ORDER], sampling=0.2, calibration=Calibration("place", 100))
    run, found = learned(pipeline, part)
    assert run.report.targets["order"]["calibration"] == pytest.approx(1, abs=0.12)
    assert roles_of(found) == ("rank", "rank.order", "calibrated")


def test_the_heads_loss_is_that_of_the_product() -> None:
    """ESMM's loss over all impressions has the lesson's gradient by the head's logit."""
    rng = np.random.default_rng(0)
    click, given = (torch.from_numpy(rng.normal(0, 2, 64).astype(np.float32)) for _ in range(2))
    label = torch.from_numpy((rng.random(64) < 0.3).astype(np.float32))
    given.requires_grad_()
    product = click.double().sigmoid() * given.double().sigmoid()
    torch.nn.functional.binary_cross_entropy(product, label.double(), reduction="sum").backward()  # type: ignore[no-untyped-call]
    assert given.grad is not None
    want, given.grad = given.grad.numpy().copy(), None
    lesson = after_click(click, given.detach(), label)
    weighted_cross_entropy(given, lesson).backward()  # type: ignore[no-untyped-call]
    np.testing.assert_allclose(given.grad.numpy(), want, rtol=1e-4, atol=1e-6)  # type: ignore[attr-defined]


def test_rows_whose_label_is_none_go_to_the_dead_letters(tmp_path: Path) -> None:
    rows: list[dict[str, Any]] = [
        {"user": i, "ad": i % 5, "place": 0, "clicked": i % 2, "ordered": i % 4 == 1} for i in range(500)
    ]
    for row in rows:
        row["ordered"] = int(row["ordered"])
    rows[3]["ordered"], rows[4]["ordered"] = None, 7
    (tmp_path / "shown").mkdir()
    (tmp_path / "shown" / "00000.jsonl").write_text("".join(json.dumps(row) + "\n" for row in rows))
    options = TrainOptions(f"file:{tmp_path}", until_end=True, threads=1, checkpoint=str(tmp_path / "c"))
    report = train(shop_pipeline(targets=[ORDER]), options)
    assert report.dead_letter_reasons == {"bad_target": 2} and report.examples_trained == 498
    letters = "".join(f.read_text() for f in (tmp_path / "livectr.dead_letters").glob("*.jsonl"))
    assert "the label of target order, shown.ordered, is null; fill_null(column, 0) says" in letters
    assert "the label of target order, shown.ordered, is neither 0 nor 1" in letters
    filled = Target("order", fill_null(LOG.ordered, 0), after="click")
    report = train(shop_pipeline(targets=[filled]), replace(options, checkpoint=str(tmp_path / "filled")))
    assert report.examples_trained == 499


CLICKS = Stream("clicks", key="user", time="ts", columns=dict(user="int64", id="int64", ts="int64"))
TIMED = Stream("timed", key="user", time="ts", columns=dict(user="int64", id="int64", ts="int64", ad="int64"))
JOINED = label_join(TIMED, CLICKS, on="id", window="1m", wait="1s", delayed="fnw")


@pytest.mark.parametrize(
    ("make", "message"),
    [
        (lambda: Target("click", LOG.ordered), "the name is 'click'; take another word"),
        (lambda: Target("an order", LOG.ordered), "the name is 'an order'"),
        (lambda: Target("order", "ordered"), "write a column of numbers or bools, not 'ordered'"),  # type: ignore[arg-type]
        (lambda: Target("order", LOG["tags"]), "write a column of numbers or bools"),
        (lambda: Target("order", zscore(LOG.ordered)), "depends on running statistics"),
        (
            lambda: shop_pipeline(targets=[Target(f"t{i}", LOG.ordered) for i in range(33)]),
            "33 targets; at most 32",
        ),
        (lambda: Target("order", LOG.ordered, after="cart"), "after is 'cart'; it is 'click'"),
        (
            lambda: Target("order", LOG.ordered, after=LOG.clicked),  # type: ignore[arg-type]
            "after is shown.clicked; it is 'click'",
        ),
        (lambda: shop_pipeline(targets=["order"]), "targets is .* write targets="),
        (lambda: shop_pipeline(targets=[ORDER, ORDER]), "two targets have the same name"),
        (lambda: shop_pipeline(Hedge((LR(), FM())), targets=[ORDER]), "no hedge, and no challengers"),
        (lambda: shop_pipeline(challengers={"fm": FM()}, targets=[ORDER]), "no hedge, and no challengers"),
        (lambda: shop_pipeline(targets=[Target("order", CLICKS.id)]), "is not known when an impression"),
        (
            lambda: Pipeline(JOINED, sparse={"ad": JOINED.ad}, rank=LR(), targets=[Target("o", JOINED.ad)]),
            'targets do not go with delayed="fnw"',
        ),
        (
            lambda: shop_pipeline(targets=[Target("o", length(recent(CLICKS.id, 5, "1d")))]),
            "reads a history",
        ),
    ],
)
def test_what_is_no_target_is_refused(make: Any, message: str) -> None:
    with pytest.raises(ConfigError, match=message):
        make()


def test_ranks_that_are_killed_end_as_one_that_was_not(tmp_path: Path) -> None:
    """With weights and rates beside the targets, in blocks and in batches of several ranks."""
    source = write_files(tmp_path / "logs", 1_500)

    def begin(world: int, name: str) -> Processes:
        options = {**OPTIONS, "source": source, "checkpoint": str(tmp_path / name)}
        return Processes(world, "tests.trainer.targets_once", [json.dumps(options)])

    def result(name: str) -> Result:
        return Result(tmp_path / name, targets_of_ads())

    finish(begin(1, "unbroken"))
    for world, name, kill in ((1, "one", kill_group), (2, "two", kill_one_rank)):
        kill_somewhere(begin(world, name), tmp_path / name, random.Random(), kill)
        finish(begin(world, name))
    unbroken = result("unbroken")
    assert_same(result("one"), unbroken)
    two = result("two")
    assert_close(two, unbroken)
    for name in ("rank.order.label", "rank.seen.label", "weight", "worth.click", "worth.order"):
        assert (two.predictions[name] == unbroken.predictions[name]).all()
        assert len(set(two.predictions[name])) > (name != "worth.order")
    np.testing.assert_allclose(two.predictions["rank.order"], unbroken.predictions["rank.order"], atol=5e-3)
    (tmp_path / "pipeline.py").write_text(
        "from tests.trainer.targets_once import targets_of_ads\n\npipeline = targets_of_ads()\n"
    )
    at = str(tmp_path / "pipeline.py"), tmp_path / "one", source, tmp_path / "scored"
    path = score_log(Scoring(*at, from_start=True))
    assert path is not None
    scored = read_predictions(path)
    assert roles_of(scored) == ("rank", "rank.order", "rank.seen")
    assert (scored["rank.order.label"] == unbroken.predictions["rank.order.label"]).all()
    assert quality_of(scored, "rank.order").auc > quality_of(unbroken.predictions, "rank.order").auc - 0.05
