"""A missing row means "never trained" only in a name space that has lost no keys.

Redis is emptied, keys are evicted, another pipeline moves in: every reply is right or marked. The crafted
model is that of test_versions: the logit of a reply is v / 1000 if and only if all its rows are version v's.
"""

from __future__ import annotations

import logging
import threading
import time
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from dataclasses import replace

import grpc
import numpy as np
import pytest
import redis
import safetensors.torch
import torch
from grpc_health.v1 import health_pb2, health_pb2_grpc

from livectr.protos.store import Keyspace
from livectr.serving import metrics
from livectr.serving.app import App
from livectr.serving.client import PreRankClient, RankClient
from livectr.serving.options import ServeOptions
from livectr.trainer.comm.control import Control
from livectr.trainer.publish.garbage import collect_garbage
from livectr.trainer.publish.publisher import Publisher
from livectr.trainer.publish.redis_store import RedisStore
from livectr.trainer.publish.version import PublishedModel, VersionSnapshot
from livectr.trainer.publish.watch import PublishedWatch
from tests.serving.display_world import NOW_MS, World
from tests.serving.display_world import publication as display_publication
from tests.serving.publication import Publication
from tests.serving.swap_pipeline import pipeline
from tests.serving.test_versions import (
    ADS,
    SEGMENTS,
    USERS,
    dense,
    publish,
    rows,
    served,
    trainer,
    versions_of,
    wait_for,
)

Serve = Callable[..., App]


@pytest.fixture
def client(redis_url: str) -> redis.Redis:
    return redis.Redis.from_url(redis_url)


class Traffic:
    """Requests for random rows, as fast as a client can send them; each reply is checked."""

    def __init__(self, app: App) -> None:
        self._address = app.server.address
        self._stop = threading.Event()
        self.right = self.marked = 0
        self.wrong: list[object] = []
        self._thread = threading.Thread(target=self._ask)

    def _ask(self) -> None:
        rng = np.random.default_rng(0)
        with RankClient(self._address) as rank:
            while not self._stop.is_set():
                ads = rng.choice(ADS, 20).tolist()
                reply = rank.rank({"user_id": int(rng.choice(USERS))}, {"ad_id": ads})
                if reply.degraded:
                    self.marked += 1
                    if not reply.degraded_reason:
                        self.wrong.append("no reason")
                elif versions_of(reply) == {reply.version}:
                    self.right += 1
                else:
                    self.wrong.append((reply.version, versions_of(reply)))

    def __enter__(self) -> Traffic:
        self._thread.start()
        return self

    def __exit__(self, *_: object) -> None:
        self._stop.set()
        self._thread.join()


@contextmanager
def traffic(app: App) -> Iterator[Traffic]:
    """Run requests during the block; some have been answered correctly before it begins."""
    with Traffic(app) as running:
        wait_for(lambda: running.right > 20)
        yield running
    assert not running.wrong, running.wrong[:5]


def health(app: App) -> int:
    with grpc.insecure_channel(app.server.address) as channel:
        stub = health_pb2_grpc.HealthStub(channel)
        return int(stub.Check(health_pb2.HealthCheckRequest(), timeout=10).status)


SERVING, NOT_SERVING = health_pb2.HealthCheckResponse.SERVING, health_pb2.HealthCheckResponse.NOT_SERVING


def trouble(kind: str) -> float:
    return float(metrics.HEALTH_ISSUE.labels("rank", kind)._value.get())


def test_an_emptied_redis_is_reported_until_it_is_complete_again(
    redis_url: str, client: redis.Redis, serve: Serve, caplog: pytest.LogCaptureFixture
) -> None:
    """FLUSHALL under load: replies are right or degraded; NOT_SERVING after the grace; then recovery."""
    caplog.set_level(logging.WARNING)
    publication = trainer(redis_url)
    publish(publication)
    app = serve("rank", pipeline, near_cache_rows=60, lost_grace_s=1.0)
    with traffic(app) as running:
        client.flushall()
        wait_for(lambda: running.marked > 20)
        wait_for(lambda: health(app) == NOT_SERVING)
        assert trouble("manifest") == 1
        with RankClient(app.server.address) as rank:
            assert "it was emptied" in rank.describe().trouble
        publication = trainer(redis_url)
        publication.version, publication.ns = 1, "7-0"
        publish(publication)
        wait_for(lambda: health(app) == SERVING)
        right = running.right
        wait_for(lambda: running.right > right + 20)
        marked = running.marked
        right = running.right
        wait_for(lambda: running.right > right + 20)
        assert running.marked == marked
    assert trouble("manifest") == 0
    with RankClient(app.server.address) as rank:
        assert rank.describe().trouble == ""
    for line in ("it was emptied", "rank is NOT_SERVING", "rank is SERVING again"):
        assert sum(line in record.getMessage() for record in caplog.records) >= 1
    assert sum("rank is NOT_SERVING" in record.getMessage() for record in caplog.records) == 1


