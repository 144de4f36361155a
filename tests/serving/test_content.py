"""Servers see the content that the trainer sees: published vectors, and cold ids through the sub-model."""

from __future__ import annotations

from collections.abc import Callable, Mapping
from pathlib import Path
from typing import Any

import grpc
import numpy as np
import pytest

from livectr.client.clients import PreRankClient, RankClient, RecommendClient, RecommendItems, column_of
from livectr.ingest.content.store import ContentStore
from livectr.protos import livectr_pb2 as pb
from livectr.protos import livectr_pb2_grpc as rpc
from livectr.serving.app import App
from livectr.serving.version import content as served_content
from livectr.system.errors import ConfigError, MismatchError
from tests.metrics_page import metric_value
from tests.redis_servers import SERVER_AND_CLUSTER
from tests.serving.content_world import (
    ADS,
    IMAGES,
    NOW_MS,
    WIDTH,
    World,
    features_of,
    make_store,
    pipeline,
    publication,
)
from tests.serving.display_requests import in_request_order, sigmoid
from tests.waiting import until

Serve = Callable[..., App]
SHOWN = [*ADS, 987654321]  # the last one is in no table
CONTEXT = {"user_id": 3, "ts": NOW_MS}
SEEN = [5101, 5105, 5117, 5101, 77]  # 5105 and 77 have no features
FRESH = {200: [200, 9000, "cat1"], 201: [201, 9001, "cat2"]}
"""New ads: in the look-up table, but neither they nor their images are in a version."""


@pytest.fixture(scope="module")
def world(tmp_path_factory: pytest.TempPathFactory) -> World:
    return World(make_store(tmp_path_factory.mktemp("content") / "images"))


def publish(world: World, url: str) -> Any:
    out = publication(url)
    out.history(IMAGES, 3, SEEN, [NOW_MS - 5000 + i for i in range(len(SEEN))])
    world.publish(out)
    return out


def cold(outcome: str) -> float:
    return metric_value("livectr_cold_content_total", content="images", outcome=outcome, side="stable")


@SERVER_AND_CLUSTER
def test_rank_replies_are_the_trainers_logits(redis_url: str, world: World, serve: Serve) -> None:
    publish(world, redis_url)
    app = serve("rank", pipeline)
    with RankClient(app.server.address) as client:
        for _ in range(2):
            response = client.rank(CONTEXT, {"ad_id": SHOWN})
            expected = world.logits("rank", world.columns(3, SHOWN, SEEN))
            np.testing.assert_allclose(in_request_order(response), sigmoid(expected), atol=1e-6)
        nobody = client.rank({"user_id": 12, "ts": NOW_MS}, {"ad_id": SHOWN})
        expected = world.logits("rank", world.columns(12, SHOWN, []))
        np.testing.assert_allclose(in_request_order(nobody), sigmoid(expected), atol=1e-6)
        for ad in (101, 105, 987654321):  # a picture, one without features, none
            alone = client.rank(CONTEXT, {"ad_id": [ad]})
            expected = world.logits("rank", world.columns(3, [ad], SEEN))
            np.testing.assert_allclose(alone.pctr, sigmoid(expected), atol=1e-6)
        (info,) = client.describe().content
    assert (info.name, list(info.fields), info.width) == ("images", ["image", "clicked"], WIDTH)
    assert info.vectors == len(world.store) == 32


def test_explanations_leave_a_field_out_with_its_content(redis_url: str, world: World, serve: Serve) -> None:
    publish(world, redis_url)
    with RankClient(serve("rank", pipeline).server.address) as client:
        response = client.explain(CONTEXT, {"ad_id": SHOWN}, best=8)
    with_clicks, without = (world.logits("rank", world.columns(3, SHOWN, seen)) for seen in (SEEN, []))
    explained = response.explanations
    field = list(explained.features).index("clicked")
    assert len(explained.candidates) == 8 and np.abs(with_clicks - without).max() > 1e-3
    for one in explained.candidates:
        expected = with_clicks[one.index] - without[one.index]
        assert one.contributions[field] == pytest.approx(expected, abs=2e-6)
        assert one.keys[field] == len(SEEN)


