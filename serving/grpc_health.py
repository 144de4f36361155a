"""gRPC's health service, whose streams cannot stop its server, and are forgotten when they end."""

from __future__ import annotations

import functools
from collections.abc import Callable
from concurrent.futures import ThreadPoolExecutor
from typing import Any

import grpc
from grpc_health.v1 import health


class Health(health.HealthServicer):  # type: ignore[misc]
    """Health service of a server.

    The library holds a lock while it sends a status. The send ends once the thread of the server's events has
    seen it, and the library takes the same lock in that thread when a stream closes: no call would be
    answered any more. Here another thread takes it. Nor does the library forget a stream that its client has
    left before it was noted.
    """

    def __init__(self) -> None:
        super().__init__(experimental_non_blocking=True)
        self._closing = ThreadPoolExecutor(1, thread_name_prefix="health-closing")

    def Watch(  # noqa: N802
        self, request: Any, context: grpc.ServicerContext, send_response_callback: Any = None
    ) -> Any:
        """Send the status, then each that follows; see gRPC's health checking protocol."""
        return super().Watch(request, _Context(context), send_response_callback)

    def _on_close_callback(self, send_response_callback: object, service: str) -> Callable[[], object]:
        close = super()._on_close_callback(send_response_callback, service)
        return functools.partial(self._closing.submit, close)


class _Context:
    """Context of a stream, as far as the library asks it."""

    def __init__(self, context: grpc.ServicerContext) -> None:
        self._context = context

    def add_callback(self, callback: Callable[[], object]) -> None:
        """Call when the stream ends, or at once if it has."""
        if not self._context.add_callback(callback):
            callback()
