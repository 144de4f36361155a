"""Open Bandit (ZOZOTOWN fashion recommendations): which item is clicked at which of three positions.

`prepare.py` fetches the six logs and joins them by time; items are a look-up table, so that a two-tower model
pre-ranks the whole catalogue. The users are anonymous: four hashed features describe them, and all
four together stand for the user.
"""

from ingest.operators import cross, hour, weekday
from ingest.pipeline import Pipeline
from ingest.streams import Stream, Table, labelled
from models.base import adagrad
from models.deepfm import DeepFM
from models.two_tower import TwoTower

features = [f"user_feature_{i}" for i in range(4)]
kinds = [f"item_feature_{i}" for i in range(1, 4)]

impressions = Stream(
    "open_bandit",
    key="user",
    time="timestamp",
    columns={
        "timestamp": "int64",
        "user": "string",
        "item": "int64",
        "campaign": "string",
        "policy": "string",
        "position": "int32",
        "affinity": "float64",
        "click": "int32",
        **dict.fromkeys(features, "string"),
    },
)
items = Table(
    "open_bandit_items",
    key="item",
    columns={"item": "int64", "item_feature_0": "float64", **dict.fromkeys(kinds, "string")},
)

log = labelled(impressions, label="click").lookup(items)

pipeline = Pipeline(
    log,
    sparse={
        "user": log.user,
        **{name: log[name] for name in features},
        "item": log.item,
        **{name: items[name] for name in kinds},
        "campaign": log.campaign,
        "position": log.position,
        "item_x_position": cross(log.item, log.position),
        "hour": hour(log.timestamp),
        "weekday": weekday(log.timestamp),
    },
    dense={"affinity": log.affinity, "item_feature_0": items.item_feature_0},
    rank=DeepFM(dim=8, hidden=(64, 32), optimiser=adagrad(lr=0.02)),
    prerank=TwoTower(
        user=("user", *features, "campaign"),
        item=("item", *kinds),
        dim=8,
        hidden=(32,),
        out=16,
    ),
    items=items,
    settings={"batch_size": 512},
)