def test_prerank_scores_are_the_trainers_logits(redis_url: str, world: World, serve: Serve) -> None:
    out = publish(world, redis_url)
    out.lookup_rows("ads", FRESH)
    with PreRankClient(serve("prerank", pipeline).server.address) as client:
        chosen = client.prerank(CONTEXT, SHOWN, len(SHOWN))
        everything = client.prerank(CONTEXT, None, 1000)
        extra = {id: features_of([id])[0] for id in (9000, 9001)}
        brought = client.prerank(CONTEXT, [100, 200, 201], 3, content={"images": extra})
    expected = world.logits("prerank", world.columns(3, SHOWN, SEEN))
    np.testing.assert_allclose(chosen.score, expected[list(chosen.index)], atol=1e-5)
    np.testing.assert_allclose(everything.score, np.sort(expected[:-1])[::-1], atol=1e-5)
    columns = world.columns(3, [100, 200, 201], SEEN, FRESH)
    expected = world.logits("prerank", columns, extra)
    np.testing.assert_allclose(brought.score, expected[list(brought.index)], atol=1e-5)
    assert brought.unknown == 2
    assert np.abs(expected - world.logits("prerank", columns))[1:].min() > 1e-4  # the pictures were looked at


def test_recommendations_look_at_content_in_both_models(redis_url: str, world: World, serve: Serve) -> None:
    out = publish(world, redis_url)
    out.lookup_rows("ads", FRESH)
    ads, extra = [*ADS[:10], 200, 201], {id: features_of([id])[0] for id in (9000, 9001)}
    with RecommendClient(serve("recommend", pipeline).server.address) as client:
        (info,) = client.describe().content
        reply = client.recommend(CONTEXT, 6, 9, items=RecommendItems(ads), content={"images": extra})
    assert set(info.fields) == {"image", "clicked"}
    columns = world.columns(3, ads, SEEN, FRESH)
    chosen = np.argsort(-world.logits("prerank", columns, extra), kind="stable")[:9]
    pctr = sigmoid(world.logits("rank", columns, extra))[chosen]
    best = np.argsort(-pctr, kind="stable")[:6]
    np.testing.assert_allclose(reply.pctr, pctr[best], atol=1e-6)
    assert list(reply.ids.values) == [ads[i] for i in chosen[best]]


def test_a_request_brings_features_of_what_is_too_new(redis_url: str, world: World, serve: Serve) -> None:
    out = publish(world, redis_url)
    out.lookup_rows("ads", FRESH)
    shown = [100, 200, 201]
    columns = world.columns(3, shown, SEEN, FRESH)
    first, other = features_of([9000])[0], features_of([4444])[0]
    with RankClient(serve("rank", pipeline).server.address) as client:

        def ask(brought: Mapping[int, np.ndarray]) -> np.ndarray:
            return in_request_order(client.rank(CONTEXT, {"ad_id": shown}, content={"images": brought}))

        absent = sigmoid(world.logits("rank", columns))
        with_picture = sigmoid(world.logits("rank", columns, {9000: first}))
        assert abs(with_picture - absent)[1] > 1e-5
        before = {outcome: cold(outcome) for outcome in ("cached", "embedded", "absent")}
        np.testing.assert_allclose(ask({}), absent, atol=1e-6)
        assert cold("absent") == before["absent"] + 5  # images of 100, 200, 201; 5105 and 77 of the history
        np.testing.assert_allclose(ask({9000: first}), with_picture, atol=1e-6)
        assert cold("embedded") == before["embedded"] + 1
        np.testing.assert_allclose(ask({}), absent, atol=1e-6)  # it was for that request alone
        assert cold("cached") == before["cached"]
        np.testing.assert_allclose(ask({9000: first}), with_picture, atol=1e-6)
        assert cold("cached") == before["cached"] + 1 and cold("embedded") == before["embedded"] + 1
        swapped = world.logits("rank", columns, {9000: other, 9001: first})
        np.testing.assert_allclose(ask({9000: other, 9001: first}), sigmoid(swapped), atol=1e-6)
        assert cold("cached") == before["cached"] + 2  # the picture is known, whatever its id
        np.testing.assert_allclose(  # another picture under the same id is looked at, too
            ask({9000: other}), sigmoid(world.logits("rank", columns, {9000: other})), atol=1e-6
        )
        # what has a published vector keeps it
        published = world.columns(3, [101], SEEN)
        response = client.rank(CONTEXT, {"ad_id": [101]}, content={"images": {5101: other}})
        np.testing.assert_allclose(response.pctr, sigmoid(world.logits("rank", published)), atol=1e-6)


