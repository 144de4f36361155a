"""Client that writes frames of HTTP/2 by hand, for what no gRPC client does."""

from __future__ import annotations

import socket
import ssl
import struct
from collections.abc import Iterable, Iterator
from types import TracebackType
from typing import NamedTuple, Self
from urllib.parse import unquote

import grpc
import hpack

DATA, HEADERS, RST_STREAM, SETTINGS, PING, GOAWAY, WINDOW_UPDATE, CONTINUATION = 0, 1, 3, 4, 6, 7, 8, 9
END_STREAM, END_HEADERS, ACK = 1, 4, 1
CODES = {code.value[0]: code for code in grpc.StatusCode}
RESETS = {
    7: grpc.StatusCode.UNAVAILABLE,  # REFUSED_STREAM
    8: grpc.StatusCode.CANCELLED,  # CANCEL
    11: grpc.StatusCode.RESOURCE_EXHAUSTED,  # ENHANCE_YOUR_CALM
    12: grpc.StatusCode.PERMISSION_DENIED,  # INADEQUATE_SECURITY
}
"""Statuses of RST_STREAM, by gRPC's PROTOCOL-HTTP2, "Errors"; all others are INTERNAL."""
PREFACE = b"PRI * HTTP/2.0\r\n\r\nSM\r\n\r\n"


class Frame(NamedTuple):
    """Frame that was received."""

    kind: int
    flags: int
    stream: int
    payload: bytes


class Reply(NamedTuple):
    """End of a call, as a client of gRPC sees it.

    Args:
        code: of `grpc-status`, or of a reset; UNAVAILABLE: the connection has ended.
        text: `grpc-message`; empty for a reset.
        messages: with their prefixes of five bytes.
    """

    code: grpc.StatusCode
    text: str = ""
    messages: bytes = b""


def frame(kind: int, flags: int, stream: int, payload: bytes = b"") -> bytes:
    return struct.pack(">I", len(payload))[1:] + bytes([kind, flags]) + struct.pack(">I", stream) + payload


def integer(value: int, bits: int, first: int = 0) -> bytes:
    """Integer of HPACK with a prefix of some bits."""
    most = (1 << bits) - 1
    if value < most:
        return bytes([first | value])
    out, value = [first | most], value - most
    while value >= 128:
        out.append(value % 128 | 128)
        value //= 128
    return bytes([*out, value])


def literal(name: str, value: str) -> bytes:
    """Header that is not indexed."""
    texts = name.encode(), value.encode()
    return b"\0" + b"".join(integer(len(text), 7) + text for text in texts)


def request_headers(path: str, more: Iterable[tuple[str, str]] = ()) -> bytes:
    fields = {":method": "POST", ":scheme": "http", ":path": path, ":authority": "x", "te": "trailers"}
    fields |= {"content-type": "application/grpc", **dict(more)}
    return b"".join(literal(name, value) for name, value in fields.items())


def message(raw: bytes) -> bytes:
    return b"\0" + struct.pack(">I", len(raw)) + raw


def asked(stream: int, path: str, raw: bytes, more: Iterable[tuple[str, str]] = ()) -> bytes:
    """Frames of a request of a unary method."""
    headers = frame(HEADERS, END_HEADERS, stream, request_headers(path, more))
    return headers + frame(DATA, END_STREAM, stream, message(raw))


class RawClient:
    """Connection that has sent its preface and settings."""

    def __init__(self, address: str, settings: bytes = b"", tls: ssl.SSLContext | None = None) -> None:
        host, _, port = address.rpartition(":")
        self.socket = socket.create_connection((host, int(port)), timeout=30)
        if tls is not None:
            self.socket = tls.wrap_socket(self.socket, server_hostname=host)
        self._held = b""
        self._headers = hpack.Decoder()
        self.send(PREFACE + frame(SETTINGS, 0, 0, settings))

    def __enter__(self) -> Self:
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        self.socket.close()

    def send(self, raw: bytes) -> None:
        self.socket.sendall(raw)

    def agree(self) -> None:
        """Take the server's settings: it holds a client to them from then on."""
        next(found for found in self.frames() if found.kind == SETTINGS and not found.flags & ACK)
        self.send(frame(SETTINGS, ACK, 0))

    def ask(self, stream: int, path: str, raw: bytes, more: Iterable[tuple[str, str]] = ()) -> None:
        """Send a request of a unary method."""
        self.send(asked(stream, path, raw, more))

    def frames(self) -> Iterator[Frame]:
        """Frames that come, until the server closes the connection."""
        while True:
            held = self._held
            if len(held) >= 9 and len(held) >= 9 + (size := int.from_bytes(held[:3], "big")):
                self._held = held[9 + size :]
                yield Frame(held[3], held[4], int.from_bytes(held[5:9], "big"), held[9 : 9 + size])
            elif more := self.socket.recv(65536):
                self._held += more
            else:
                return

    def frames_until_end_of(self, stream: int) -> Iterator[Frame]:
        """Frames that come, until one ends a stream."""
        for found in self.frames():
            yield found
            if found.stream == stream and (found.kind == RST_STREAM or found.flags & END_STREAM):
                return

    def reply(self, stream: int) -> Reply:
        """Reply to the call of a stream, when it has ended."""
        fields, messages = dict[str, str](), b""
        for found in self.frames_until_end_of(stream):
            if found.kind == HEADERS:
                assert found.flags & END_HEADERS
                decoded = self._headers.decode(found.payload)
                if found.stream == stream:
                    fields |= {str(name): str(value) for name, value in decoded}
            if found.stream != stream:
                continue
            if found.kind == DATA:
                messages += found.payload
            if found.kind == RST_STREAM:
                error = int.from_bytes(found.payload, "big")
                return Reply(RESETS.get(error, grpc.StatusCode.INTERNAL))
        if "grpc-status" not in fields:
            return Reply(grpc.StatusCode.UNAVAILABLE)
        assert fields[":status"] == "200" and fields["content-type"] == "application/grpc"
        return Reply(CODES[int(fields["grpc-status"])], unquote(fields.get("grpc-message", "")), messages)
