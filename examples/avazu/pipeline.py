"""Avazu click-through rate prediction (Kaggle layout): 21 categories and an hour, the label is a column.

`livectr logs replay train.csv --format avazu` turns `hour` (YYMMDDHH) into epoch milliseconds.
"""

from livectr import Pipeline, Stream, labelled, ops
from livectr.models import DeepFM

texts = [
    *(f"{of}_{part}" for of in ("site", "app") for part in ("id", "domain", "category")),
    *("device_id", "device_ip", "device_model"),
]
numbers = ["C1", "banner_pos", "device_type", "device_conn_type", *(f"C{i}" for i in range(14, 22))]

avazu = Stream(
    "avazu",
    key="device_ip",
    time="hour",
    columns={
        "id": "string",
        "click": "int32",
        "hour": "int64",
        **dict.fromkeys(texts, "string"),
        **dict.fromkeys(numbers, "int32"),
    },
)
log = labelled(avazu, label="click")

pipeline = Pipeline(
    log,
    sparse={
        **{name: log[name] for name in (*texts, *numbers)},
        "hour_of_day": ops.hour(log.hour),
        "weekday": ops.weekday(log.hour),
        "device": ops.cross(log.device_ip, log.device_model),
    },
    rank=DeepFM(dim=16, hidden=(256, 128)),
)
