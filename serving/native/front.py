"""Native gRPC front: Python interface of `front.cpp`, and the threads that answer what is not plain."""

from __future__ import annotations

import ctypes
import logging
import struct
import tempfile
import threading
import time
import weakref
from collections.abc import Callable, Sequence
from dataclasses import astuple, dataclass, fields
from typing import Any, NoReturn

import grpc

from livectr.kernels.request.answer import Answers, address_of_answer
from livectr.kernels.runtime.arrays import bytes_at
from livectr.serving import metrics
from livectr.serving.errors import OverloadError
from livectr.serving.status_details import status_of
from livectr.serving.tls import Certificate, followed_certificate
from livectr.system.tls import FollowedFiles, TlsFiles

log = logging.getLogger(__name__)

_METADATA_BYTES = 16 << 10
_DETAILS = "grpc-status-details-bin"
_RETRY = status_of(OverloadError("")).details[0].SerializeToString()
"""Detail of what the front refuses."""


@dataclass(frozen=True)
class FrontMethod:
    """Method whose requests the front reads itself.

    Args:
        path: of the method in gRPC.
        role: label of its metrics.
        handle: answers a request that is not plain, as a handler of gRPC does.
        plain: answers plain requests; None: none is plain.
    """

    path: str
    role: str
    handle: Callable[[bytes, Any], bytes]
    plain: Answers | None


@dataclass(frozen=True)
class FrontLimits:
    """Bounds of a front.

    Args:
        active: plain requests that are computed at a time.
        waiting: requests that wait for a place.
        bytes: of both.
        calls: calls of its methods that are under way, and threads for those that are not plain.
        message_bytes: largest request that is read.
        reuse_port: share the port with other processes.
        age_ms: age at which a client gets a GOAWAY; 0: none.
        grace_ms: time that its requests then have to end.
        ping_ms: least time between pings of a client that gets nothing, else it is told to go away.
    """

    active: int
    waiting: int
    bytes: int
    calls: int
    message_bytes: int
    reuse_port: bool
    age_ms: int
    grace_ms: int
    ping_ms: int