def test_the_trainer_mends_it_by_itself(redis_url: str, client: redis.Redis, serve: Serve) -> None:
    """A trainer without anything new to publish, a server under load, and FLUSHALL, three times."""
    store = RedisStore(redis_url, "livectr")
    publisher = Publisher(
        store,
        Control(),
        PublishedModel(pipeline.fingerprint, SEGMENTS, seed=1),
        lookout=PublishedWatch(store, every_s=0.3),
    )
    stop = threading.Event()

    def idle() -> None:
        """Exchange headers of a run without events."""
        while not stop.wait(0.005):
            publisher.observe([publisher.flag])
            if publisher.full and not publisher.busy:
                version = publisher.cursor(0).version
                weights = safetensors.torch.save(dense(version))
                publisher.begin(VersionSnapshot(version, rows(version), {"user": 50, "ad": 400}, weights))

    publisher.start(None, take_over=True)
    running = threading.Thread(target=idle)
    running.start()
    try:
        app = serve("rank", pipeline, near_cache_rows=60)
        with traffic(app) as seen:
            for version in (2, 3, 4):
                marked, right = seen.marked, seen.right
                client.flushall()
                wait_for(lambda marked=marked: seen.marked > marked)  # type: ignore[misc]
                wait_for(lambda version=version: served(app) == version)  # type: ignore[misc]
                wait_for(lambda right=right: seen.right > right + 20)  # type: ignore[misc]
    finally:
        stop.set()
        running.join()
        publisher.close()
    assert health(app) == SERVING and not app.follower.health.reason


def test_another_pipeline_under_the_same_name_space(
    redis_url: str, client: redis.Redis, serve: Serve
) -> None:
    """After a FLUSHALL another pipeline's first name space has the same name, with equal tables and rows."""
    publish(trainer(redis_url))
    app = serve("rank", pipeline, near_cache_rows=60, lost_grace_s=1.0)
    with traffic(app) as running:
        client.flushall()
        other = Publication(redis_url, "someone else's", SEGMENTS)
        other.publish(rows(500), dense(500))
        other.publish(rows(500), dense(500))
        wait_for(lambda: running.marked > 20)
        wait_for(lambda: health(app) == NOT_SERVING)
        assert served(app) == 1


def test_another_pipeline_sweeps_ours_away(redis_url: str, client: redis.Redis, serve: Serve) -> None:
    """Without a FLUSHALL: our rows are right until the other trainer removes them, sentinels first."""
    publish(trainer(redis_url))
    app = serve("rank", pipeline, near_cache_rows=60)
    with traffic(app) as running:
        other = Publication(redis_url, "someone else's", SEGMENTS)
        other.publish(rows(500), dense(500))
        assert other.last is not None
        collect_garbage(other.store, other.last)
        wait_for(lambda: running.marked > 20)
        wait_for(lambda: trouble("rows") == 1)
    assert not list(client.scan_iter("livectr:*:1-0:whole"))


def test_another_pipelines_version_is_reported(redis_url: str, serve: Serve) -> None:
    """The server goes on with correct rows, but its version grows old: NOT_SERVING after the grace."""
    publication = trainer(redis_url)
    publish(publication)
    app = serve("rank", pipeline, lost_grace_s=0.5)
    publication.as_of("someone else's")
    wait_for(lambda: health(app) == NOT_SERVING)
    assert trouble("foreign") == 1
    with RankClient(app.server.address) as rank:
        assert "of another pipeline" in rank.describe().trouble
        assert not rank.rank({"user_id": 1}, {"ad_id": ADS[:10].tolist()}).degraded
    publish(publication)
    wait_for(lambda: health(app) == SERVING)
    assert served(app) == 3 and trouble("foreign") == 0


