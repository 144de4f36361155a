"""Near-cache ratios, rows by field and served probabilities, as requests over a real socket move them."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import numpy as np
import pyarrow as pa
import pytest
import redis
from prometheus_client import REGISTRY, CollectorRegistry, Histogram, generate_latest

from livectr.client.clients import RankClient, RecommendClient
from livectr.client.failures import RefusedCallError
from livectr.serving.app import App
from livectr.serving.version.near_cache import COUNTED_LOOKUPS
from livectr.system.histograms import ProbabilityHistogram
from tests.serving.display_pipeline import pipeline
from tests.serving.display_world import NOW_MS, World, publication
from tests.waiting import until

Serve = Callable[..., App]
CONTEXT = {"user_id": -42, "ts": NOW_MS, "query": "Hello Wörld", "tags": ["x", "y"]}
ADS, POSITIONS = [100, 987654321, 5, 100], [0, 1, 2, 3]
TABLES = {spec.name: spec.table for spec in pipeline.fields}


def value(name: str, **labels: str) -> float:
    return REGISTRY.get_sample_value(name, {"side": "stable", **labels}) or 0.0


def keys(field: str) -> tuple[float, float]:
    """Keys of a field with a published row, and with initial values."""
    name = "livectr_served_keys_total"
    return value(name, field=field, row="published"), value(name, field=field, row="initial")


def cache() -> tuple[float, float, float]:
    """Unique keys found and read in counted look-ups; keys read in all."""
    names = ("hits", "misses", "read_keys")
    return tuple(value(f"livectr_near_cache_{name}_total") for name in names)  # type: ignore[return-value]


def asking(client: RankClient) -> Callable[[], Any]:
    return lambda: client.rank(CONTEXT, {"ad_id": ADS, "position": POSITIONS})


def rise(read: Callable[[], tuple[float, ...]], act: Callable[[], object]) -> tuple[float, ...]:
    before = read()
    act()
    return tuple(now - then for now, then in zip(read(), before, strict=True))


def unique(world: World, columns: pa.RecordBatch) -> int:
    """Unique keys of a batch over all tables."""
    features = world.extract(columns)
    seen: dict[str, set[int]] = {}
    for i, name in enumerate(pipeline.plan.fields):
        seen.setdefault(TABLES[name], set()).update(features.field(i)[1].tolist())
    return sum(map(len, seen.values()))


@pytest.mark.full
def test_unique_keys_of_both_sides_are_counted(redis_url: str, world: World, serve: Serve) -> None:
    """The user's row is prefetched with the look-up rows: it is no hit."""
    world.publish(publication(redis_url))
    expected = unique(world, world.columns(-42, ADS, POSITIONS))
    with RankClient(serve("rank", item_partials_mb=0).server.address, 60) as client:
        ask = asking(client)
        assert rise(cache, ask) == (0, expected, expected), "nothing was cached"
        for _ in range(COUNTED_LOOKUPS - 1):
            assert rise(cache, ask) == (0, 0, 0), "not counted, and nothing is read"
        assert rise(cache, ask) == (expected, 0, 0), "every key is in the near-cache"


def test_rows_with_initial_values_are_counted_by_field(redis_url: str, world: World, serve: Serve) -> None:
    trainer = publication(redis_url)
    world.publish(trainer)
    app = serve("rank", item_partials_mb=0)
    with RankClient(app.server.address, 60) as client:
        ask = asking(client)
        before, (hits, misses, read) = keys("user"), cache()
        assert rise(lambda: keys("ad"), ask) == (2, 2), "987654321 and 5 were never trained"
        assert keys("user") == (before[0], before[1] + 1)
        assert cache()[0] == hits and cache()[1] - misses == cache()[2] - read, "a prefetched row is no hit"
        for _ in range(COUNTED_LOOKUPS - 1):
            ask()
        assert rise(lambda: keys("ad"), ask) == (2, 2), "negative entries of the near-cache count"

        rows = world.step.tables[TABLES["ad"]].export(state=False)[1][:1]
        trainer.publish({TABLES["ad"]: (np.array([5]), rows)}, world.step.weights(), world.items())
        until(lambda: ask().version, equals=2)
        risen = [rise(lambda: keys("ad"), ask) for _ in range(COUNTED_LOOKUPS)]
        assert set(risen) == {(0, 0), (3, 1)}, "5 has a published row since then"


def test_keys_that_may_be_lost_are_not_taken_for_new(
    redis_url: str, client: redis.Redis, world: World, serve: Serve
) -> None:
    world.publish(publication(redis_url))
    app = serve("rank")
    client.flushall()
    with RankClient(app.server.address, 60) as ranks:
        ask = asking(ranks)
        assert rise(lambda: keys("ad"), ask) == (0, 0)
        assert ask().degraded


def test_probabilities_of_replies_are_counted_by_role(redis_url: str, world: World, serve: Serve) -> None:
    def served(role: str) -> tuple[float, float]:
        return value("livectr_served_pctr_count", role=role), value("livectr_served_pctr_sum", role=role)

    world.publish(publication(redis_url))
    app = serve("recommend")
    with RankClient(app.server.address, 60) as client:
        before = served("rank")
        response = client.rank(CONTEXT, {"ad_id": ADS, "position": POSITIONS})
    assert served("rank")[0] - before[0] == len(ADS)
    assert served("rank")[1] - before[1] == pytest.approx(sum(response.pctr))
    with RecommendClient(app.server.address, 60) as funnel:
        before = served("recommend")
        reply = funnel.recommend(CONTEXT | {"position": 1}, prerank_k=20, top_k=7)
    assert served("recommend")[0] - before[0] == len(reply.pctr) == 7
    assert served("recommend")[1] - before[1] == pytest.approx(sum(reply.pctr))
    assert b'livectr_served_pctr_bucket{le="1.0",role="rank",side="stable"}' in generate_latest()


def test_the_histogram_equals_prometheus_own() -> None:
    ours, registry = ProbabilityHistogram("h", "h", ["role"]), CollectorRegistry()
    theirs = Histogram("h", "h", ["role"], buckets=ours.bounds.tolist(), registry=registry).labels("rank")
    values = np.concatenate([np.random.default_rng(0).random(300) ** 6, ours.bounds, [0.0, 1.0]])
    ours.observe(values, "rank")
    for p in values:
        theirs.observe(p)
    found, wanted = (
        {s.labels["le"]: s.value for s in family.samples if s.name.endswith("_bucket")}
        for (family,) in (ours.collect(), registry.collect())
    )
    assert {float(le): n for le, n in found.items()} == {float(le): n for le, n in wanted.items()}


def test_the_time_of_failures_is_kept_apart(redis_url: str, world: World, serve: Serve) -> None:
    def seconds() -> tuple[float, float]:
        name = "livectr_request_seconds_count"
        return value(name, role="rank", code="OK"), value(name, role="rank", code="INVALID_ARGUMENT")

    world.publish(publication(redis_url))
    with RankClient(serve("rank").server.address, 60) as client:
        assert rise(seconds, lambda: client.rank(CONTEXT, {"ad_id": ADS, "position": POSITIONS})) == (1, 0)

        def refused() -> None:
            with pytest.raises(RefusedCallError):
                client.rank(CONTEXT, {"ad_id": ADS})  # without the position

        assert rise(seconds, refused) == (0, 1)
