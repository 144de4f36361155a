"""The pre-rank server's scores are the two-tower model's logits."""

from __future__ import annotations

from collections.abc import Callable

import numpy as np
import pytest

from livectr.client.clients import PreRankClient
from livectr.serving.app import App
from livectr.system.errors import ConfigError
from tests.serving.display_world import HISTORY, NOW_MS, World, publication
from tests.serving.swap_pipeline import pipeline as without_prerank

Serve = Callable[..., App]
CONTEXT = {"user_id": 3, "ts": NOW_MS}


def logits(world: World, user: int, ads: list[int], history: list[int]) -> np.ndarray:
    return world.logits("prerank", world.columns(user, ads, [0] * len(ads), history=history))


def test_scores_are_the_trainers_logits(redis_url: str, world: World, serve: Serve) -> None:
    trainer = publication(redis_url)
    trainer.history(HISTORY, 3, [101, 102], [NOW_MS - 5000, NOW_MS - 1000])
    version = world.publish(trainer)
    ads = list(range(149, 99, -1))
    with PreRankClient(serve("prerank").server.address) as client:
        response = client.prerank(CONTEXT, ads, 10, request_id="p1")
        everything = client.prerank(CONTEXT, None, 1000)
    expected = logits(world, 3, ads, [101, 102])
    np.testing.assert_allclose(response.score, expected[list(response.index)], atol=1e-5)
    np.testing.assert_allclose(response.score, np.sort(expected)[::-1][:10], atol=1e-5)
    assert [ads[i] for i in response.index] == list(response.ids.values)
    assert (response.version, response.unknown, response.request_id) == (version, 0, "p1")
    assert sorted(everything.ids.values) == sorted(ads) and not everything.index
    np.testing.assert_allclose(everything.score, np.sort(expected)[::-1], atol=1e-5)


def test_unknown_items_are_scored_from_their_features(redis_url: str, world: World, serve: Serve) -> None:
    trainer = publication(redis_url)
    world.publish(trainer)
    trainer.lookup_rows("ads", {7: [7, "cat1", 3.5]})  # an ad of this minute: looked up, but in no version
    ads = [100, 7, 999, 101]
    with PreRankClient(serve("prerank").server.address) as client:
        response = client.prerank(CONTEXT, ads, 4)
    columns = world.columns(3, ads, [0] * 4, more_ads={7: [7, "cat1", 3.5]})
    expected = world.logits("prerank", columns)
    np.testing.assert_allclose(response.score, expected[list(response.index)], atol=1e-5)
    assert response.unknown == 2


def test_unknown_user_is_answered(redis_url: str, world: World, serve: Serve) -> None:
    world.publish(publication(redis_url))
    with PreRankClient(serve("prerank").server.address) as client:
        response = client.prerank({"user_id": 10**15}, [100, 101], 5)
    expected = logits(world, 10**15, [100, 101], [])
    np.testing.assert_allclose(response.score, expected[list(response.index)], atol=1e-5)


def test_pre_rank_needs_its_model(redis_url: str, serve: Serve) -> None:
    with pytest.raises(ConfigError, match="prerank=TwoTower"):
        serve("prerank", without_prerank)
