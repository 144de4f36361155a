"""gRPC server around a model: transport, status codes, admission, health, reflection.

Handlers read the raw bytes themselves: gRPC would answer a malformed message with INTERNAL, which blames the
server. The synchronous server with a thread pool needs half the CPU of the asyncio server.
"""

from __future__ import annotations

import logging
import time
from collections.abc import Callable, Mapping
from dataclasses import dataclass, field, replace
from typing import Any, Generic, TypeVar

import grpc
from grpc_health.v1 import health, health_pb2, health_pb2_grpc
from grpc_reflection.v1alpha import reflection

from livectr.kernels.request.answer import Answers
from livectr.serving import metrics, tracing
from livectr.serving.access.gate import CallPool, Gate
from livectr.serving.access.tokens import Tokens
from livectr.serving.calls import RequestCall
from livectr.serving.canary import SIDE, STABLE
from livectr.serving.deadlines import CALL, NO_CALL, deadline_of
from livectr.serving.errors import AnswerError, OverloadError, RequestError
from livectr.serving.grpc_health import Health
from livectr.serving.native.build import front_library
from livectr.serving.native.front import Front, FrontLimits, FrontMethod
from livectr.serving.reply import Reply
from livectr.serving.request.admission import Admission
from livectr.serving.request.sentences import ColumnSpec
from livectr.serving.status_details import abort
from livectr.serving.tls import server_credentials
from livectr.system.errors import ConfigError
from livectr.system.logs import REQUEST_ID
from livectr.system.tls import TlsFiles

log = logging.getLogger(__name__)

Req = TypeVar("Req")

_MARGIN_BYTES = 64 << 10
"""Bytes above the limit that gRPC still accepts, so that the handler can refuse the message with a reason."""
_LEAST_PING_MS = 10_000
"""Least time between keepalive pings of a client; one that sends more is told to go away."""
_REQUEST_ID_CHARS = 128
"""Longest request id in the log; a longer one is cut."""
_SPARE_THREADS = 8
"""Threads besides those that compute or wait: they shed load and describe the server."""


@dataclass(frozen=True)
class Method(Generic[Req]):
    """Unary method `/livectr.v1.<service>/<name>`.

    Args:
        read: reads the bytes of a request; raises RequestError if they are no message of its kind. What it
            returns has a `request_id` if calls are admitted.
        handle: answers what was read.
        admitted: whether calls take a place of admission and count in the request metrics.
        role: label of these metrics; empty: the server's role.
        columns: that a request may or must hold.
        plain: answers plain requests without the interpreter; None: `handle` answers all.
    """

    service: str
    name: str
    read: Callable[[bytes], Req]
    handle: Callable[[Req, RequestCall], Reply]
    admitted: bool = True
    role: str = ""
    columns: Mapping[str, ColumnSpec] = field(default_factory=dict)
    plain: Answers | None = None

    @property
    def path(self) -> str:
        """Path of the method in gRPC."""
        return f"/{self.service}/{self.name}"


@dataclass(frozen=True)
class Transport:
    """Connections of a server.

    Args:
        listen: HOST:PORT; port 0 takes a free port.
        max_message_bytes: largest request.
        reuse_port: share the port with other processes (SO_REUSEPORT).
        tls: files of the certificate; None: without TLS.
        max_age_s: seconds after which a client gets a GOAWAY and connects again; 0: never.
        grace_s: seconds that requests of a connection have to end after its GOAWAY.
        token_file: file of the clients' tokens; None: everybody may ask.
        reflection: whether the services and messages may be asked for.
        front: "native": a native front reads the requests; "auto": if there is one; "python": none.
    """

    listen: str
    max_message_bytes: int
    reuse_port: bool = False
    tls: TlsFiles | None = None
    max_age_s: float = 0.0
    grace_s: float = 5.0
    token_file: str | None = None
    reflection: bool = True
    front: str = "python"


