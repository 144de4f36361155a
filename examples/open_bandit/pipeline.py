"""Open Bandit (ZOZOTOWN fashion recommendations): which item is clicked at which of three positions.

`prepare.py` fetches the six logs and joins them by time; items are a look-up table, so that a two-tower model
pre-ranks the whole catalogue. The users are anonymous: four hashed features describe them, and all
four together (column `user`) stand for the user in GAUC.

With 287 clicks the ranker is a logistic regression on few fields, at a high rate: see README.md.
"""

from livectr import Pipeline, Stream, Table, labelled, ops
from livectr.models import LR, TwoTower, ftrl

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
    columns={"item": "int64", **dict.fromkeys(kinds, "string")},
)

log = labelled(impressions, label="click").lookup(items)

pipeline = Pipeline(
    log,
    sparse={
        **{name: log[name] for name in features},
        "item": log.item,
        **{name: items[name] for name in kinds},
        "campaign": log.campaign,
        "position": log.position,
        "clicked_before": ops.bucketize(log.affinity, [0.5]),
    },
    rank=LR(ftrl(alpha=0.2)),
    prerank=TwoTower(
        user=(*features, "campaign"),
        item=("item", *kinds),
        dim=8,
        hidden=(32,),
        out=16,
    ),
    items=items,
    settings={"batch_size": 512},
)
