"""gRPC's health service. No client's stream stops the server, or those that ask (`Check`).

    Check ─► status
    Watch ─► stream ─► threads of the streams ─► its newest status, when it is another
    set ───────┘

The servicer of grpc_health holds a lock while it sends, and a send ends when the client's window has room
and the thread of the server's events has seen it. That thread takes the lock when a stream closes. So a
stream that opened while another closed, or a client without a window, stopped the server. Here nothing is
locked meanwhile.
"""

from __future__ import annotations

import functools
import logging
import threading
from collections.abc import Callable
from concurrent.futures import ThreadPoolExecutor
from typing import Any

import grpc
from grpc_health.v1 import health_pb2, health_pb2_grpc

log = logging.getLogger(__name__)

Status = health_pb2.HealthCheckResponse
_THREADS = 16
"""Streams that a status is sent to at a time. Clients without a window that hold all of them keep it from
other streams, and from nobody else."""


class _Stream:
    """Stream of a client.

    Args:
        send: sends a message, and waits; None ends the stream.
        status: to be sent; None: it was.
    """

    def __init__(self, send: Callable[[Any], object], status: int) -> None:
        self.send = send
        self.status: int | None = status
        self.sending = False


class Health(health_pb2_grpc.HealthServicer):  # type: ignore[misc]
    """Health of the services of a server."""

    def __init__(self) -> None:
        self._statuses: dict[str, int] = {}
        self._streams: dict[str, set[_Stream]] = {}
        self._shutting_down = False
        self._lock = threading.Lock()
        self._threads = ThreadPoolExecutor(_THREADS, thread_name_prefix="health-streams")

    @property
    def streams(self) -> int:
        """Open streams."""
        with self._lock:
            return sum(map(len, self._streams.values()))

    def Check(self, request: Any, context: grpc.ServicerContext) -> Any:  # noqa: N802
        """Status of a service."""
        status = self._statuses.get(request.service)
        if status is None:
            context.set_code(grpc.StatusCode.NOT_FOUND)
            return Status()
        return Status(status=status)

    def Watch(  # noqa: N802
        self, request: Any, context: grpc.ServicerContext, send_response_callback: Callable[[Any], object]
    ) -> None:
        """Send the status of a service, then each that follows."""
        name = request.service
        with self._lock:
            stream = _Stream(send_response_callback, self._statuses.get(name, Status.SERVICE_UNKNOWN))
            self._streams.setdefault(name, set()).add(stream)
            self._queue(stream)
        forget = functools.partial(self._forget, name, stream)
        if not context.add_callback(forget):  # it has ended
            forget()

    Watch.experimental_non_blocking = True  # type: ignore[attr-defined]

    def set(self, service: str, status: int) -> None:
        """Set the status of a service; after the shutdown has begun it stays."""
        with self._lock:
            if not self._shutting_down:
                self._set(service, status)

    def enter_graceful_shutdown(self) -> None:
        """Let every service be NOT_SERVING from here on."""
        with self._lock:
            self._shutting_down = True
            for service in self._statuses:
                self._set(service, Status.NOT_SERVING)

    def _set(self, service: str, status: int) -> None:
        self._statuses[service] = status
        for stream in self._streams.get(service, ()):
            stream.status = status
            self._queue(stream)

    def _queue(self, stream: _Stream) -> None:
        """Let a thread send the stream's status, unless one is about to."""
        if not stream.sending:
            stream.sending = True
            self._threads.submit(self._send, stream)

    def _send(self, stream: _Stream) -> None:
        while True:
            with self._lock:
                status, stream.status = stream.status, None
                if status is None:
                    stream.sending = False
                    return
            try:
                stream.send(Status(status=status))
            except Exception:  # gRPC has another answer for clients that have gone
                log.exception("a stream of health got no status")

    def _forget(self, service: str, stream: _Stream) -> None:
        with self._lock:
            streams = self._streams[service]
            streams.discard(stream)
            if not streams:
                del self._streams[service]
        self._threads.submit(stream.send, None)
