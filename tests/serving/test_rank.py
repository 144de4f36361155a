"""The rank server answers what the trainer computes, over a real socket, from a real Redis."""

from __future__ import annotations

from collections.abc import Callable

import numpy as np
import pytest
import redis
import torch

from bench.planted import pipeline
from livectr.client.clients import RankClient
from livectr.models import DNN, DeepFM, ModelConfig, WideDeep
from livectr.serving.app import App
from livectr.serving.score.inputs import FieldVectors
from livectr.serving.score.rank_scorer import RankScorer
from livectr.trainer.des.step import DesStep
from tests.redis_servers import SERVER_AND_CLUSTER
from tests.serving.display_requests import ADS, CONTEXT, POSITIONS, in_request_order, sigmoid
from tests.serving.display_world import HISTORY, NOW_MS, World, publication
from tests.waiting import until

Serve = Callable[..., App]


@SERVER_AND_CLUSTER
def test_served_logits_are_the_trainers(redis_url: str, world: World, serve: Serve) -> None:
    trainer = publication(redis_url)
    trainer.history(HISTORY, 3, [101, 102, 103], [NOW_MS - 5000, NOW_MS - 3000, NOW_MS - 1000])
    version = world.publish(trainer)
    with RankClient(serve("rank").server.address) as client:
        for _ in range(2):  # from Redis, then from the near-cache
            response = client.rank(CONTEXT, {"ad_id": ADS, "position": POSITIONS}, request_id="r1")
            expected = world.logits("rank", world.columns(3, ADS, POSITIONS, history=[101, 102, 103]))
            np.testing.assert_allclose(in_request_order(response), sigmoid(expected), atol=1e-6)
    assert (response.version, response.request_id, response.degraded) == (version, "r1", False)
    assert response.model.startswith("DeepFM/")


def test_order_is_by_expected_revenue(redis_url: str, world: World, serve: Serve) -> None:
    world.publish(publication(redis_url))
    bids = np.random.default_rng(1).random(40) * 5
    with RankClient(serve("rank").server.address) as client:
        candidates = {"ad_id": ADS, "position": POSITIONS}
        plain = client.rank(CONTEXT, candidates)
        response = client.rank(CONTEXT, candidates, bids.tolist())
    assert list(plain.ecpm) == pytest.approx(list(plain.pctr))
    assert list(response.ecpm) == sorted(response.ecpm, reverse=True)
    np.testing.assert_allclose(response.ecpm, bids[list(response.index)] * np.array(response.pctr), rtol=1e-6)
    np.testing.assert_allclose(in_request_order(response), in_request_order(plain), rtol=1e-6)


@pytest.mark.parametrize("count", [2, 5, 17, 31])
def test_equal_revenue_keeps_the_requests_order(
    redis_url: str, world: World, serve: Serve, count: int
) -> None:
    """Equal ads have equal bits, with a history too."""
    trainer = publication(redis_url)
    trainer.history(HISTORY, 3, [101, 102, 103], [NOW_MS - 5000, NOW_MS - 3000, NOW_MS - 1000])
    world.publish(trainer)
    with RankClient(serve("rank").server.address) as client:
        response = client.rank(CONTEXT, {"ad_id": [120] * count, "position": [1] * count})
    assert list(response.index) == list(range(count)) and len(set(response.pctr)) == 1


@pytest.mark.parametrize("model", [DeepFM(), DeepFM(dim=8, hidden=(32, 16)), WideDeep(), DNN()])
def test_equal_candidates_have_equal_bits(model: ModelConfig) -> None:
    """Of any number, with any weights: a product adds the rows of an incomplete block in another order."""
    built, rng = pipeline(model, fields=11, dense=3), np.random.default_rng(0)
    for count in range(2, 34):
        weights = DesStep(built, seed=count).weights()
        scorer = RankScorer(built, {name: w + 0.1 * torch.randn(w.shape) for name, w in weights.items()})
        vectors, dense = rng.normal(size=(11, model.width)), rng.normal(size=3)
        rows = [np.tile(x, (count, *[1] * x.ndim)).astype(np.float32) for x in (vectors, dense)]
        for shared in ((), (0, 3, 4, 10)):
            own = tuple(i for i in range(11) if i not in shared)
            parts = FieldVectors(rows[0][:, own], own, rows[0][:1, shared], shared)
            assert len(np.unique(scorer.logits(parts, rows[1], {}, {}))) == 1, (count, shared)


def test_unknown_user_and_ads_are_scored_from_initial_rows(
    redis_url: str, world: World, serve: Serve
) -> None:
    world.publish(publication(redis_url))
    ads = [100, 987654321, 5]
    with RankClient(serve("rank").server.address) as client:
        for _ in range(2):  # the second time from the negative entries of the near-cache
            response = client.rank(CONTEXT | {"user_id": -42}, {"ad_id": ads, "position": [0, 1, 2]})
            expected = world.logits("rank", world.columns(-42, ads, [0, 1, 2]))
            np.testing.assert_allclose(in_request_order(response), sigmoid(expected), atol=1e-6)


def test_one_candidate(redis_url: str, world: World, serve: Serve) -> None:
    world.publish(publication(redis_url))
    with RankClient(serve("rank").server.address) as client:
        response = client.rank(CONTEXT, {"ad_id": [111], "position": [2]})
    expected = world.logits("rank", world.columns(3, [111], [2]))
    np.testing.assert_allclose(response.pctr, sigmoid(expected), atol=1e-6)