def test_no_client_brings_content_for_another(redis_url: str, world: World, serve: Serve) -> None:
    """Neither the features that a client sends nor their vectors are used under the same id for others."""
    publish(world, redis_url).lookup_rows("ads", FRESH)
    absent = sigmoid(world.logits("rank", world.columns(3, [200], SEEN, FRESH)))
    address = serve("rank", pipeline).server.address
    with RankClient(address) as liar, RankClient(address) as other:
        sent = liar.rank(CONTEXT, {"ad_id": [200]}, content={"images": {9000: features_of([4444])[0]}})
        assert abs(sent.pctr[0] - absent[0]) > 1e-5
        np.testing.assert_allclose(other.rank(CONTEXT, {"ad_id": [200]}).pctr, absent, atol=1e-6)
        true = features_of([9000])[0]
        mine = other.rank(CONTEXT, {"ad_id": [200]}, content={"images": {9000: true}})
        expected = sigmoid(world.logits("rank", world.columns(3, [200], SEEN, FRESH), {9000: true}))
        np.testing.assert_allclose(mine.pctr, expected, atol=1e-6)


def test_a_new_version_embeds_cold_content_again(redis_url: str, world: World, serve: Serve) -> None:
    out = publish(world, redis_url)
    out.lookup_rows("ads", FRESH)
    first = features_of([9000])[0]
    columns = world.columns(3, [200], SEEN, FRESH)
    app = serve("rank", pipeline)
    with RankClient(app.server.address) as client:
        old = client.rank(CONTEXT, {"ad_id": [200]}, content={"images": {9000: first}})
        np.testing.assert_allclose(old.pctr, sigmoid(world.logits("rank", columns, {9000: first})), atol=1e-6)
        for _ in range(5):
            world.train()
        version = world.publish(out)
        until(lambda: app.follower.current.number == version)  # type: ignore[union-attr]
        new = client.rank(CONTEXT, {"ad_id": [200]}, content={"images": {9000: first}})
        np.testing.assert_allclose(new.pctr, sigmoid(world.logits("rank", columns, {9000: first})), atol=1e-6)
    assert abs(old.pctr[0] - new.pctr[0]) > 1e-4


