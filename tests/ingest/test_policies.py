"""Policies in a pipeline: their tables, and rejected declarations."""

from __future__ import annotations

from typing import Any

import pytest

from livectr.ingest.language.policies import TablePolicy
from livectr.ingest.language.streams import Stream, labelled
from livectr.ingest.pipeline import Pipeline
from livectr.system.errors import ConfigError
from tests.ingest.small_pipeline import build

OLD = TablePolicy(max_age="30d")
FULL = TablePolicy(max_bytes="1GiB", evict="lru")


def test_one_policy_is_every_tables() -> None:
    assert build(policies=OLD).table_policies == dict.fromkeys(
        ("user", "age", "ad", "category", "pair", "hour"), OLD
    )
    assert build(policies={"ad": FULL}).table_policies == {"ad": FULL}
    assert build().table_policies == {}


def test_policies_are_part_of_what_a_model_belongs_to() -> None:
    prints = [build(policies=p).fingerprint for p in (None, OLD, {"ad": OLD}, {"ad": FULL}, {"user": FULL})]
    assert len(set(prints)) == 5
    assert build(policies={}).fingerprint == build().fingerprint
    two = {"ad": OLD, "user": FULL}
    assert build(policies=two).fingerprint == build(policies=dict(reversed(two.items()))).fingerprint
    assert build(policies=OLD).select(["user"]).table_policies == build(policies=OLD).table_policies


@pytest.mark.parametrize(
    ("policies", "message"),
    [
        ({"ads": OLD}, "policies name table 'ads'; tables are user, age, ad"),
        ({"history": OLD}, "policies name table 'history'"),  # a field that shares the table of another
        ({"ad": "30d"}, "the policy of table 'ad' is no TablePolicy but '30d'"),
        ("30d", "policies is a TablePolicy or"),
    ],
)
def test_mistakes_are_told(policies: Any, message: str) -> None:
    with pytest.raises(ConfigError, match=message):
        build(policies=policies)


def test_an_age_needs_event_times() -> None:
    rows = Stream("rows", key="row", columns={"row": "int64", "label": "int32", "c": "string"})
    log = labelled(rows, label="label")
    with pytest.raises(ConfigError, match="max_age of table 'c' needs event times"):
        Pipeline(log, sparse={"c": log.c}, rank="LR", policies=OLD)
    assert Pipeline(log, sparse={"c": log.c}, rank="LR", policies=FULL).table_policies == {"c": FULL}
