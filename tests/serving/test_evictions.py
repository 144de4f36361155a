"""Evicted keys are noticed by the count in INFO: every reply is right or marked.

The logit of a reply of the crafted model tells its version (tests.serving.swaps).
"""

from __future__ import annotations

import logging
import time

import pytest
import redis

from livectr.client.clients import RankClient
from livectr.serving import metrics
from livectr.serving.app import App
from livectr.serving.options import ServeOptions
from livectr.store.layout import Keyspace
from livectr.store.measured_redis import MeasuredRedis
from tests.metrics_page import metric_value
from tests.serving.losses import traffic, trouble
from tests.serving.swap_pipeline import pipeline
from tests.serving.swaps import ADS, Serve, publish, served, trainer
from tests.waiting import left_s, until


def test_evicted_rows_are_marked_until_everything_was_published(
    redis_url: str, client: redis.Redis, serve: Serve
) -> None:
    """Redis runs out of memory under allkeys-random; its count shows that a missing row may be lost."""
    publication = trainer(redis_url)
    publish(publication)
    client.config_set("maxmemory-policy", "allkeys-random")
    app = serve("rank", pipeline, near_cache_rows=60)
    assert metric_value(metrics.RISKY_POLICY) == 1
    before = client.info()["evicted_keys"]
    with traffic(app) as running:
        client.config_set("maxmemory", client.info()["used_memory"] + 200_000)
        number = 0
        while client.info()["evicted_keys"] < before + 300:
            client.set(f"filler {number}", bytes(10_000))
            number += 1
        until(lambda: running.marked > 20)
        until(lambda: any(trouble(kind) for kind in ("evicted", "rows", "values", "manifest")))
        client.config_set("maxmemory", 0)
        client.config_set("maxmemory-policy", "noeviction")
        for name in client.scan_iter("filler *"):
            client.unlink(name)
        publication = trainer(redis_url)
        publication.version = 1
        publish(publication)
        until(lambda: served(app) == 2 and not app.follower.health.reason)
        marked, right = running.marked, running.right
        until(lambda: running.right > right + 20)
        assert running.marked <= marked + 1  # one may have been under way
    until(lambda: metric_value(metrics.RISKY_POLICY), equals=0)  # INFO is read every other second


def test_one_evicted_row_is_seen_by_its_own_reader(
    redis_url: str, client: redis.Redis, serve: Serve, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Between two polls of the follower: the request that misses the row reads the count itself."""
    monkeypatch.setattr("livectr.serving.version.evictions.POLL_S", 3600.0)
    publish(trainer(redis_url))
    client.config_set("maxmemory-policy", "allkeys-lru")
    app = serve("rank", pipeline)
    space = Keyspace("livectr")
    until(lambda: app.follower.reader.evictions.risky)
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
        app.follower.reader.evictions.poll(MeasuredRedis.named("poll", redis_url))
        reply = rank.rank({"user_id": 1}, {"ad_id": [*ADS[:10].tolist(), 5]})
    assert not reply.degraded and metric_value(metrics.RISKY_POLICY) == 0


def test_a_redis_that_forbids_info_is_logged_once(
    redis_url: str, client: redis.Redis, serve: Serve, caplog: pytest.LogCaptureFixture
) -> None:
    """A managed Redis may forbid INFO: replies continue, and the log warns that evictions cannot be seen."""
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
        assert app.wait_ready(left_s())
        with RankClient(app.server.address) as rank:
            assert not rank.rank({"user_id": 1}, {"ad_id": [1000, 5]}).degraded
    finally:
        app.stop()
    assert sum("refuses INFO" in record.getMessage() for record in caplog.records) == 1