def test_a_column_may_be_context_or_candidate(redis_url: str, world: World, serve: Serve) -> None:
    world.publish(publication(redis_url))
    shared = {key: value for key, value in CONTEXT.items() if key != "tags"}
    with RankClient(serve("rank").server.address) as client:
        once = client.rank(CONTEXT | {"position": 3}, {"ad_id": ADS})
        each = client.rank(shared, {"ad_id": ADS, "position": [3] * 40, "tags": [["x", "y"]] * 40})
    np.testing.assert_allclose(in_request_order(once), in_request_order(each), atol=1e-7)


def test_optional_columns_take_the_clock_and_the_fill(redis_url: str, world: World, serve: Serve) -> None:
    world.publish(publication(redis_url))
    with RankClient(serve("rank").server.address) as client:
        left_out = client.rank(
            {"user_id": 3, "tags": [], "ts": NOW_MS}, {"ad_id": ADS, "position": POSITIONS}
        )
        clock = client.rank({"user_id": 3, "tags": []}, {"ad_id": ADS, "position": POSITIONS})
    expected = world.logits("rank", world.columns(3, ADS, POSITIONS, query="nothing", tags=[]))
    np.testing.assert_allclose(in_request_order(left_out), sigmoid(expected), atol=1e-6)
    assert len(clock.pctr) == 40


def test_history_is_as_of_the_request(redis_url: str, world: World, serve: Serve) -> None:
    trainer = publication(redis_url)
    world.publish(trainer)
    day = 86_400_000
    times = [NOW_MS - 20 * day, NOW_MS - 13 * day, NOW_MS - 10, NOW_MS + 10]
    trainer.history(HISTORY, 3, [110, 111, 112, 113], times)
    with RankClient(serve("rank").server.address) as client:
        response = client.rank(CONTEXT, {"ad_id": ADS, "position": POSITIONS})
    expected = world.logits("rank", world.columns(3, ADS, POSITIONS, history=[111, 112]))
    np.testing.assert_allclose(in_request_order(response), sigmoid(expected), atol=1e-6)


def test_a_changed_look_up_row_is_seen(redis_url: str, world: World, serve: Serve) -> None:
    trainer = publication(redis_url)
    world.publish(trainer)
    with RankClient(serve("rank", lookup_ttl_s=0.0).server.address) as client:
        client.rank(CONTEXT, {"ad_id": ADS, "position": POSITIONS})
        trainer.lookup_rows("users", {3: [3, 99, "elsewhere"]})
        response = client.rank(CONTEXT, {"ad_id": ADS, "position": POSITIONS})
    moved = world.columns(3, ADS, POSITIONS, profile=[3, 99, "elsewhere"])
    np.testing.assert_allclose(in_request_order(response), sigmoid(world.logits("rank", moved)), atol=1e-6)


def test_a_look_up_row_is_kept_until_a_version_lists_it(
    redis_url: str, world: World, serve: Serve, client: redis.Redis
) -> None:
    trainer = publication(redis_url)
    world.publish(trainer)
    app = serve("rank")
    (name, table), *_ = world.step.tables.items()
    keys, rows = table.export(state=False)
    same = {name: (keys[:1], rows[:1])}
    seen = []
    with RankClient(app.server.address) as ranks:
        for version in (1, 2, 3):
            if version == 2:
                trainer.lookup_rows("users", {3: [3, 99, "elsewhere"]})
                seen.append(ranks.rank(CONTEXT, {"ad_id": ADS, "position": POSITIONS}))  # not yet listed
            if version > 1:
                trainer.publish(same, world.step.weights(), world.items())
                until(lambda: (now := app.follower.current) is not None and now.number == version)  # noqa: B023
            seen.append(ranks.rank(CONTEXT, {"ad_id": ADS, "position": POSITIONS}))

        def reads_of_a_request() -> int:
            before = client.info("commandstats")["cmdstat_mget"]["calls"]
            seen[-1] = ranks.rank(CONTEXT, {"ad_id": ADS, "position": POSITIONS})
            return int(client.info("commandstats")["cmdstat_mget"]["calls"]) - before

        # Only the history is read again. The server's own reads after a swap may still continue.
        until(lambda: reads_of_a_request(), equals=1)
    before, moved = (
        sigmoid(world.logits("rank", world.columns(3, ADS, POSITIONS, profile=profile)))
        for profile in (None, [3, 99, "elsewhere"])
    )
    for response, expected in zip(seen, (before, before, moved, moved), strict=True):
        np.testing.assert_allclose(in_request_order(response), expected, atol=1e-6)


def test_a_full_near_cache_still_answers_right(redis_url: str, world: World, serve: Serve) -> None:
    world.publish(publication(redis_url))
    app = serve("rank", near_cache_rows=20)
    with RankClient(app.server.address) as client:
        for start in range(100, 150, 10):
            ads = list(range(start, start + 10))
            response = client.rank(CONTEXT, {"ad_id": ads, "position": [0] * 10})
            expected = world.logits("rank", world.columns(3, ads, [0] * 10))
            np.testing.assert_allclose(in_request_order(response), sigmoid(expected), atol=1e-6)
