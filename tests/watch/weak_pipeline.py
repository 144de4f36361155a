"""Pipeline whose model begins with large random weights and hardly learns, beside a shadow that learns.

The dense feature is 0 but for prices above a million.
"""

from livectr import Pipeline, Stream, Table, label_join, ops
from livectr.models import FM, LR, TwoTower, adagrad, ftrl

impressions = Stream(
    "impressions",
    key="user_id",
    time="ts",
    columns={"request_id": "int64", "user_id": "int64", "ad_id": "int64", "ts": "int64", "position": "int32"},
)
clicks = Stream(
    "clicks", key="user_id", time="ts", columns={"request_id": "int64", "user_id": "int64", "ts": "int64"}
)
ads = Table("ads", key="ad_id", columns={"ad_id": "int64", "category": "string", "price": "float64"})
log = label_join(impressions, clicks, on="request_id", window="2s").lookup(ads)

pipeline = Pipeline(
    log,
    dense={"beyond": ops.clip(ads.price - 1e6, 0.0, 3.4e38)},
    sparse={"user": log.user_id, "ad": log.ad_id, "category": ads.category, "position": log.position},
    rank=FM(init_scale=1.0, optimiser=adagrad(lr=1e-9), first_order=ftrl(alpha=1e-9)),
    shadows={"challenger": LR()},
    prerank=TwoTower(user=("user",), item=("ad", "category"), dim=4, hidden=(8,), out=8),
    items=ads,
    settings={"batch_size": 2048, "batch_ramp": 0, "batch_interval_ms": "500ms", "publish_interval_s": "2s"},
)
