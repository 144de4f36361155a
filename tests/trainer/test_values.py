"""Values of targets in runs: what an order is worth, predicted before it is learned."""

from __future__ import annotations

import json
from dataclasses import replace
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import torch
from torch.nn.functional import binary_cross_entropy_with_logits, softplus

import livectr
from livectr import Target
from livectr.check.sample import read_sample
from livectr.ingest.language.streams import Stream, labelled
from livectr.ingest.operators import zscore
from livectr.ingest.pipeline import Pipeline
from livectr.models import LR, DeepFM, ModelConfig, SharedBottom, lognormal
from livectr.models.losses import weighted_cross_entropy
from livectr.system.errors import ConfigError
from livectr.trainer.quality.predictions import read_predictions
from livectr.trainer.quality.values import gini
from livectr.trainer.run import TrainOptions, train

ROWS, ADS = 24_000, 12
STREAM = Stream(
    "shown",
    key="user",
    columns=dict(user="int64", ad="int64", clicked="int32", ordered="int32", price="float64"),
)
LOG = labelled(STREAM, label="clicked")
MU = np.linspace(1, 4, ADS)
SIGMA = 0.6


def shop(rows: int = ROWS, free: float = 0.0) -> dict[str, Any]:
    """Orders of a fifth of the clicks, at lognormal prices by ad; of a share the price is 0."""
    rng = np.random.default_rng(0)
    ad = rng.integers(0, ADS, rows)
    clicked = rng.random(rows) < 0.5
    ordered = clicked & (rng.random(rows) < 0.4)
    price = np.exp(MU[ad] + SIGMA * rng.normal(0, 1, rows)) * (rng.random(rows) >= free)
    return dict(
        user=np.arange(rows),
        ad=ad,
        clicked=clicked.astype(np.int32),
        ordered=ordered.astype(np.int32),
        price=np.where(ordered, price, np.nan),
    )


def shop_pipeline(model: ModelConfig, **value: Any) -> Pipeline:
    given = {"value": LOG.price, **value}
    return Pipeline(
        LOG, sparse={"ad": LOG.ad}, rank=model, targets=[Target("order", LOG.ordered, "click", **given)]
    )


MODELS = [LR(), DeepFM(dim=4, hidden=(8,)), SharedBottom(dim=8, hidden=(16,), tower=())]
ADS_ASKED = {"user": np.zeros(ADS, int), "ad": np.arange(ADS)}


@pytest.mark.parametrize("model", MODELS)
def test_values_are_predicted_by_ad(model: ModelConfig) -> None:
    pipeline, log = shop_pipeline(model), shop()
    run = livectr.train(pipeline, log, seed=1, threads=1, batch_size=64)
    found, came = run.report.values["order"], log["ordered"] == 1
    assert found["examples"] == came.sum() and found["mean"] == pytest.approx(log["price"][came].mean())
    assert found["calibration"] == pytest.approx(1, abs=0.1)
    assert found["rmsle"] == pytest.approx(SIGMA, abs=0.06)
    assert (found["gini"] or 0) > 0.8
    assert run.report.targets.keys() == {"order"} and not run.report.heads
    mean = livectr.score(pipeline, run.checkpoint, ADS_ASKED, target="order", value=True)
    np.testing.assert_allclose(mean, np.exp(MU + SIGMA**2 / 2), rtol=0.3)
    p = livectr.score(pipeline, run.checkpoint, ADS_ASKED, target="order")
    assert p.mean() == pytest.approx(0.2, abs=0.04)


def test_the_clicks_head_learns_the_same_bits_beside_values() -> None:
    log = shop(3_000)
    plain = Pipeline(LOG, sparse={"ad": LOG.ad}, rank=LR(), targets=[Target("order", LOG.ordered, "click")])
    one, two = (
        read_predictions(
            Path(livectr.train(p, log, seed=1, threads=1, batch_size=64).checkpoint) / "predictions"
        )
        for p in (plain, shop_pipeline(LR()))
    )
    assert one.tobytes() == two.tobytes()


def test_a_share_of_the_orders_is_free() -> None:
    pipeline, log = shop_pipeline(LR(), values="ziln"), shop(free=0.4)
    run = livectr.train(pipeline, log, seed=1, threads=1, batch_size=64)
    assert run.report.values["order"]["calibration"] == pytest.approx(1, abs=0.12)
    mean = livectr.score(pipeline, run.checkpoint, ADS_ASKED, target="order", value=True)
    np.testing.assert_allclose(mean, 0.6 * np.exp(MU + SIGMA**2 / 2), rtol=0.35)


