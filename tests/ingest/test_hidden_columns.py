"""A column that an attribute hides is an error where it is used, never a constant in its place."""

from __future__ import annotations

from typing import Any

import pytest

from livectr import Pipeline, Stream, Table, labelled, ops
from livectr.ingest.language.expr import Expr
from livectr.ingest.language.streams import View
from livectr.system.errors import ConfigError


def view(log: View, **features: Any) -> Pipeline:
    return Pipeline(log, **features, rank="none")


NAMES = ("topic", "key", "time", "fill", "where", "columns", "json_fields", "max_ahead_ms")
events = Stream(
    "events",
    key="user",
    time="time",
    columns={
        "user": "int64",
        "id": "int64",
        **dict.fromkeys(NAMES, "int64"),
        "label": "int64",
        "on": "int64",
    },
)
clicks = Stream("clicks", key="user", time="ts", columns={"user": "int64", "id": "int64", "ts": "int64"})
ads = Table("ads", key="id", columns={"id": "int64", "topic": "string", "key": "string", "where": "string"})
log = labelled(events, label="label").lookup(ads)


@pytest.mark.parametrize("name", NAMES)
def test_an_attribute_of_a_stream_is_no_feature(name: str) -> None:
    assert isinstance(events[name], Expr)
    for use in (lambda value: view(log, sparse={"x": value}), lambda value: ops.hour(value)):
        with pytest.raises(ConfigError) as raised:
            use(getattr(events, name))
        assert f'events["{name}"]' in str(raised.value) or "write stream['name']" in str(raised.value)


def test_what_to_write_is_said() -> None:
    assert ads.topic == "ads" and repr(ads.topic) == "'ads'"
    with pytest.raises(
        ConfigError, match=r'lower: .ads. is an attribute that hides .*; write ads\["topic"\]'
    ):
        ops.lower(ads.topic)
    with pytest.raises(ConfigError, match=r'sparse field .x.: .id. is an attribute .* write ads\["key"\]'):
        view(log, sparse={"x": ads.key})
    assert log.label is log["label"]
    with pytest.raises(ConfigError, match=r"events.label is the label"):
        view(log, sparse={"u": log.user}, dense={"x": log.label})
    assert ads.where.name == "ads.where"  # a table has no such attribute


def test_declarations_are_what_they_were() -> None:
    plain = Table("ads", key="id", columns={"id": "int64", "x": "string"})
    hiding = Table("ads", key="id", columns={"id": "int64", "topic": "string"})
    assert repr(hiding) == repr(plain).replace("'x'", "'topic'")