class Front:
    """Front of a server of Python, which listens on a Unix socket.

    Args:
        library: of the front (`build.front_library`).
        methods: whose requests it reads; all other calls go to the server.
        limits: its bounds.

    Attributes:
        upstream: address for the server.
    """

    def __init__(self, library: ctypes.CDLL, methods: Sequence[FrontMethod], limits: FrontLimits) -> None:
        self._library, self._methods, self._limits = _declared(library), methods, limits
        self._folder = tempfile.TemporaryDirectory(prefix="livectr-front-")  # nobody else may enter it
        self._socket = f"{self._folder.name}/python"
        self.upstream = f"unix:{self._socket}"
        self._handle: int | None = self._library.front_new()
        # Its loops must not outlive what they compute with, at the end of the process neither.
        self._forgotten = weakref.finalize(self, self._library.front_stop, self._handle, 0.0)
        for method in methods:
            plain = None if method.plain is None else method.plain.handle
            self._library.front_method(self._handle, method.path.encode(), *address_of_answer(), plain)
        self._fetch = _Fetch()
        self._threads: list[threading.Thread] = []
        self._growing = threading.Lock()
        self._counting = threading.Lock()
        self._stopping = threading.Lock()
        metrics.SOURCES.append(weakref.WeakMethod(self.count))

    @property
    def calls(self) -> int:
        """Calls of its methods that are under way."""
        with self._counting:
            return int(self._library.front_calls(self._handle)) if self._handle else 0

    def listen(self, address: str, tls: TlsFiles | None) -> int:
        """Listen on HOST:PORT, and return the port; 0: that cannot be.

        Clients wait until the server has started.

        Args:
            address: HOST:PORT.
            tls: files of the certificate; None: without TLS.

        Raises:
            ConfigError: files of TLS cannot be used.
        """
        if tls is not None:
            self._fetch = _Fetch(_Certificates(followed_certificate(tls)))
        words = (ctypes.c_int64 * len(fields(FrontLimits)))(*astuple(self._limits))
        fetch = None if tls is None else ctypes.cast(self._fetch, ctypes.c_void_p)
        at = address.encode(), self._socket.encode()
        return int(
            self._library.front_start(self._handle, *at, words, _RETRY, len(_RETRY), fetch),
        )

    def start(self) -> None:
        """Answer calls."""
        for _ in range(min(self._limits.active, self._limits.calls)):
            self._grow()

    def stop(self, grace_s: float) -> None:
        """Refuse new calls, and wait until those under way end, at most `grace_s` seconds; once."""
        with self._stopping:
            if self._handle is None:
                return
            self._forgotten.detach()
            self._library.front_stop(self._handle, grace_s)
            for thread in self._threads:
                thread.join()
            self.count()
            with self._counting:
                handle, self._handle = self._handle, None
            self._library.front_delete(handle)
            self._folder.cleanup()

    def count(self) -> None:
        """Count the requests that were refused since the last call in the metrics."""
        refused = (ctypes.c_int64 * len(self._methods))()
        with self._counting:
            if self._handle:
                self._library.front_refused(self._handle, refused)
        for method, count in zip(self._methods, refused, strict=True):
            if count:
                metrics.REQUESTS.labels(method.role, grpc.StatusCode.RESOURCE_EXHAUSTED.name).inc(count)
                metrics.SHED.labels(method.role).inc(count)

    def _grow(self) -> None:
        """Begin a thread, as far as the limits allow."""
        with self._growing:
            if len(self._threads) >= self._limits.calls:
                return
            thread = threading.Thread(target=self._run, name=f"front-{len(self._threads)}", daemon=True)
            try:
                thread.start()
            except RuntimeError as error:  # the machine has no more; those there are go on
                log.error("the front cannot begin thread %d: %s", len(self._threads), error)
            else:
                self._threads.append(thread)

    def _run(self) -> None:
        """Answer requests that are not plain."""
        handed, library = _Handed(), self._library
        front, at = self._handle, ctypes.byref(handed)
        while library.front_next(front, at):
            if not handed.idle:
                self._grow()
            self._answer(handed)

    def _answer(self, handed: _Handed) -> None:
        """Answer a request; whatever happens, the call ends."""
        library, call = self._library, HandedCall(self._library, handed.call, handed.deadline)
        try:
            raw = bytes_at(handed.data, handed.bytes)
            reply = self._methods[handed.method].handle(raw, call)
        except _AbortError as ended:
            code, text, more = ended.status.value[0], ended.details.encode(), ended.more
            library.front_fail(call.end(), code, text, len(text), more, len(more))
        except BaseException as error:  # as gRPC does
            text = f"Exception calling application: {error}".encode()
            library.front_fail(call.end(), grpc.StatusCode.UNKNOWN.value[0], text, len(text), b"", 0)
            log.exception("a request failed")
        else:
            library.front_reply(call.end(), reply, len(reply))


class _Shown(ctypes.Structure):
    """`Shown` of `front.cpp`."""

    _fields_ = (("chain", ctypes.c_char_p), ("key", ctypes.c_char_p), ("client_ca", ctypes.c_char_p))


_Fetch = ctypes.CFUNCTYPE(ctypes.c_bool, ctypes.POINTER(_Shown))


class _Certificates:
    """Gives a new connection the certificate, if it is another than before; gRPC asks one at a time."""

    def __init__(self, followed: FollowedFiles[Certificate]) -> None:
        self._followed = followed
        self._shown: Certificate | None = None

    def __call__(self, out: Any) -> bool:
        found = self._followed.newer() if self._shown is not None else self._followed.current()
        if found is None:
            return False
        self._shown = found  # it lives while gRPC copies it
        out[0].chain, out[0].key, out[0].client_ca = found
        return True


