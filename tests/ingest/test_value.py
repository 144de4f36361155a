"""Value of an impression: how it is declared, what it may read, and the worths of rows."""

from __future__ import annotations

from dataclasses import replace
from typing import Any

import numpy as np
import pyarrow as pa
import pytest

from livectr import ConfigError, Pipeline, Stream, Table, Target, expected_value, labelled, probability
from livectr.ingest.extract.worths import WorthExtractor
from livectr.ingest.operators import fill_null, zscore
from livectr.models import LR, TwoTower

impressions = Stream(
    "impressions",
    key="user",
    columns={"user": "int64", "ad": "int64", "bid": "float64", "page": "string", "click": "int64"},
)
ads = Table(
    "ads", key="ad", columns={"ad": "int64", "bid": "float64", "order_bid": "int64", "name": "string"}
)
log = labelled(impressions, label="click").lookup(ads)
click: Any = probability("click")
order: Any = probability("order")


amount: Any = expected_value("order")
ORDERS = Target("order", log.click, after="click", value=log.bid)


def pipeline(value: Any, **more: Any) -> Pipeline:
    given: dict[str, Any] = {"targets": [Target("order", log.click, after="click")], **more}
    sparse = {"user": log.user, "ad": log.ad}
    return Pipeline(log, sparse=sparse, rank=LR(), items=ads, value=value, **given)


def test_a_value_is_a_sum_of_worths_times_probabilities() -> None:
    made = pipeline(2 * (ads.bid * click + order * ads.order_bid * 0.5))
    worths = made.worths
    assert worths is not None and worths.labels == ("click", "order") and not worths.needs_bids
    assert worths.lookup is not None and worths.lookup.table is ads
    assert str(made.value) == (
        "multiply(ads.bid, 2.0) * probability('click') + "
        "multiply(multiply(ads.order_bid, 0.5), 2.0) * probability('order')"
    )
    rows = pa.RecordBatch.from_pydict(
        {"ads.bid": [1.5, None, -3.0, float("nan")], "ads.order_bid": pa.array([4, 2, 0, None], pa.int64())}
    )
    extract = WorthExtractor(worths, worths.row_plan, worths.labels)
    np.testing.assert_array_equal(extract(rows), [[3, 4], [0, 2], [0, 0], [0, 0]])


def test_a_declared_fill_stands_in_for_a_missing_bid() -> None:
    worths = pipeline(fill_null(ads.bid, 0.25) * click).worths
    assert worths is not None
    rows = pa.RecordBatch.from_pydict({"ads.bid": pa.array([None, 2.0], pa.float64())})
    found = WorthExtractor(worths, worths.row_plan, worths.labels)(rows)
    np.testing.assert_array_equal(found, [[0.25], [2]])


def test_bids_of_the_log_come_with_requests() -> None:
    worths = pipeline(log.bid * click + ads.order_bid * order).worths
    assert worths is not None and worths.needs_bids and list(worths.row_plan.dense) == ["order"]
    assert list(worths.plan.dense) == ["click", "order"] and not worths.published
    assert (ads.order_bid * order).bid_label == "order"


def test_the_value_is_a_part_of_the_fingerprint() -> None:
    plain, valued = pipeline(None), pipeline(ads.bid * click)
    assert len({plain.fingerprint, valued.fingerprint, pipeline(2 * click).fingerprint}) == 3
    assert replace(valued, value=None).fingerprint == plain.fingerprint
    assert pipeline(ads.bid * click).fingerprint == valued.fingerprint


TOWERS = TwoTower(user=("user",), item=("ad",))


