"""Look up → score → reply in one call: few calls of Python, and no memory of an emptied near-cache."""

from __future__ import annotations

import gc
import sys
import weakref
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from types import FrameType
from typing import Any

import pytest

from livectr.client.clients import column_of
from livectr.protos import livectr_pb2 as pb
from livectr.serving.options import ServeOptions
from livectr.serving.score.followers import version_follower
from livectr.serving.score.plan_stages import FieldOrder
from livectr.serving.score.prerank import PreRanker
from livectr.serving.score.rank import Ranker
from livectr.serving.score.rank_scorer import RankScorer
from livectr.serving.score.tower_scorer import TowerScorer
from livectr.serving.version.follower import VersionFollower
from tests.serving.display_pipeline import pipeline
from tests.serving.display_requests import ADS, CONTEXT, POSITIONS
from tests.serving.display_world import World, publication
from tests.waiting import left_s

MOST_CALLS = 64
"""Calls of Python functions, libraries' own included, from the features of a request to its reply's bytes."""


@contextmanager
def following(role: str, redis_url: str) -> Iterator[tuple[ServeOptions, VersionFollower]]:
    options = ServeOptions(redis_url)
    follower = version_follower(role, pipeline, options)
    follower.start()
    try:
        assert follower.wait_ready(left_s())
        yield options, follower
    finally:
        follower.close()


@contextmanager
def ranking(redis_url: str) -> Iterator[tuple[Ranker, VersionFollower]]:
    with following("rank", redis_url) as (options, follower):
        yield Ranker(pipeline, follower, options), follower


def request(context: dict[str, Any], candidates: dict[str, list[Any]]) -> bytes:
    message = pb.RankRequest(
        context=[column_of(name, [value]) for name, value in context.items()],
        candidates=[column_of(name, values) for name, values in candidates.items()],
    )
    return message.SerializeToString()


def answer(ranker: Ranker, raw: bytes) -> bytes:
    return ranker.rank(ranker.schema.reader.read(raw), None).serialized()


def counted(ask: Callable[[], bytes]) -> tuple[bytes, list[str]]:
    """Reply to a request that was asked before, and the calls of Python that it took from its features on."""
    calls = list[str]()

    def hook(frame: FrameType, event: str, _: object) -> None:
        if event == "call":
            calls.append(frame.f_code.co_qualname)

    ask()  # reads rows and computes partial results
    sys.setprofile(hook)
    reply = ask()
    sys.setprofile(None)
    return reply, calls[calls.index("PlanStages.ordered") :]


def test_a_request_whose_rows_are_in_memory_takes_few_calls_of_python(redis_url: str, world: World) -> None:
    world.publish(publication(redis_url))
    asked = request(CONTEXT, {"ad_id": ADS, "position": POSITIONS})
    with ranking(redis_url) as (ranker, _):
        reply, calls = counted(lambda: answer(ranker, asked))

    assert len(pb.RankResponse.FromString(reply).index) == len(ADS)
    assert len(calls) <= MOST_CALLS, "\n".join(calls)


@pytest.mark.parametrize("asked", [ADS, None])
def test_a_request_for_a_users_best_items_takes_few_calls_of_python(
    redis_url: str, world: World, asked: list[int] | None
) -> None:
    world.publish(publication(redis_url))
    message = pb.PreRankRequest(
        context=[column_of(name, [CONTEXT[name]]) for name in ("user_id", "ts")], top_k=10
    )
    if asked is not None:
        message.ids.values.extend(asked)
    raw = message.SerializeToString()
    with following("prerank", redis_url) as (options, follower):
        ranker = PreRanker(pipeline, follower, options)
        reply, calls = counted(lambda: ranker.prerank(ranker.schema.reader.read(raw), None).serialized())

    assert len(pb.PreRankResponse.FromString(reply).ids.values) == 10
    assert len(calls) <= MOST_CALLS, "\n".join(calls)


def test_an_emptied_near_cache_is_freed_by_the_next_request(redis_url: str, world: World) -> None:
    """Also where the next request shares other columns: its snapshot is another."""
    world.publish(publication(redis_url))
    with ranking(redis_url) as (ranker, follower):
        answer(ranker, request(CONTEXT, {"ad_id": ADS, "position": POSITIONS}))
        version, cache = follower.served()
        emptied = weakref.ref(cache)
        follower._empty_cache(version.manifest)
        answer(ranker, request(CONTEXT | {"position": 1}, {"ad_id": ADS}))
        del cache
        gc.collect()
        assert emptied() is None


@pytest.mark.parametrize("role", ["rank", "prerank"])
def test_a_scorer_is_freed_with_its_last_owner(redis_url: str, world: World, role: str) -> None:
    """The memory of a version that is replaced waits for no collector of cycles."""
    world.publish(publication(redis_url))
    with following(role, redis_url) as (_, follower):
        version, cache = follower.served()
        kind = RankScorer if role == "rank" else TowerScorer
        scorer = kind(pipeline, version.dense)
        assert scorer.snapshot(version, cache, FieldOrder((), (), (), ())) is not None
        freed = weakref.ref(scorer)
        gc.disable()
        try:
            del scorer
            assert freed() is None
        finally:
            gc.enable()
