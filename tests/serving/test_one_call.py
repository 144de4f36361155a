"""A request in compiled calls: few calls of Python, and no memory of an emptied near-cache."""

from __future__ import annotations

import gc
import sys
import threading
import time
import weakref
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from pathlib import Path
from types import FrameType
from typing import Any

import numpy as np
import pytest

from livectr.client.clients import RankClient, column_of
from livectr.ingest.pipeline import Pipeline
from livectr.protos import livectr_pb2 as pb
from livectr.serving.app import App
from livectr.serving.calls import RequestCall
from livectr.serving.options import ServeOptions
from livectr.serving.score.followers import version_follower
from livectr.serving.score.look_up import VersionLookup
from livectr.serving.score.plan_stages import FieldOrder
from livectr.serving.score.prerank import PreRanker
from livectr.serving.score.rank import Ranker, RankQuery
from livectr.serving.score.rank_scorer import RankScorer
from livectr.serving.score.recommend import recommender as recommenders
from livectr.serving.score.tower_scorer import TowerScorer
from livectr.serving.version.follower import VersionFollower
from livectr.serving.version.near_cache import SupersededError
from tests.serving import content_world
from tests.serving.display_pipeline import pipeline
from tests.serving.display_requests import ADS, CONTEXT, POSITIONS, in_request_order, sigmoid
from tests.serving.display_world import HISTORY, NOW_MS, World, publication
from tests.serving.plain_pipeline import NO_HISTORY, publish_plain
from tests.waiting import left_s

MOST_CALLS = 26
"""Calls of Python functions, libraries' own included, from the columns of a request to its reply's bytes.

Those that read histories are not counted.
"""
MOST_FROM_BYTES = 7
"""The same from gRPC's handler, which gets the request's bytes, to its return; histories are not read."""
MOST_OF_FUNNEL = 151
"""The same of a request for recommendations; histories are not read."""
HANDLER = "Server._handler.<locals>.handle"


@contextmanager
def following(
    role: str, redis_url: str, of: Pipeline = pipeline
) -> Iterator[tuple[ServeOptions, VersionFollower]]:
    options = ServeOptions(redis_url)
    follower = version_follower(role, of, options)
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
    return ranker.rank(ranker.schema.reader.read(raw), RequestCall("rank")).serialized()


def profiled(ask: Callable[[], bytes]) -> tuple[bytes, list[str]]:
    """Reply to a request that was asked before, and all calls of Python that it took."""
    calls = list[str]()

    def hook(frame: FrameType, event: str, _: object) -> None:
        if event == "call":
            calls.append(frame.f_code.co_qualname)

    ask()  # reads rows and computes partial results
    sys.setprofile(hook)
    reply = ask()
    sys.setprofile(None)
    return reply, calls


def counted(ask: Callable[[], bytes]) -> tuple[bytes, list[str]]:
    """Reply to a request that was asked before, and the calls of Python that it took from its columns on.

    Without those that read its histories.
    """
    reply, calls = profiled(ask)
    calls = calls[calls.index("RequestFeatures.begin") :]
    if "PlanStages.read" in calls:
        read = calls.index("PlanStages.read")
        del calls[read : calls.index("CompiledSnapshot.answer", read)]
    return reply, calls


def test_a_request_whose_rows_are_in_memory_takes_few_calls_of_python(redis_url: str, world: World) -> None:
    world.publish(publication(redis_url))
    asked = request(CONTEXT, {"ad_id": ADS, "position": POSITIONS})
    with ranking(redis_url) as (ranker, _):
        reply, calls = counted(lambda: answer(ranker, asked))

    assert len(pb.RankResponse.FromString(reply).index) == len(ADS)
    assert len(calls) <= MOST_CALLS, "\n".join(calls)


