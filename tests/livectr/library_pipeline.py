"""Pipeline of a program that trains through the library."""

from __future__ import annotations

from typing import Any

from livectr import Pipeline, Stream, labelled
from livectr.models import LR


def pipeline(**settings: Any) -> Pipeline:
    stream = Stream("clicks", key="user", columns={"user": "int64", "click": "int32"})
    log = labelled(stream, label="click")
    return Pipeline(
        log, sparse={"user": log.user}, rank=LR(), settings={"batch_ramp": 0, "threads": 1, **settings}
    )
