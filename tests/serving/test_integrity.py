"""A missing row means "never trained" only in a row set that has lost no keys.

Redis is emptied, another pipeline moves in: every reply is right or marked. The logit of a reply of the
crafted model tells its version (tests.serving.swaps).
"""

from __future__ import annotations

import logging
import threading
from dataclasses import replace

import pytest
import redis
import safetensors.torch

from livectr.client.clients import PreRankClient, RankClient
from livectr.serving import metrics
from livectr.store.layout import Keyspace
from livectr.trainer.comm.control import Control
from livectr.trainer.publish.garbage import collect_garbage
from livectr.trainer.publish.publisher import Publisher
from livectr.trainer.publish.redis_store import RedisStore
from livectr.trainer.publish.version import PublishedModel, VersionSnapshot
from livectr.trainer.publish.watch import PublishedWatch
from tests.metrics_page import metric_value
from tests.redis_servers import SERVER_AND_CLUSTER
from tests.redis_values import value
from tests.serving.display_world import NOW_MS, World
from tests.serving.display_world import publication as display_publication
from tests.serving.losses import NOT_SERVING, SERVING, health, traffic, trouble
from tests.serving.publication import Publication
from tests.serving.swap_pipeline import pipeline
from tests.serving.swaps import (
    ADS,
    SEGMENTS,
    Serve,
    dense,
    publish,
    rows,
    served,
    trainer,
    versions_of,
)
from tests.waiting import until


@SERVER_AND_CLUSTER
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
        until(lambda: running.marked > 20)
        until(lambda: health(app) == NOT_SERVING)
        assert trouble("manifest") == 1
        # Evictions may be what took the manifest: they are counted meanwhile.
        metrics.REDIS_EVICTED_KEYS.set(-1)
        until(lambda: metric_value(metrics.REDIS_EVICTED_KEYS), equals=0)
        with RankClient(app.server.address) as rank:
            assert "it was emptied" in rank.describe().trouble
        publication = trainer(redis_url)
        publication.version, publication.row_set = 1, "7-0"
        publish(publication)
        until(lambda: health(app) == SERVING)
        right = running.right
        until(lambda: running.right > right + 20)
        marked = running.marked
        right = running.right
        until(lambda: running.right > right + 20)
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
                until(lambda marked=marked: seen.marked > marked)  # type: ignore[misc]
                until(lambda version=version: served(app) == version)  # type: ignore[misc]
                until(lambda right=right: seen.right > right + 20)  # type: ignore[misc]
    finally:
        stop.set()
        running.join()
        publisher.close()
    assert health(app) == SERVING and not app.follower.health.reason


def test_another_pipeline_under_the_same_row_set_name(
    redis_url: str, client: redis.Redis, serve: Serve
) -> None:
    """After a FLUSHALL another pipeline's first row set has the same name, with equal tables and rows."""
    publish(trainer(redis_url))
    app = serve("rank", pipeline, near_cache_rows=60, lost_grace_s=1.0)
    with traffic(app) as running:
        client.flushall()
        other = Publication(redis_url, "someone else's", SEGMENTS)
        other.publish(rows(500), dense(500))
        other.publish(rows(500), dense(500))
        until(lambda: running.marked > 20)
        until(lambda: health(app) == NOT_SERVING)
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
        until(lambda: running.marked > 20)
        until(lambda: trouble("rows"), equals=1)
    assert not list(client.scan_iter("livectr:*:1-0:sentinel"))


def test_another_pipelines_version_is_reported(redis_url: str, serve: Serve) -> None:
    """The server continues with correct rows, but its version grows old: NOT_SERVING after the grace."""
    publication = trainer(redis_url)
    publish(publication)
    app = serve("rank", pipeline, lost_grace_s=0.5)
    publication.as_of("someone else's")
    until(lambda: health(app) == NOT_SERVING)
    assert trouble("foreign") == 1
    with RankClient(app.server.address) as rank:
        assert "of another pipeline" in rank.describe().trouble
        assert not rank.rank({"user_id": 1}, {"ad_id": ADS[:10].tolist()}).degraded
    publish(publication)
    until(lambda: health(app) == SERVING)
    assert served(app) == 3 and trouble("foreign") == 0


def test_a_version_of_an_older_trainer_is_marked(redis_url: str, client: redis.Redis, serve: Serve) -> None:
    """Without sentinels the version may be incomplete."""
    publication = trainer(redis_url)
    publish(publication)
    assert publication.last is not None
    publication.store.flip(replace(publication.last, version=2, sentinel="").to_json(), 2, b"")
    app = serve("rank", pipeline)
    with RankClient(app.server.address) as rank:
        assert rank.rank({"user_id": 1}, {"ad_id": ADS[:10].tolist()}).degraded


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
    held = {name: value(client, name) for name in names}
    client.unlink(*names)
    with RankClient(app.server.address) as rank:
        ask = {"user_id": 1}, {"ad_id": ADS[:5].tolist()}
        assert rank.rank(*ask).degraded
        client.mset(held)
        reply = rank.rank(*ask)
    assert not reply.degraded and versions_of(reply) == {1}


def test_a_version_without_its_blobs_is_reported(redis_url: str, client: redis.Redis, serve: Serve) -> None:
    publication = trainer(redis_url)
    publish(publication)
    app = serve("rank", pipeline)
    publication.write_rows(rows(2))
    drop = publication.store.connection.write_blob

    def forget(name: str, value: bytes) -> None:
        if "dense" not in name:
            drop(name, value)

    publication.store.connection.write_blob = forget  # type: ignore[method-assign]
    publication.flip(rows(2), dense(2))
    until(lambda: metric_value("livectr_version_stale", role="rank", side="stable"), equals=1)
    assert served(app) == 1