def test_a_version_of_an_older_trainer_is_marked(redis_url: str, client: redis.Redis, serve: Serve) -> None:
    """Without sentinels the version may be incomplete."""
    publication = trainer(redis_url)
    publish(publication)
    assert publication.last is not None
    publication.store.flip(replace(publication.last, version=2, whole="").to_json(), 2, b"")
    app = serve("rank", pipeline)
    with RankClient(app.server.address) as rank:
        assert rank.rank({"user_id": 1}, {"ad_id": ADS[:10].tolist()}).degraded


def test_evicted_rows_are_marked_until_everything_was_published(
    redis_url: str, client: redis.Redis, serve: Serve
) -> None:
    """Redis runs out of memory under allkeys-random; its count shows that a missing row may be lost."""
    publication = trainer(redis_url)
    publish(publication)
    client.config_set("maxmemory-policy", "allkeys-random")
    app = serve("rank", pipeline, near_cache_rows=60)
    assert metrics.RISKY_POLICY._value.get() == 1
    before = client.info()["evicted_keys"]
    with traffic(app) as running:
        client.config_set("maxmemory", client.info()["used_memory"] + 200_000)
        number = 0
        while client.info()["evicted_keys"] < before + 300:
            client.set(f"filler {number}", bytes(10_000))
            number += 1
        wait_for(lambda: running.marked > 20)
        wait_for(lambda: any(trouble(kind) for kind in ("evicted", "rows", "values", "manifest")))
        client.config_set("maxmemory", 0)
        client.config_set("maxmemory-policy", "noeviction")
        for name in client.scan_iter("filler *"):
            client.unlink(name)
        publication = trainer(redis_url)
        publication.version = 1
        publish(publication)
        wait_for(lambda: served(app) == 2 and not app.follower.health.reason)
        marked, right = running.marked, running.right
        wait_for(lambda: running.right > right + 20)
        assert running.marked <= marked + 1  # one may have been under way
    wait_for(lambda: metrics.RISKY_POLICY._value.get() == 0)  # INFO is read every other second