def test_images_take_no_more_calls_of_python(redis_url: str, tmp_path: Path) -> None:
    world = content_world.World(content_world.make_store(tmp_path / "images"))
    published = content_world.publication(redis_url)
    clicked = [ad + 5000 for ad in content_world.ADS if ad % 5][:6]
    published.history(content_world.IMAGES, 3, clicked, [content_world.NOW_MS - 6 + i for i in range(6)])
    world.publish(published)
    ads = [ad for ad in content_world.ADS if ad % 5]  # whose images have vectors
    asked = request({"user_id": 3, "ts": content_world.NOW_MS}, {"ad_id": ads})
    with following("rank", redis_url, content_world.pipeline) as (options, follower):
        ranker = Ranker(content_world.pipeline, follower, options)
        reply, calls = counted(lambda: answer(ranker, asked))

    assert len(calls) <= MOST_CALLS, "\n".join(calls)
    expected = world.logits("rank", world.columns(3, ads, clicked))
    found = in_request_order(pb.RankResponse.FromString(reply))
    np.testing.assert_allclose(found, sigmoid(expected), atol=1e-6)


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
        reply, calls = counted(
            lambda: ranker.prerank(ranker.schema.reader.read(raw), RequestCall("prerank")).serialized()
        )

    assert len(pb.PreRankResponse.FromString(reply).ids.values) == 10
    assert len(calls) <= MOST_CALLS, "\n".join(calls)


def test_a_funnel_is_one_compiled_call_and_one_read(redis_url: str, world: World) -> None:
    published = publication(redis_url)
    published.history(HISTORY, 3, [101, 102], [NOW_MS - 5000, NOW_MS - 1000])
    world.publish(published)
    context = [column_of(name, [value]) for name, value in {**CONTEXT, "position": 2}.items()]
    raw = pb.RecommendRequest(context=context, top_k=5, prerank_k=20).SerializeToString()
    with following("recommend", redis_url) as (options, follower):
        _, _, recommender = recommenders(pipeline, follower, options)
        asked = recommender.schema.reader.read(raw)
        call = RequestCall("recommend", began=time.perf_counter())
        reply, calls = profiled(lambda: recommender.recommend(asked, call).serialized())
    assert len(pb.RecommendResponse.FromString(reply).ids.values) == 5
    assert calls.count("Reader.read") == 1  # histories, for both models
    assert calls.count("FunnelCall._run") == 2  # before and after
    read = slice(calls.index("PlanStages.read"), len(calls) - calls[::-1].index("FunnelCall._run"))
    del calls[read]
    assert len(calls) <= MOST_OF_FUNNEL, f"{len(calls)}\n" + "\n".join(calls)


def test_stages_of_an_attempt_that_is_superseded_count(redis_url: str, world: World) -> None:
    world.publish(publication(redis_url))
    asked = request(CONTEXT, {"ad_id": ADS, "position": POSITIONS})
    with ranking(redis_url) as (ranker, follower):
        answer(ranker, asked)
        version, cache = follower.served()
        cache.advance(version.number + 1, {}, {})
        call = RequestCall("rank", began=time.perf_counter())
        query = RankQuery(ranker.schema.reader.read(asked), {})
        with pytest.raises(SupersededError):
            ranker.scores(VersionLookup(version, cache, follower.reader), query, call)
    assert [stage for stage, _ in call.ends] == ["enrich", "extract"]
    assert call.began < call.ends[0][1] <= call.ends[1][1] <= time.perf_counter()


class Calls:
    """Hook of the profiler: names of the functions that a call of gRPC's handler calls."""

    def __init__(self) -> None:
        self.names: list[str] = []
        self._inside = 0
        """Thread that is in the handler."""

    def __call__(self, frame: FrameType, event: str, _: object) -> None:
        name, thread = frame.f_code.co_qualname, threading.get_ident()
        if event == "call" and name == HANDLER:
            self.names, self._inside = [], thread
        if event == "call" and self._inside == thread:
            self.names.append(name)
        if event == "return" and name == HANDLER:
            self._inside = 0


def test_few_calls_of_python_from_the_bytes_of_a_request(
    redis_url: str, world: World, serve: Callable[..., App]
) -> None:
    publish_plain(redis_url, world)
    calls = Calls()
    threading.setprofile(calls)  # of threads that begin from here on
    try:
        app = serve("rank", NO_HISTORY, front="python")
        with RankClient(app.server.address) as client:
            for _ in range(3):  # the first reads rows and computes partial results
                reply = client.rank(CONTEXT, {"ad_id": ADS, "position": POSITIONS})
    finally:
        threading.setprofile(None)
    assert len(reply.index) == len(ADS)
    assert 0 < len(calls.names) <= MOST_FROM_BYTES, f"{len(calls.names)}\n" + "\n".join(calls.names)


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
        assert scorer.snapshot(version, cache, FieldOrder((), (), (), (), {})) is not None
        freed = weakref.ref(scorer)
        gc.disable()
        try:
            del scorer
            assert freed() is None
        finally:
            gc.enable()
