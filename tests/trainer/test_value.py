"""Value of a run: predicted before examples are learned, and what came, of each label."""

from __future__ import annotations

import json
from dataclasses import replace
from pathlib import Path

import numpy as np
import pytest

import livectr
from livectr import Pipeline, Stream, Table, Target, expected_value, labelled, probability
from livectr.cli import main
from livectr.models import LR
from livectr.system.errors import ConfigError
from livectr.trainer.quality.predictions import read_predictions, roles_of
from livectr.trainer.quality.telemetry import PREDICTED_VALUE, REALISED_VALUE
from tests.metrics_page import metric_value
from tests.trainer.label_kinds_once import shop, shop_log

ROWS = 8_000
SHOWN = Stream(
    "shown",
    key="user",
    columns=dict(user="int64", ad="int64", bid="float64", clicked="int32", ordered="int32"),
)
ADS = Table("ads", key="ad", columns=dict(ad="int64", price="float64"))
LOG = labelled(SHOWN, label="clicked").lookup(ADS)
PIPELINE = Pipeline(
    LOG,
    sparse={"ad": LOG.ad},
    rank=LR(),
    targets=[Target("order", LOG.ordered, after="click")],
    value=LOG.bid * probability("click") + ADS.price * probability("order"),
    weight=LOG.ad % 3 + 1,
)