def test_a_folder_of_features_is_followed(
    redis_url: str, world: World, serve: Serve, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(served_content, "_REFRESH_S", 0.0)
    out = publish(world, redis_url)
    out.lookup_rows("ads", FRESH)
    folder = tmp_path / "more"
    store = ContentStore.create(folder, width=WIDTH, encoder="test", shards=2)
    store.append(np.array([9000]), features_of([9000]))
    columns = world.columns(3, [200, 201], SEEN, FRESH)
    extra = {9000: features_of([9000])[0]}
    with RankClient(serve("rank", pipeline, content=f"images={folder}").server.address) as client:
        one = in_request_order(client.rank(CONTEXT, {"ad_id": [200, 201]}))
        np.testing.assert_allclose(one, sigmoid(world.logits("rank", columns, extra)), atol=1e-6)
        store.append(np.array([9001]), features_of([9001]))  # an encoder beside the server continues
        extra[9001] = features_of([9001])[0]
        both = in_request_order(client.rank(CONTEXT, {"ad_id": [200, 201]}))
        np.testing.assert_allclose(both, sigmoid(world.logits("rank", columns, extra)), atol=1e-6)


ROW = features_of([9000])[0]
WRONG = {
    "of a name that is unknown": (
        [pb.ContentFeatures(name="texts")],
        "content.texts: is no content of this pipeline; it has images",
    ),
    "twice": ([pb.ContentFeatures(name="images")] * 2, "content.images: is there twice"),
    "of another width": (
        [pb.ContentFeatures(name="images", ids=[1, 2], features=ROW.tobytes())],
        "content.images: has 32 bytes of features for 2 ids; send 32 bytes, 16 float16 numbers, for each",
    ),
    "without ids": ([pb.ContentFeatures(name="images", features=b"12")], "has 2 bytes of features for 0 ids"),
    "not finite": (
        [pb.ContentFeatures(name="images", ids=[4, 9], features=ROW.tobytes() + (ROW * np.inf).tobytes())],
        "content.images: features of id 9 are not finite",
    ),
    "of one id twice": (
        [pb.ContentFeatures(name="images", ids=[4, 4], features=ROW.tobytes() * 2)],
        "content.images: id 4 is there twice",
    ),
}


def test_wrong_features_are_named(redis_url: str, world: World, serve: Serve) -> None:
    publish(world, redis_url)
    context, candidates = [column_of("user_id", [3], "int64")], [column_of("ad_id", [100], "int64")]
    with (
        grpc.insecure_channel(serve("rank", pipeline).server.address) as rank_channel,
        grpc.insecure_channel(serve("prerank", pipeline).server.address) as prerank_channel,
    ):
        ranks, towers = rpc.RankStub(rank_channel), rpc.PreRankStub(prerank_channel)  # type: ignore[no-untyped-call]
        for messages, sentence in WRONG.values():
            with pytest.raises(grpc.RpcError, match="INVALID_ARGUMENT") as rank:
                ranks.Rank(pb.RankRequest(context=context, candidates=candidates, content=messages))
            with pytest.raises(grpc.RpcError, match="INVALID_ARGUMENT") as prerank:
                towers.PreRank(pb.PreRankRequest(context=context, top_k=1, content=messages))
            assert sentence in rank.value.details() and sentence in prerank.value.details()


def test_wrong_folders_are_named(redis_url: str, serve: Serve, tmp_path: Path) -> None:
    narrow = ContentStore.create(tmp_path / "narrow", width=3, encoder="test")
    for given, sentence in (
        (f"texts={tmp_path}", "names 'texts', but the content of the pipeline is images"),
        ("images", "name each content's folder once"),
        (f"images={tmp_path},images={tmp_path}", "name each content's folder once"),
        (f"images={narrow.root}", "rows of 3 numbers, the sub-model takes 16"),
        (f"images={tmp_path / 'none'}", "is no content store"),
    ):
        with pytest.raises(ConfigError, match=sentence):
            serve("rank", pipeline, content=given)


def test_a_version_without_vectors_of_content_is_refused(redis_url: str, world: World, serve: Serve) -> None:
    out = publication(redis_url)
    out.publish({}, world.step.weights(), world.items())
    with pytest.raises(MismatchError, match="no vectors of content 'images'"):
        serve("rank", pipeline)


def test_what_is_kept_for_cold_content_is_bounded(
    redis_url: str, world: World, serve: Serve, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(served_content, "_COLD_VECTORS", 4)
    out = publish(world, redis_url)
    fresh = {ad: [ad, 9000 + ad, "cat1"] for ad in range(300, 308)}
    out.lookup_rows("ads", fresh)
    app = serve("rank", pipeline)
    with RankClient(app.server.address) as client:
        for first in range(300, 308, 2):
            shown = [first, first + 1]
            extra = {9000 + ad: features_of([9000 + ad])[0] for ad in shown}
            found = in_request_order(client.rank(CONTEXT, {"ad_id": shown}, content={"images": extra}))
            expected = world.logits("rank", world.columns(3, shown, SEEN, fresh), extra)
            np.testing.assert_allclose(found, sigmoid(expected), atol=1e-6)
    assert len(app.follower.current.content["images"]._cold) <= 4  # type: ignore[union-attr]