class HandedCall:
    """Call that the front has handed to Python: what handlers use of a context of gRPC.

    Args:
        library: of the front.
        call: handle of the call.
        deadline: instant of time.monotonic(); inf: no deadline.
    """

    def __init__(self, library: ctypes.CDLL, call: int, deadline: float) -> None:
        self._library, self._deadline = library, deadline
        self._call: int | None = call
        self._ended: tuple[grpc.StatusCode, str] | None = None

    def time_remaining(self) -> float | None:
        """Seconds to the deadline; None: no deadline."""
        left = self._deadline - time.monotonic()
        return None if left == float("inf") else left

    def is_active(self) -> bool:
        """Tell if the client still waits."""
        return self._call is not None and bool(self._library.front_is_active(self._call))

    def end(self) -> int:
        """Give the handle back, to end the call by it."""
        call, self._call = self._call, None
        assert call is not None
        return call

    def abort(self, code: grpc.StatusCode, details: str) -> NoReturn:
        """End the call by a status; it raises."""
        self._ended = code, details
        raise _AbortError(code, details)

    def abort_with_status(self, status: grpc.Status) -> NoReturn:
        """End the call by a status with details (grpc_status.rpc_status); it raises."""
        self._ended = status.code, status.details
        raise _AbortError(status.code, status.details, dict(status.trailing_metadata).get(_DETAILS, b""))

    def code(self) -> grpc.StatusCode | None:
        """Status by which the call was ended; None: it was not."""
        return None if self._ended is None else self._ended[0]

    def details(self) -> bytes | None:
        """Text of that status."""
        return None if self._ended is None else self._ended[1].encode()

    def invocation_metadata(self) -> list[tuple[str, str]]:
        """Metadata that the client has sent."""
        if self._call is None:
            return []
        room = _METADATA_BYTES
        buffer = ctypes.create_string_buffer(room)
        while (size := self._library.front_metadata(self._call, buffer, room)) > room:
            buffer, room = ctypes.create_string_buffer(size), size
        texts, at, raw = list[str](), 0, buffer.raw[:size]
        while at < size:
            (length,) = struct.unpack_from("<q", raw, at)
            texts.append(raw[at + 8 : at + 8 + length].decode("latin-1"))
            at += 8 + length
        return list(zip(texts[::2], texts[1::2], strict=True))


class _AbortError(Exception):
    """End of a call by a status."""

    def __init__(self, status: grpc.StatusCode, details: str, more: bytes = b"") -> None:
        super().__init__(details)
        self.status, self.details, self.more = status, details, more


class _Handed(ctypes.Structure):
    """`Handed` of `front.cpp`."""

    _fields_ = (
        *((name, ctypes.c_void_p) for name in ("call", "data")),
        *((name, ctypes.c_int64) for name in ("bytes", "method", "idle")),
        *((name, ctypes.c_double) for name in ("deadline", "began")),
    )


def _declared(library: ctypes.CDLL) -> ctypes.CDLL:
    """Library with the types of its functions."""
    pointer, number, text = ctypes.c_void_p, ctypes.c_int64, ctypes.c_char_p
    types: dict[str, tuple[Any, list[Any]]] = {
        "front_new": (pointer, []),
        "front_method": (None, [pointer, text, pointer, pointer, pointer]),
        "front_start": (
            number,
            [pointer, text, text, pointer, text, number, pointer],
        ),
        "front_next": (ctypes.c_bool, [pointer, pointer]),
        "front_reply": (None, [pointer, text, number]),
        "front_fail": (None, [pointer, number, text, number, text, number]),
        "front_metadata": (number, [pointer, pointer, number]),
        "front_is_active": (ctypes.c_bool, [pointer]),
        "front_calls": (number, [pointer]),
        "front_refused": (None, [pointer, pointer]),
        "front_stop": (None, [pointer, ctypes.c_double]),
        "front_delete": (None, [pointer]),
    }
    for name, (result, arguments) in types.items():
        function = getattr(library, name)
        function.restype, function.argtypes = result, arguments
    return library