def test_predicted_and_realised_values_are_those_of_the_log(
    tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    """A click with a high bid is rarer than the ad's rate says: the click is calibrated, its value is not."""
    rng = np.random.default_rng(0)
    ad, bid = rng.integers(0, 20, ROWS), rng.choice([1.0, 4.0], ROWS)
    clicked = rng.random(ROWS) < np.where(bid > 1, 0.05, 0.35)
    ordered = clicked & (rng.random(ROWS) < 0.3)
    shown = dict(user=np.arange(ROWS), ad=ad, bid=bid)
    shown |= {"clicked": clicked.astype(np.int32), "ordered": ordered.astype(np.int32)}
    price = np.arange(20) / 4.0
    counters = {"predicted": PREDICTED_VALUE, "realised": REALISED_VALUE}
    before = {name: metric_value(counter, label="click") for name, counter in counters.items()}
    run = livectr.train(
        PIPELINE,
        {"shown": shown, "ads": dict(ad=np.arange(20), price=price)},
        checkpoint=tmp_path / "run",
        threads=1,
        batch_size=64,
    )
    held = read_predictions(tmp_path / "run" / "predictions")
    assert roles_of(held) == ("rank", "rank.order")
    np.testing.assert_array_equal(held["worth.click"], bid)
    np.testing.assert_array_equal(held["worth.order"], price[ad].astype(np.float32))
    value, weight = run.report.value, (ad % 3 + 1).astype(np.float64)
    for label, role, worth, came in (
        ("click", "rank", bid, clicked),
        ("order", "rank.order", price[ad], ordered),
    ):
        predicted = (weight * worth / (1 + np.exp(-held[role].astype(np.float64)))).sum()
        realised = (weight * worth * came).sum()
        assert value["labels"][label]["predicted"] == pytest.approx(predicted)
        assert value["labels"][label]["realised"] == pytest.approx(realised)
    assert run.report.calibration == pytest.approx(1, abs=0.1)
    assert value["labels"]["click"]["calibration"] > 1.8
    assert value["calibration"] == pytest.approx(value["predicted"] / value["realised"])
    rows = {name: shown[name] for name in ("ad", "bid")}
    tables = {"ads": dict(ad=np.arange(20), price=price)}
    scores = [
        livectr.score(PIPELINE, run.checkpoint, rows, tables=tables, target=target)
        for target in (None, "order")
    ]
    values = livectr.score(PIPELINE, run.checkpoint, rows, tables=tables, value=True)
    np.testing.assert_allclose(values, bid * scores[0] + price[ad] * scores[1], rtol=1e-6)
    with pytest.raises(livectr.ConfigError, match="value=True is for a target with values, not 'order'"):
        livectr.score(PIPELINE, run.checkpoint, rows, tables=tables, value=True, target="order")
    for name, counter in counters.items():
        counted = metric_value(counter, label="click") - before[name]
        assert counted == pytest.approx(value["labels"]["click"][name])
    capsys.readouterr()
    log = str(tmp_path / "run" / "predictions")
    assert main(["evaluate", log, "--json"]) == 0
    rows = json.loads(capsys.readouterr().out)["values"]
    assert [(row["model"], row["of"], row["label"]) for row in rows] == [
        ("rank", of, label) for of in ("all", "last") for label in (None, "click", "order")
    ]
    assert rows[0]["predicted"] == pytest.approx(value["predicted"])
    assert rows[3]["calibration"] == pytest.approx(value["last_20_percent"]["calibration"])
    assert main(["evaluate", log]) == 0
    assert "worth × probability, and what came" in capsys.readouterr().out


def test_an_amount_is_predicted_and_realised(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    """An order's own amount: the prediction that scores have, and the amounts of the log."""
    log, rows = shop_log(1_500), 1_500
    whole = shop(late="wait")
    orders = whole.log.more_labels[1].stream
    targets = [Target("cart"), Target("order", after="click", value=orders.amount)]
    clicks = 0.5 * probability("click")
    pipeline = replace(
        whole, targets=targets, value=clicks + 0.1 * probability("order") * expected_value("order")
    )
    run = livectr.train(pipeline, log, checkpoint=tmp_path / "run", seed=1, threads=1, batch_size=64)
    held = read_predictions(tmp_path / "run" / "predictions")
    amount = np.zeros(rows)
    amount[[row["id"] for row in log["orders"]]] = [row["amount"] for row in log["orders"]]
    assert np.count_nonzero(amount) > 50
    np.testing.assert_allclose(held["worth.order.came"], 0.1 * amount[held["instance"]], rtol=1e-6)
    assert (held["worth.order.came"] > 0).tolist() == (held["rank.order.label"] == 1).tolist()
    found, odds = run.report.value["labels"], held["rank.order"].astype(np.float64)
    assert found["order"]["realised"] == pytest.approx(0.1 * amount.sum())
    assert found["order"]["predicted"] == pytest.approx((held["worth.order"] / (1 + np.exp(-odds))).sum())
    assert found["order"]["calibration"] == pytest.approx(1, abs=0.3)
    came = amount[held["instance"]] > 0
    predicted = held["worth.order"][came].sum() / 0.1 / came.sum()  # of the orders, as `values` has them
    assert predicted == pytest.approx(run.report.values["order"]["predicted"], rel=1e-5)
    asked = {name: np.arange(4) for name in ("user", "id", "ts", "ad", "place")}
    click, order, expected, value = (
        livectr.score(pipeline, run.checkpoint, asked, target=target, value=value)
        for target, value in ((None, False), ("order", False), ("order", True), (None, True))
    )
    np.testing.assert_allclose(value, 0.5 * click + 0.1 * order * expected, rtol=1e-6)
    assert main(["evaluate", str(tmp_path / "run" / "predictions"), "--json"]) == 0
    shown = json.loads(capsys.readouterr().out)["values"]
    assert shown[2]["label"] == "order" and shown[2]["realised"] == found["order"]["realised"]
    plainly = livectr.train(
        replace(pipeline, value=clicks), log, checkpoint=tmp_path / "plain", seed=1, threads=1, batch_size=64
    )
    plain = read_predictions(tmp_path / "plain" / "predictions")
    assert "worth.order.came" not in (plain.dtype.names or ())
    for role in roles_of(plain):  # how ads are ordered changes nothing that is learned
        np.testing.assert_array_equal(held[role], plain[role])
    assert plainly.report.value["labels"]["click"] == found["click"]


def test_an_amount_of_a_late_label_is_not_measured() -> None:
    whole = shop(late="fnw")
    orders = whole.log.more_labels[1].stream
    targets = [Target("cart"), Target("order", after="click", value=orders.amount)]
    value = probability("order") * expected_value("order")
    with pytest.raises(ConfigError, match=r"of final labels; leave delayed= of Label\('order'\) out"):
        replace(whole, targets=targets, value=value)
