"""Servers and a trainer behind a sentinel, which promotes the replica of a primary that dies or lags."""

from __future__ import annotations

from collections.abc import Iterator

import numpy as np
import pytest
import redis

from livectr.serving.app import App
from livectr.serving.options import ServeOptions
from livectr.serving.version.reader import Reader
from livectr.store.hold import Hold
from livectr.store.layout import RowStatus
from livectr.store.measured_redis import MeasuredRedis
from livectr.store.redis_client import connect_redis
from livectr.trainer.publish import outcome
from livectr.versions.holding import hold, release
from tests.redis_cluster import ask, until_redis
from tests.redis_servers import Watched, stop_replicating
from tests.serving.losses import traffic
from tests.serving.swap_pipeline import pipeline
from tests.serving.swaps import publish, served, trainer
from tests.trainer.publishing import Trainer, rows_at, snapshot
from tests.waiting import left_s, until

KEYS = np.arange(2000)


@pytest.fixture
def watched(monkeypatch: pytest.MonkeyPatch) -> Iterator[Watched]:
    monkeypatch.setattr(outcome, "ASK_AGAIN_S", 0.02)
    with Watched() as watched:
        yield watched


def test_traffic_continues_through_a_failover(watched: Watched) -> None:
    """Replies are right or marked; the next version comes from the new primary."""
    publication = trainer(watched.url)
    publish(publication)
    app = App("rank", pipeline, ServeOptions(watched.url, near_cache_rows=60))
    app.start()
    try:
        assert app.wait_ready(left_s())
        hold(watched.url, "livectr", "a try")
        assert Hold.of(watched.client(watched.primary).get("{livectr}:hold")) is not None
        release(watched.url, "livectr")
        until_redis(lambda: watched.client(watched.primary).wait(1, 100) == 1)
        with traffic(app) as running:
            watched.kill(watched.primary)
            until(lambda: watched.address() == watched.replica)

            def published() -> bool:
                try:
                    publish(publication)
                except redis.RedisError:
                    return False
                return True

            until_redis(published)
            until(lambda: served(app) == publication.version)
            before = running.right
            until(lambda: running.right > before + 20)
    finally:
        app.stop()


def test_a_promoted_replica_that_lacks_the_last_version(watched: Watched) -> None:
    """The manifest goes back with its rows; the trainer sees it and publishes everything."""
    writer = Trainer(watched.url)
    reader = Reader(watched.url, "livectr", "f")
    try:
        first = writer.publish(snapshot(1, KEYS))
        assert first is not None
        reader.ping()
        primary, replica = watched.client(watched.primary), watched.client(watched.replica)
        until_redis(lambda: primary.wait(1, 100) == 1)
        stop_replicating(replica, primary)
        second = writer.publish(snapshot(2, KEYS))
        assert second is not None and reader.manifest() == second.manifest.to_json()
        watched.kill(watched.primary)
        replica.replicaof("NO", "ONE")  # as its sentinel would
        sentinel = watched.client(watched.sentinel)
        ask(sentinel, "SENTINEL REMOVE", Watched.SERVICE)
        ask(sentinel, "SENTINEL MONITOR", Watched.SERVICE, "127.0.0.1", watched.replica, 1)
        until_redis(lambda: reader.manifest() == first.manifest.to_json())
        rows, status = reader.rows(first.manifest, {"ad": KEYS}, patient=True)["ad"]
        assert not status.any() and (rows == rows_at(1, KEYS)).all()
        assert writer.publish(snapshot(3, KEYS[:5])) is None
        done = None
        for step in range(4, 9):
            done = done or writer.publish(snapshot(step, KEYS))
        assert done is not None and done.manifest.version > 2
        rows, status = reader.rows(done.manifest, {"ad": KEYS}, patient=True)["ad"]
        assert set(status.tolist()) == {RowStatus.FOUND} and (rows == rows_at(done.manifest.step, KEYS)).all()
    finally:
        writer.publisher.close()
        reader.close()


def test_requests_ask_the_server_that_the_follower_asks(watched: Watched) -> None:
    """A primary that sentinels have given up may live on: its connections are dropped, whole as they are."""
    nobody = connect_redis("nobody", watched.url.replace("/ads", "/nobody"), timeout_s=2)
    with pytest.raises(redis.ConnectionError, match="No master found for 'nobody'"):
        nobody.ping()
    nobody.close()
    follower = connect_redis("f", watched.url, timeout_s=60)
    requests = connect_redis("r", watched.url, timeout_s=60, beside=follower)
    watched.client(watched.primary).set("who", "primary")
    with pytest.raises(redis.ConnectionError, match="no sentinel has named the primary"):
        requests.fetch([b"who"])
    follower.ping()
    assert requests.fetch([b"who"]) == [b"primary"]
    replica = watched.client(watched.replica)
    stop_replicating(replica, watched.client(watched.primary))
    replica.replicaof("NO", "ONE")
    replica.set("who", "replica")
    sentinel = watched.client(watched.sentinel)
    ask(sentinel, "SENTINEL REMOVE", Watched.SERVICE)
    ask(sentinel, "SENTINEL MONITOR", Watched.SERVICE, "127.0.0.1", watched.replica, 1)
    assert requests.fetch([b"who"]) == [b"primary"]
    assert isinstance(follower, MeasuredRedis)
    follower.connection_pool.disconnect()
    assert follower.get("who") == b"replica" and requests.fetch([b"who"]) == [b"replica"]
    for client in (follower, requests):
        client.close()