def test_lessons_have_the_gradients_of_the_papers_loss() -> None:
    rng = np.random.default_rng(0)
    value = torch.tensor(np.exp(rng.normal(0, 1, 30)) * (rng.random(30) < 0.7), dtype=torch.float32)
    location, spread, paid = (
        torch.tensor(rng.normal(0, 0.5, 30), dtype=torch.float32, requires_grad=True) for _ in range(3)
    )
    positive = value > 0
    normal = torch.distributions.LogNormal(location[positive], softplus(spread[positive]))
    log_density = normal.log_prob(value[positive])  # type: ignore[no-untyped-call]
    loss = -log_density.sum() + binary_cross_entropy_with_logits(paid, positive.float(), reduction="sum")
    loss.backward()
    given = lognormal.lessons(value, location.detach(), spread.detach(), torch.ones(30, dtype=torch.bool))
    losses = {**lognormal.LOSSES, lognormal.PAID: weighted_cross_entropy}
    heads = {lognormal.LOCATION: location, lognormal.SPREAD: spread, lognormal.PAID: paid}
    for head, logit in heads.items():
        own = logit.detach().clone().requires_grad_()
        losses[head](own, given[head]).backward()  # type: ignore[no-untyped-call]
        assert own.grad is not None and logit.grad is not None
        np.testing.assert_allclose(own.grad.numpy(), logit.grad.numpy(), rtol=1e-4, atol=1e-5)
    unknown = lognormal.lessons(value, location.detach(), spread.detach(), torch.zeros(30, dtype=torch.bool))
    assert all(float(lesson.weight.sum()) == 0 for lesson in unknown.values())


def test_gini_is_one_for_the_true_order_and_zero_for_none() -> None:
    value, ones = np.array([0.0, 1, 5, 2]), np.ones(4)
    assert gini(value * 3, value, ones) == 1 and gini(-value, value, ones) == -1
    assert gini(ones, value, ones) == 0 and gini(value, ones, ones) is None
    assert gini(value, value, np.array([1.0, 2, 1, 1])) == 1
    assert gini(np.zeros(0), np.zeros(0), np.zeros(0)) is None


def test_orders_without_a_value_go_to_the_dead_letters(tmp_path: Path) -> None:
    rows = [{"user": i, "ad": i % 5, "clicked": 1, "ordered": i % 2, "price": 2.0} for i in range(500)]
    rows[2]["price"] = 0.0  # no order: its value is not looked at
    rows[3]["price"], rows[5]["price"] = None, 0.0  # type: ignore[assignment]
    (tmp_path / "shown").mkdir()
    (tmp_path / "shown" / "00000.jsonl").write_text("".join(json.dumps(row) + "\n" for row in rows))
    source = f"file:{tmp_path}"
    options = TrainOptions(source, until_end=True, threads=1, checkpoint=str(tmp_path / "c"))
    report = train(shop_pipeline(LR()), options)
    assert report.dead_letter_reasons == {"bad_target": 2} and report.examples_trained == 498
    letters = "".join(f.read_text() for f in (tmp_path / "livectr.dead_letters").glob("*.jsonl"))
    assert "the value of target order, shown.price, is null; fill_null(column, value) stands in" in letters
    assert 'a lognormal value is above 0 (values=\\"ziln\\" takes 0, too)' in letters
    sample = read_sample(shop_pipeline(LR()), source, 400)
    assert sample.letters.counts.total() == 2
    assert train(
        shop_pipeline(LR(), values="ziln"), replace(options, checkpoint=str(tmp_path / "z"))
    ).dead_letter_reasons == {"bad_target": 1}


@pytest.mark.parametrize(
    ("make", "message"),
    [
        (lambda: shop_pipeline(LR(), value=3), "write a column of numbers as its value, not 3"),
        (
            lambda: shop_pipeline(LR(), values="normal"),
            "values is 'normal'; it must be 'lognormal' or 'ziln'",
        ),
        (lambda: shop_pipeline(LR(), value=zscore(LOG.price)), "depends on running statistics"),
        (
            lambda: livectr.score(
                shop_pipeline(LR(), value=None), "none", ADS_ASKED, target="order", value=True
            ),
            "value=True is for a target with values, not 'order'; the pipeline has none",
        ),
    ],
)
def test_what_is_no_value_is_refused(make: Any, message: str) -> None:
    with pytest.raises(ConfigError, match=message):
        make()