def test_one_evicted_row_is_seen_by_its_own_reader(
    redis_url: str, client: redis.Redis, serve: Serve, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Between two polls of the follower: the request that misses the row reads the count itself."""
    monkeypatch.setattr("livectr.serving.version.evictions.POLL_S", 3600.0)
    publish(trainer(redis_url))
    client.config_set("maxmemory-policy", "allkeys-lru")
    app = serve("rank", pipeline)
    space = Keyspace("livectr")
    wait_for(lambda: app.follower.reader.evictions.risky)
    ask = {"user_id": 1}, {"ad_id": ADS[:10].tolist()}
    # All rows but one are read often; the other is left to be evicted.
    (lonely,) = space.rows("1-0", "ad", ADS[:1])
    others = [name for name in client.scan_iter("*") if name != lonely]
    time.sleep(1.1)  # the clock of the LRU counts seconds
    client.config_set("maxmemory-samples", 64)
    client.config_set("maxmemory", client.info()["used_memory"] + 100_000)
    for number in range(200):
        if not client.exists(lonely):
            break
        for name in others:
            client.exists(name)
        client.set(f"filler {number % 40}", bytes(100 * number))
    with RankClient(app.server.address) as rank:
        reply = rank.rank(*ask)
    assert client.exists(lonely) == 0 and client.info()["evicted_keys"] > 0
    assert reply.degraded and "evicted" in reply.degraded_reason


def test_keys_of_others_that_expire_are_no_loss(redis_url: str, client: redis.Redis, serve: Serve) -> None:
    """A volatile policy evicts only keys with a time to live; published keys have none."""
    publish(trainer(redis_url))
    client.config_set("maxmemory-policy", "volatile-lru")
    app = serve("rank", pipeline)
    client.config_set("maxmemory", client.info()["used_memory"] + 200_000)
    for number in range(100):
        client.set(f"filler {number}", bytes(10_000), ex=3600)
    assert client.info()["evicted_keys"] > 0
    with RankClient(app.server.address) as rank:
        app.follower.reader.evictions.poll(client)
        reply = rank.rank({"user_id": 1}, {"ad_id": [*ADS[:10].tolist(), 5]})
    assert not reply.degraded and metrics.RISKY_POLICY._value.get() == 0


def test_a_redis_that_forbids_info_is_logged_once(
    redis_url: str, client: redis.Redis, serve: Serve, caplog: pytest.LogCaptureFixture
) -> None:
    """A managed Redis may forbid INFO: replies go on, and the log warns that evictions cannot be seen."""
    publish(trainer(redis_url))
    client.acl_setuser(
        "server",
        enabled=True,
        nopass=True,
        keys=["*"],
        channels=["*"],
        categories=["+@all"],
        commands=["-info"],
    )
    caplog.set_level(logging.WARNING)
    user_url = redis_url.replace("redis://", "redis://server:any@")
    app = App("rank", pipeline, ServeOptions(user_url))
    app.start()
    try:
        assert app.wait_ready(10)
        with RankClient(app.server.address) as rank:
            assert not rank.rank({"user_id": 1}, {"ad_id": [1000, 5]}).degraded
    finally:
        app.stop()
    assert sum("refuses INFO" in record.getMessage() for record in caplog.records) == 1


def test_lookups_and_histories_that_are_gone_are_marked(
    redis_url: str, client: redis.Redis, world: World, serve: Serve
) -> None:
    """Embedding rows are in the near-cache; look-up rows and histories are read from Redis and are gone."""
    world.publish(display_publication(redis_url))
    app = serve("rank", lookup_ttl_s=0.0)
    ask = {"user_id": 3, "ts": NOW_MS, "tags": []}, {"ad_id": [100, 101], "position": [0, 1]}
    with RankClient(app.server.address) as rank:
        assert not rank.rank(*ask).degraded
        client.flushall()
        reply = rank.rank(*ask)
        assert reply.degraded and "may be missing" in reply.degraded_reason


def test_lookups_of_another_pipeline_are_marked(
    redis_url: str, client: redis.Redis, world: World, serve: Serve
) -> None:
    """Look-up rows have no version: once another pipeline begins to write, they may be its rows."""
    world.publish(display_publication(redis_url))
    app = serve("rank", lookup_ttl_s=0.0)
    ask = {"user_id": 3, "ts": NOW_MS, "tags": []}, {"ad_id": [100, 101], "position": [0, 1]}
    with RankClient(app.server.address) as rank:
        assert not rank.rank(*ask).degraded
        other = Publication(redis_url, "someone else's", SEGMENTS)
        other.publish(rows(1), dense(1))
        assert rank.rank(*ask).degraded


def test_prerank_of_an_emptied_redis_is_marked(
    redis_url: str, client: redis.Redis, world: World, serve: Serve
) -> None:
    world.publish(display_publication(redis_url))
    app = serve("prerank", lookup_ttl_s=0.0)
    with PreRankClient(app.server.address) as towers:
        context = {"user_id": 3, "ts": NOW_MS, "tags": []}
        assert not towers.prerank(context, None, 5).degraded
        client.flushall()
        assert towers.prerank(context, None, 5).degraded


def test_an_unknown_row_is_not_remembered_as_missing(
    redis_url: str, client: redis.Redis, serve: Serve
) -> None:
    """A row that was read while the sentinel was missing is read again when it is back."""
    publication = trainer(redis_url)
    publish(publication)
    app = serve("rank", pipeline)
    space = Keyspace("livectr")
    names = space.sentinels("1-0", range(16))
    values = dict(zip(names, client.mget(names), strict=True))
    client.unlink(*names)
    with RankClient(app.server.address) as rank:
        ask = {"user_id": 1}, {"ad_id": ADS[:5].tolist()}
        assert rank.rank(*ask).degraded
        client.mset(values)
        reply = rank.rank(*ask)
    assert not reply.degraded and versions_of(reply) == {1}


def test_a_version_without_its_blobs_is_reported(redis_url: str, client: redis.Redis, serve: Serve) -> None:
    publication = trainer(redis_url)
    publish(publication)
    app = serve("rank", pipeline)
    publication.write_rows(rows(2))
    drop = publication.store.write_blob

    def forget(name: str, value: bytes) -> None:
        if "dense" not in name:
            drop(name, value)

    publication.store.write_blob = forget  # type: ignore[method-assign]
    publication.flip(rows(2), {"rank.bias": torch.tensor(0.002)})
    wait_for(lambda: metrics.STALE.labels("rank")._value.get() == 1)
    assert served(app) == 1