class Server:
    """gRPC server of a role.

    Args:
        role: "rank", "prerank" or "recommend"; label of metrics.
        transport: address, limits and TLS.
        methods: unary methods, of one or several services.
        admission: bounded queue of the admitted methods.

    Raises:
        ConfigError: the address cannot be listened on, or files of TLS or tokens cannot be used.
    """

    def __init__(
        self, role: str, transport: Transport, methods: list[Method[Any]], admission: Admission
    ) -> None:
        self.role = role
        self._admission = admission
        metrics.begin(role, active=lambda: admission.active, waiting=lambda: admission.waiting)
        self._max_message_bytes = transport.max_message_bytes
        pool = CallPool(admission.max_active + admission.max_waiting + _SPARE_THREADS, f"{role}-rpc")
        roles = {m.path: m.role or role for m in methods if m.admitted}
        tokens = None if transport.token_file is None else Tokens(transport.token_file)
        self._pool, self._gate = pool, Gate(pool, roles, tokens)
        self._front = self._front_of(transport, [method for method in methods if method.admitted])
        # Behind a front, the connections are those of the front.
        own = transport if self._front is None else replace(transport, max_age_s=0.0)
        self._server = grpc.server(pool, interceptors=[self._gate], options=_server_options(own))
        self._services = sorted({method.service for method in methods})
        for service in self._services:
            handlers = {m.name: self._unary(m) for m in methods if m.service == service}
            self._server.add_generic_rpc_handlers((grpc.method_handlers_generic_handler(service, handlers),))
        self._health = Health()
        health_pb2_grpc.add_HealthServicer_to_server(self._health, self._server)
        if transport.reflection:
            reflection.enable_server_reflection(
                [*self._services, health.SERVICE_NAME, reflection.SERVICE_NAME], self._server
            )
        self.set_ready(False)
        #: who reads the requests, "native" or "python"
        self.front = "python" if self._front is None else "native"
        self.port = self._listen(transport)
        self.address = f"{transport.listen.rpartition(':')[0]}:{self.port}"

    @property
    def calls(self) -> int:
        """Calls under way, without those of health and reflection."""
        return self._pool.calls + (0 if self._front is None else self._front.calls)

    def start(self) -> None:
        """Accept calls; the port was bound by the constructor."""
        self._server.start()
        if self._front is not None:
            self._front.start()

    def set_ready(self, ready: bool) -> None:
        """Set the health service of all methods to SERVING or NOT_SERVING."""
        status = health_pb2.HealthCheckResponse
        metrics.READY.labels(self.role).set(int(ready))
        for service in ("", *self._services):
            self._health.set(service, status.SERVING if ready else status.NOT_SERVING)

    def stop(self, grace_s: float) -> None:
        """Refuse new requests and wait until running requests end, at most `grace_s` seconds."""
        self._health.enter_graceful_shutdown()
        if self._front is not None:
            self._front.stop(grace_s)
        self._server.stop(grace_s).wait()
        self._gate.close()

    def _front_of(self, transport: Transport, methods: list[Method[Any]]) -> Front | None:
        """Native front of the server; None: the server has none.

        Raises:
            ConfigError: it is wanted, and cannot be.
        """
        if transport.front == "python":
            return None
        library = front_library()
        reason = library if isinstance(library, str) else ""
        if transport.token_file is not None:
            reason = "it knows no tokens"
        if reason or isinstance(library, str):
            if transport.front == "native":
                raise ConfigError(f"there is no native front: {reason}; let `front` be auto or python")
            log.info("Python answers all requests, without a native front: %s", reason)
            return None
        read = [
            FrontMethod(m.path, m.role or self.role, self._handler(replace(m, plain=None)), m.plain)
            for m in methods
        ]
        log.info("the native front reads the requests")
        admission, calls = self._admission, self._pool.threads
        limits = FrontLimits(
            *(admission.max_active, admission.max_waiting, admission.max_bytes, calls),
            message_bytes=transport.max_message_bytes + _MARGIN_BYTES,
            reuse_port=transport.reuse_port,
            age_ms=round(transport.max_age_s * 1000),
            grace_ms=round(transport.grace_s * 1000),
            ping_ms=_LEAST_PING_MS,
        )
        return Front(library, read, limits)

    def _listen(self, transport: Transport) -> int:
        """Open the port and return its number."""
        if self._front is not None:
            self._server.add_insecure_port(self._front.upstream)
            port = self._front.listen(transport.listen, transport.tls)
            if not port:
                raise ConfigError(f"cannot listen on {transport.listen}: choose a free HOST:PORT")
            return port
        credentials = server_credentials(transport.tls) if transport.tls is not None else None
        try:
            if credentials is not None:
                return int(self._server.add_secure_port(transport.listen, credentials))
            return int(self._server.add_insecure_port(transport.listen))
        except RuntimeError as error:
            raise ConfigError(f"cannot listen on {transport.listen}: choose a free HOST:PORT") from error

    def _unary(self, method: Method[Req]) -> grpc.RpcMethodHandler:
        return grpc.unary_unary_rpc_method_handler(self._handler(method))

    def _handler(self, method: Method[Req]) -> Callable[[bytes, Any], bytes]:
        role, most, plain = method.role or self.role, self._max_message_bytes, method.plain

        def handle(raw: bytes, context: grpc.ServicerContext) -> bytes:
            code, size, placed, observed = "OK", len(raw), False, False
            began = time.perf_counter()
            REQUEST_ID.set("")  # threads are used again
            SIDE.set(STABLE)
            call = RequestCall(role, deadline_of(context.time_remaining()), context.is_active, began)
            try:
                if size > most:
                    raise RequestError("request", f"has {size} bytes; this server takes at most {most}")
                if method.admitted:
                    self._admission.enter(call.deadline, size, call.is_active)
                    placed = True
                    placed_at = time.perf_counter()
                    if plain is not None:
                        answered = plain.answer(raw, call.deadline, began, placed_at)
                        if answered is not None:
                            observed = True
                            return answered
                    call.ends.append(("wait", placed_at))
                    CALL.set(call)
                request: Any = method.read(raw)
                if method.admitted:
                    REQUEST_ID.set(request.request_id[:_REQUEST_ID_CHARS])
                reply = method.handle(request, call)
                if tracing.TRACER is not None:
                    tracing.TRACER.answered(reply.message)
                return reply.serialized()
            except AnswerError as failure:
                code = failure.status.name
                if isinstance(failure, OverloadError):
                    metrics.SHED.labels(role).inc()
                abort(context, failure)
            except Exception:
                code = grpc.StatusCode.INTERNAL.name
                log.exception("%s failed", method.name)
                context.abort(grpc.StatusCode.INTERNAL, "the server failed; its log says why")
            finally:
                if placed:
                    self._admission.leave(size)
                    CALL.set(NO_CALL)
                if method.admitted and not observed:
                    call.observe(code)
            raise AssertionError("abort raises")

        return tracing.traced(handle, method.service, method.name)


def _server_options(transport: Transport) -> list[tuple[str, int]]:
    options = [
        ("grpc.so_reuseport", int(transport.reuse_port)),
        # The handler names the size that is too large; gRPC itself cuts off far larger messages.
        ("grpc.max_receive_message_length", transport.max_message_bytes + _MARGIN_BYTES),
        # gRPC knows the size of a compressed message only once it lies unpacked in memory.
        ("grpc.compression_enabled_algorithms_bitset", 1 << grpc.Compression.NoCompression),
        ("grpc.max_send_message_length", -1),
        # Clients look after idle connections, too: routers forget them.
        ("grpc.keepalive_permit_without_calls", 1),
        ("grpc.http2.min_ping_interval_without_data_ms", _LEAST_PING_MS),
    ]
    if transport.max_age_s:
        options += [
            ("grpc.max_connection_age_ms", round(transport.max_age_s * 1000)),
            ("grpc.max_connection_age_grace_ms", round(transport.grace_s * 1000)),
        ]
    return options
