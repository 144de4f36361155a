"""A shop: clicks, carts and orders, each in a window of its own; ads in order of value.

The logs are those of `simulate.py`. The shop earns the bid of an ad when it is clicked, and a share of the
amount of an order. A place lower on the page is seen less: `position_bias` learns that apart. Click
rates swing within hours: counters of the ads follow them.
"""

from livectr import (
    Label,
    Pipeline,
    Stream,
    Table,
    Target,
    counts,
    expected_value,
    label_join,
    ops,
    probability,
)
from livectr.models import LR, TwoTower, ftrl

keys = {"request_id": "int64", "user_id": "int64", "ts": "int64"}
impressions = Stream(
    "impressions",
    key="user_id",
    time="ts",
    columns={**keys, "ad_id": "int64", "position": "int32"},
)
clicks = Stream("clicks", key="user_id", time="ts", columns=keys)
carts = Stream("carts", key="user_id", time="ts", columns=keys)
orders = Stream("orders", key="user_id", time="ts", columns={**keys, "amount": "float64"})
ads = Table(
    "ads",
    key="ad_id",
    columns={"ad_id": "int64", "category": "string", "bid": "float64", "price": "float64"},
)

log = label_join(
    impressions,
    clicks,
    on="request_id",
    window="10m",
    labels=[Label("cart", carts, window="30m"), Label("order", orders, window="2h")],
).lookup(ads)

COMMISSION = 0.05
rates = counts(log, by="ad_id", over=("10m", "1h"))

pipeline = Pipeline(
    log,
    sparse={
        "user": log.user_id,
        "ad": log.ad_id,
        "category": ads.category,
        "price_band": ops.bucketize(ads.price, [10, 20, 50, 100]),
    },
    dense=rates.features("ad", prior=0.2),
    rank=LR(ftrl(alpha=0.1)),
    prerank=TwoTower(user=("user",), item=("ad", "category"), dim=8, hidden=(16,), out=8),
    items=ads,
    targets=[Target("cart", after="click"), Target("order", after="click", value=orders.amount)],
    value=ads.bid * probability("click") + COMMISSION * probability("order") * expected_value("order"),
    position_bias=log.position,
    settings={"batch_size": 512},
)