def test_an_expected_value_multiplies_the_probability_of_its_target() -> None:
    """It is no worth: rows and bids have the other factors, and pre-rank cuts by these."""
    values = [
        ads.order_bid * order * amount,
        amount * (ads.order_bid * order),
        ads.order_bid * amount * order,
        order * (amount * ads.order_bid),
    ]
    made = [pipeline(ads.bid * click + value, targets=[ORDERS], prerank=TOWERS) for value in values]
    assert len({each.fingerprint for each in made}) == 1
    term = "ads.order_bid * probability('order') * expected_value('order')"
    assert {str(each.value) for each in made} == {f"ads.bid * probability('click') + {term}"}
    worths, without = made[0].worths, pipeline(ads.bid * click + ads.order_bid * order, targets=[ORDERS])
    assert worths is not None and without.worths is not None and made[0].value is not None
    assert without.fingerprint not in {each.fingerprint for each in made}
    assert made[0].value.expected == ("order",) and worths.plan.dense == without.worths.plan.dense
    assert worths.measured == ("click", "order", "order.came") and without.worths.measured == worths.labels
    assert worths.cut_without.startswith("pre-rank cuts by ads.bid * probability('click'): ")
    assert term in worths.cut_without and not without.worths.cut_without
    assert [len(each) for each in made[0].value.meaning] == [2, 3]  # others keep their fingerprints
    doubled = pipeline(2 * (order * amount), targets=[ORDERS])
    assert str(doubled.value) == "2 * probability('order') * expected_value('order')"


@pytest.mark.parametrize(
    ("value", "more", "words"),
    [
        (lambda: "bid * click", {}, r"value is 'bid \* click'; write value=ads.bid \* probability"),
        (lambda: ads.bid, {}, "from livectr import probability"),
        (
            lambda: ads.bid * probability("cart"),
            {},
            r"'cart'\), which is no label; the labels are click, order",
        ),
        (lambda: probability("a b"), {}, "the label is 'a b'"),
        (lambda: click * order, {}, "a product of two probabilities"),
        (lambda: click + click, {}, r"probability\('click'\) is there twice"),
        (lambda: click + 1, {}, "1 cannot be added"),
        (lambda: click * "2", {}, "'2' is no worth"),
        (lambda: -1 * click, {}, "the worth of click is -1; it is at least 0"),
        (lambda: order * amount, {}, r"expected_value\('order'\), but no target predicts it; write Target"),
        (lambda: click * amount, {}, r"expected_value\('order'\) multiplies probability\('order'\), once"),
        (lambda: order * amount * amount, {}, r"multiplies probability\('order'\), once"),
        (lambda: amount * amount, {}, "a product of two expected values"),
        (lambda: expected_value("a b"), {}, "the label is 'a b'"),
        (lambda: ads.bid * amount, {"targets": [ORDERS]}, "write value=ads.bid"),
        (lambda: order + order * amount, {"targets": [ORDERS]}, "is there twice"),
        (lambda: ads.name * click, {}, "ads.name, is string; write a number"),
        (lambda: zscore(ads.bid) * click, {}, "depends on running statistics"),
        (lambda: log.click * click, {}, "is the label"),
        (lambda: ads.bid * click + log.bid * order, {}, "the bids of a request are the worth of click"),
        (lambda: Table("shops", key="s", columns={"s": "int64"}).s * click, {}, "shops is not looked up"),
    ],
)
def test_what_is_no_value(value: Any, more: dict[str, Any], words: str) -> None:
    with pytest.raises(ConfigError, match=words):
        pipeline(value(), **more)


def test_pre_rank_knows_the_items_rows_alone() -> None:
    pages = Table("pages", key="page", columns={"page": "string", "rate": "float64"})
    view = log.lookup(pages)
    declared: dict[str, Any] = dict(sparse={"user": view.user, "ad": view.ad}, rank=LR(), items=ads)
    assert Pipeline(view, **declared, value=pages.rate * click).worths is not None
    with pytest.raises(ConfigError, match=r"pre-rank knows the rows of items= alone"):
        Pipeline(view, **declared, value=pages.rate * click, prerank=TOWERS)
    with pytest.raises(ConfigError, match="reads the tables ads and pages; take one table"):
        Pipeline(view, **declared, value=ads.bid * click * pages.rate)
