"""The freshness histogram equals an observation for each example; metrics of a role exist from the start."""

from __future__ import annotations

import math
from collections.abc import Callable

import numpy as np
from hypothesis import given
from hypothesis import strategies as st
from prometheus_client import REGISTRY, CollectorRegistry, Histogram, generate_latest

from livectr.client.clients import PreRankClient, RankClient
from livectr.serving.app import App
from livectr.serving.metrics import STAGES, DelayHistogram
from tests.serving.display_world import NOW_MS, World, publication

DELAYS = st.lists(st.tuples(st.floats(0, 1000, allow_nan=False), st.integers(1, 5)), min_size=1, max_size=30)


@given(DELAYS)
def test_it_counts_like_prometheus_own(delays: list[tuple[float, int]]) -> None:
    ours, registry = DelayHistogram("h", "h"), CollectorRegistry()
    theirs = Histogram("h", "h", buckets=ours.bounds_s.tolist(), registry=registry)
    ours.observe(np.array([d for d, _ in delays]), np.array([n for _, n in delays]))
    for delay, count in delays:
        for _ in range(count):
            theirs.observe(delay)
    (family,) = ours.collect()
    (expected,) = registry.collect()
    found = [(s.labels.get("le"), s.value) for s in family.samples if s.name.endswith("_bucket")]
    wanted = [(s.labels.get("le"), s.value) for s in expected.samples if s.name.endswith("_bucket")]
    assert [(float(le), n) for le, n in found if le] == [(float(le), n) for le, n in wanted if le]
    total = next(s.value for s in family.samples if s.name.endswith("_sum"))
    assert math.isclose(total, sum(d * n for d, n in delays), rel_tol=1e-9, abs_tol=1e-9)


@given(DELAYS, st.sampled_from([0.5, 0.99]))
def test_a_quantile_is_the_bound_of_its_bucket(delays: list[tuple[float, int]], q: float) -> None:
    freshness = DelayHistogram("h", "h")
    freshness.observe(np.array([d for d, _ in delays]), np.array([n for _, n in delays]))
    every = np.repeat([d for d, _ in delays], [n for _, n in delays])
    exact = float(np.quantile(every, q, method="inverted_cdf"))
    found = freshness.quantile(q)
    assert found >= exact and (exact < 0.05 or math.isinf(found) or found <= exact * 2**0.25 * 1.001)


def test_nothing_observed() -> None:
    assert math.isnan(DelayHistogram("h", "h").quantile(0.5))
    assert b"livectr_freshness_seconds" in generate_latest()


def sample(name: str, **labels: str) -> float:
    value = REGISTRY.get_sample_value(name, labels)
    assert value is not None, f"{name}{labels} does not exist"
    return value


def test_a_server_has_every_metric_before_the_first_request(
    redis_url: str, world: World, serve: Callable[..., App]
) -> None:
    serve("prerank", ready=False)
    assert sample("livectr_server_ready", role="prerank") == 0
    codes = ("OK", "INVALID_ARGUMENT", "UNAVAILABLE", "RESOURCE_EXHAUSTED", "DEADLINE_EXCEEDED", "CANCELLED")
    for code in (*codes, "INTERNAL"):
        sample("livectr_requests_total", role="prerank", side="stable", code=code)
    for stage in STAGES:
        sample("livectr_request_stage_seconds_count", role="prerank", side="stable", stage=stage)
    for client in ("request", "follow"):
        sample("livectr_redis_seconds_count", client=client)
    sample("livectr_shed_requests_total", role="prerank")
    sample("livectr_redis_memory_bytes")


def test_the_stages_make_up_a_request(redis_url: str, world: World, serve: Callable[..., App]) -> None:
    def stages(role: str, field: str) -> dict[str, float]:
        name = f"livectr_request_stage_seconds_{field}"
        return {stage: sample(name, role=role, side="stable", stage=stage) for stage in STAGES}

    world.publish(publication(redis_url))
    rank, prerank = serve("rank"), serve("prerank")
    assert rank.follower._leaves_s == prerank.follower._leaves_s == 600
    for role in ("rank", "prerank"):
        assert sample("livectr_server_ready", role=role) == 1
        before = stages(role, "count")
        seconds = sum(stages(role, "sum").values())
        whole = sample("livectr_request_seconds_sum", role=role, code="OK", side="stable")
        if role == "rank":
            with RankClient(rank.server.address, 60) as client:
                client.rank({"user_id": 3, "ts": NOW_MS, "tags": []}, {"ad_id": [100], "position": [0]})
        else:
            with PreRankClient(prerank.server.address, 60) as tower:
                tower.prerank({"user_id": 3, "ts": NOW_MS}, None, 5)
        assert {stage: n - before[stage] for stage, n in stages(role, "count").items()} == dict.fromkeys(
            STAGES, 1
        )
        spent = sum(stages(role, "sum").values()) - seconds
        assert 0 < spent <= sample("livectr_request_seconds_sum", role=role, code="OK", side="stable") - whole
    assert sample("livectr_redis_memory_bytes") > 0
