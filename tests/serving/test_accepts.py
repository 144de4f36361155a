"""Comparison of two pipelines' requests: every sentence, and none where the other takes as much."""

from __future__ import annotations

import pytest

from livectr.ingest.language.streams import Stream, label_join, labelled
from livectr.ingest.language.tables import Table
from livectr.ingest.pipeline import Pipeline
from livectr.models import LR, TwoTower
from livectr.serving.request.accepts import (
    refused_bids,
    refused_columns,
    refused_content,
    refused_items,
    refused_names,
)
from livectr.serving.request.parse import RequestSchema

BASE = {"user_id": "int64", "ad_id": "int64", "label": "int64"}


def made(
    columns: dict[str, str], features: tuple[str, ...], fill: dict[str, object] | None = None
) -> Pipeline:
    stream = Stream("impressions", key="user_id", columns=columns, fill=fill or {})
    log = labelled(stream, label="label")
    return Pipeline(log, sparse={name: getattr(log, name) for name in features}, rank=LR())


def columns(first: Pipeline, other: Pipeline) -> list[str]:
    schemas = [RequestSchema(pipeline, pipeline.plan.roots).columns for pipeline in (first, other)]
    return list(refused_columns(*schemas))


USED = ("user_id", "ad_id")
PLAIN = made(BASE, USED)


@pytest.mark.parametrize(
    ("other", "says"),
    [
        (made(BASE, ("user_id",)), []),
        (made(BASE | {"page": "string"}, USED), []),
        (made(BASE | {"page": "string"}, (*USED, "page"), {"page": ""}), []),
        (made(BASE | {"page": "string"}, (*USED, "page")), ["it needs page (string)"]),
        (made(BASE | {"ad_id": "int32"}, USED), ["ad_id is int32, not int64"]),
        (made(BASE | {"ad_id": "list<int64>"}, USED), ["ad_id is list<int64>, not int64"]),
    ],
)
def test_columns_that_features_need(other: Pipeline, says: list[str]) -> None:
    assert columns(PLAIN, other) == says


def test_a_column_that_may_be_left_out() -> None:
    page = BASE | {"page": "string"}
    filled, bare = made(page, (*USED, "page"), {"page": ""}), made(page, (*USED, "page"))
    assert columns(filled, bare) == ["it needs page, which may be left out"]
    assert columns(bare, filled) == columns(bare, bare) == []


def with_items(key: str = "int64", price: str = "float32") -> Pipeline:
    """Pipeline whose items are in a table, so that the column of the item belongs into the candidates."""
    impressions = Stream(
        "impressions", key="user_id", time="ts", columns={"user_id": "int64", "ad_id": key, "ts": "int64"}
    )
    clicks = Stream(
        "clicks", key="user_id", time="ts", columns={"user_id": "int64", "ad_id": key, "ts": "int64"}
    )
    ads = Table("ads", key="ad_id", columns={"ad_id": key, "price": price, "shop": "int64"})
    log = label_join(impressions, clicks, on=("user_id", "ad_id"), window="1m").lookup(ads)
    towers = TwoTower(user=("user",), item=("shop",), dim=4, hidden=(4,), out=4)
    return Pipeline(log, sparse={"user": log.user_id, "shop": ads.shop}, rank=LR(), prerank=towers, items=ads)


def test_a_column_that_moves_into_the_candidates() -> None:
    free = made({"user_id": "int64", "ad_id": "int64", "label": "int64"}, USED)
    assert columns(free, with_items()) == ["ad_id belongs into candidates"]
    assert columns(with_items(), free) == []


def test_items_and_their_bid_columns() -> None:
    ints, texts, free = (
        pipeline.items for pipeline in (with_items(), with_items("string"), with_items(price="string"))
    )
    assert ints is not None and texts is not None and free is not None
    assert list(refused_items(ints, texts)) == ["items are known by string, not int64"]
    assert list(refused_items(ints, ints)) == list(refused_bids(ints, ints)) == []
    assert list(refused_bids(ints, free)) == ["price is no numeric column of ads"]


def test_names_of_columns_and_content() -> None:
    streams = [made(columns, USED).log.impressions for columns in (BASE | {"page": "string"}, BASE)]
    assert list(refused_names(*streams)) == ["page is no column of impressions"]
    assert list(refused_names(*streams[::-1])) == []
    assert list(refused_content({"images": 8, "texts": 4}, {"images": 16})) == [
        "content images has width 16, not 8",
        "it has no content texts",
    ]
    assert list(refused_content({}, {"images": 16})) == []
