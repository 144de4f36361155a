"""Small pipeline with two look-up tables, a history and two roles."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Any

from livectr.ingest.language.streams import Stream, label_join, recent
from livectr.ingest.language.tables import Table
from livectr.ingest.operators import bucketize, cross, hour, log1p
from livectr.ingest.pipeline import Field, Pipeline

EVENT = dict(request_id="string", user_id="int64", ad_id="int32", ts="int64")
IMPRESSIONS = Stream("impressions", columns=EVENT, key="user_id", time="ts")
CLICKS = Stream("clicks", columns=EVENT, key="user_id", time="ts")
USERS = Table("users", key="user_id", columns=dict(user_id="int64", age="int32"))
ADS = Table("ads", key="ad_id", columns=dict(ad_id="int64", category="string", price="float32"))
LOG = label_join(IMPRESSIONS, CLICKS, on="request_id", window="10m").lookup(USERS).lookup(ADS)


@dataclass(frozen=True)
class Towers:
    user: tuple[str, ...] = ("user", "history")
    item: tuple[str, ...] = ("ad", "category", "price")


def build(**changes: Any) -> Pipeline:
    age = bucketize(USERS.age, [18, 30])
    sparse = dict(
        user=LOG.user_id,
        age=age,
        ad=LOG.ad_id,
        category=ADS.category,
        pair=cross(age, ADS.category),
        hour=hour(LOG.ts),
        history=Field(recent(CLICKS.ad_id, 20, "14d"), table="ad"),
    )
    settings: dict[str, Any] = dict(
        sparse=sparse, dense=dict(price=log1p(ADS.price)), rank="LR", prerank=Towers(), items=ADS
    )
    log = changes.pop("log", LOG)
    return Pipeline(log, **(settings | changes))
