"""DICM over the examples of `bench.images.workload`, and the same without images."""

from __future__ import annotations

from bench.images.workload import CLICKED_IMAGES, IMAGE, Ads
from livectr.ingest.language.content import Content
from livectr.ingest.language.streams import Stream, label_join, recent
from livectr.ingest.language.tables import Table
from livectr.ingest.pipeline import Field, Pipeline
from livectr.models import DICM
from livectr.models.dicm import Basic
from livectr.models.embedding import EmbeddingModel

DIM, HIDDEN, SUB_MODEL = 12, (200, 80), (256, 64)
"""Sizes of ID and image vectors, network and sub-model: DICM §5.1, and DIN's network."""


def display_ads(log: Ads, *, images: bool, width: int = 4096, basic: Basic = "mlp") -> Pipeline:
    """A pipeline whose fields are `log.fields`, in that order.

    images: whether the model looks at images; their ids are sparse fields in any case (DICM §7.4). basic: the
    rest of the network; "din" has an interest in the clicked images' ids.
    """
    ids = dict(request_id="string", user_id="int64", ts="int64")
    numbers = [f"D{i + 1}" for i in range(log.dense)]
    impressions = Stream(
        "impressions",
        key="user_id",
        time="ts",
        columns=ids | dict.fromkeys((*log.own_fields, IMAGE), "int64") | dict.fromkeys(numbers, "float32"),
    )
    clicks = Stream(
        "clicks", key="user_id", time="ts", columns=ids | dict.fromkeys((*log.clicked_fields, IMAGE), "int64")
    )
    users = Table("users", key="user_id", columns=dict.fromkeys(("user_id", *log.user_fields), "int64"))
    joined = label_join(impressions, clicks, on="request_id", window="10m").lookup(users)
    clicked = {name: recent(clicks[name], n=100, within="14d") for name in (*log.clicked_fields, IMAGE)}
    return Pipeline(
        joined,
        sparse={
            **{name: users[name] for name in log.user_fields},
            **{name: clicked[name] for name in log.clicked_fields},
            CLICKED_IMAGES: Field(clicked[IMAGE], table=IMAGE),
            **{name: joined[name] for name in (*log.own_fields, IMAGE)},
        },
        dense={name: joined[name] for name in numbers},
        rank=model(log.own_fields[0], images=images, basic=basic),
        content={"images": Content((IMAGE, CLICKED_IMAGES), EmbeddingModel(width, DIM, hidden=SUB_MODEL))},
    )


def model(ad: str, *, images: bool, basic: Basic = "mlp") -> DICM:
    """Multi-query attention over the clicked images from the ad's and from field `ad`; or the basic net."""
    pair = ((IMAGE,), (CLICKED_IMAGES,)) if basic == "din" else ((), ())
    return DICM(
        ad_image=IMAGE,
        behavior_images=CLICKED_IMAGES,
        ad=ad,
        aggregator="multi_query_attentive",
        basic=basic,
        images="joint" if images else "none",
        target=pair[0],
        behaviors=pair[1],
        image_dim=DIM,
        dim=DIM,
        hidden=HIDDEN,
    )
