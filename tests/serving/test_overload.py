"""A full server sheds at once and says so; deadlines end the wait; health answers meanwhile."""

from __future__ import annotations

import threading
from collections import Counter
from collections.abc import Callable, Iterator

import grpc
import pytest
from grpc_health.v1 import health_pb2, health_pb2_grpc

from livectr.client.clients import RankClient
from livectr.serving import metrics
from livectr.serving.app import App
from livectr.serving.options import ServeOptions
from livectr.system.errors import ConfigError
from tests.metrics_page import metric_value
from tests.serving.display_world import NOW_MS, World, publication
from tests.waiting import left_s, until

Serve = Callable[..., App]


@pytest.fixture
def busy(redis_url: str, world: World, serve: Serve) -> Iterator[App]:
    """A rank server with two places, both taken, and room for two to wait."""
    world.publish(publication(redis_url))
    app = serve("rank", max_active=2, max_waiting=2, max_wait_s=0.2)
    with app.admission.place(None), app.admission.place(None):
        yield app


def ask(app: App, timeout_s: float) -> str:
    with RankClient(app.server.address, timeout_s) as client:
        try:
            client.rank({"user_id": 3, "ts": NOW_MS, "tags": []}, {"ad_id": [100], "position": [0]})
        except grpc.RpcError as error:
            return str(error.code().name)
    return "OK"


def sample(name: str) -> float:
    return metric_value(name, role="rank")


def test_the_surplus_is_shed(redis_url: str, world: World, serve: Serve) -> None:
    world.publish(publication(redis_url))
    shed = metric_value(metrics.SHED, role="rank")
    app = serve("rank", max_active=2, max_waiting=2)
    outcomes: Counter[str] = Counter()
    threads = [threading.Thread(target=lambda: outcomes.update([ask(app, left_s())])) for _ in range(10)]
    with app.admission.place(None), app.admission.place(None):
        for thread in threads:
            thread.start()
        until(lambda: outcomes.total(), equals=8, why=lambda: outcomes)
        # Two wait, eight were refused at once.
        assert outcomes == {"RESOURCE_EXHAUSTED": 8} and app.admission.waiting == 2
    for thread in threads:
        thread.join()
    assert outcomes == {"RESOURCE_EXHAUSTED": 8, "OK": 2}
    assert metric_value(metrics.SHED, role="rank") == shed + 8


def test_who_waits_longer_than_its_deadline_is_told(busy: App) -> None:
    assert ask(busy, 1.0) == "DEADLINE_EXCEEDED"


def test_a_freed_place_goes_to_who_waits(redis_url: str, world: World, serve: Serve) -> None:
    world.publish(publication(redis_url))
    app = serve("rank", max_active=1, max_waiting=1)
    outcomes: list[str] = []
    with app.admission.place(None):
        waiter = threading.Thread(target=lambda: outcomes.append(ask(app, 20)))
        waiter.start()
        until(lambda: app.admission.waiting != 0)
        assert (sample("livectr_active_requests"), sample("livectr_waiting_requests")) == (1, 1)
    waiter.join()
    assert outcomes == ["OK"]
    assert (sample("livectr_active_requests"), sample("livectr_waiting_requests")) == (0, 0)


def test_the_bytes_of_all_requests_are_bounded(redis_url: str, world: World, serve: Serve) -> None:
    world.publish(publication(redis_url))
    app = serve("rank", max_active=1, max_waiting=9, max_message_bytes=8_000, max_active_bytes=20_000)
    codes: list[str] = []

    def ask_much() -> None:
        with RankClient(app.server.address, 60) as client:
            context = {"user_id": 3, "ts": NOW_MS, "tags": [], "query": "x" * 7_000}
            try:
                client.rank(context, {"ad_id": [100], "position": [0]})
                codes.append("OK")
            except grpc.RpcError as error:
                assert "max_active_bytes, 20000" in str(error.details())
                codes.append(error.code().name)

    with app.admission.place(None):
        threads = [threading.Thread(target=ask_much) for _ in range(6)]
        for thread in threads:
            thread.start()
        until(lambda: len(codes) >= 4)  # two wait, the others are refused at once
        assert 14_000 < app.admission.bytes <= 20_000
    for thread in threads:
        thread.join()
    assert Counter(codes) == {"RESOURCE_EXHAUSTED": 4, "OK": 2}
    assert (app.admission.active, app.admission.bytes) == (0, 0)


def test_options_of_bytes_that_cannot_work(redis_url: str) -> None:
    with pytest.raises(
        ConfigError, match="max_active_bytes is 1, but one request may have max_message_bytes"
    ):
        ServeOptions(redis_url, max_active_bytes=1)
    with pytest.raises(ConfigError, match="must be at most 1073741824"):
        ServeOptions(redis_url, max_message_bytes=1 << 31, max_active_bytes=1 << 32)


def test_health_and_describe_answer_while_busy(busy: App) -> None:
    with grpc.insecure_channel(busy.server.address) as channel:
        stub = health_pb2_grpc.HealthStub(channel)
        answer = stub.Check(health_pb2.HealthCheckRequest(), timeout=left_s())
    assert answer.status == health_pb2.HealthCheckResponse.SERVING
    with RankClient(busy.server.address) as client:
        assert client.describe().role == "rank"
