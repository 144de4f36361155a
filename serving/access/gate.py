"""Gate of a server: looks at a call before a thread takes it.

    call ─► token ─► place among the calls under way ─► thread ─► admission ─► handler
              │        └► RESOURCE_EXHAUSTED, at once
              └► UNAUTHENTICATED, PERMISSION_DENIED
         └► health: no token, threads of its own

A thread pool alone would queue without a bound, and health behind a hundred requests. Calls that are refused
need no thread: gRPC's own thread answers them.
"""

from __future__ import annotations

import threading
from collections.abc import Callable
from concurrent.futures import Future, ThreadPoolExecutor
from typing import Any

import grpc
from grpc_health.v1 import health

from livectr.serving import metrics
from livectr.serving.access.tokens import REFLECTION, Tokens
from livectr.serving.errors import AnswerError, OverloadError
from livectr.serving.status_details import abort

_HEALTH_THREADS = 2
_REFLECTION_THREADS = 4
"""Streams of reflection at a time; each keeps a thread for as long as its client likes."""
_HEALTH_PREFIX = f"/{health.SERVICE_NAME}/"


class CallPool(ThreadPoolExecutor):
    """Threads that answer calls, and a count of the calls that they have.

    Args:
        threads: calls that are under way at most.
        name: of the threads.

    Attributes:
        calls: calls that run or wait for a thread.
    """

    def __init__(self, threads: int, name: str) -> None:
        super().__init__(threads, thread_name_prefix=name)
        self.threads = threads
        self.calls = 0
        self._counting = threading.Lock()

    @property
    def full(self) -> bool:
        """True if a further call would have to wait for a thread."""
        return self.calls >= self.threads

    def submit(self, fn: Callable[..., Any], /, *args: Any, **kwargs: Any) -> Future[Any]:
        """Queue a call, and count it until it has ended. Raises RuntimeError after a shutdown."""
        with self._counting:
            self.calls += 1
        try:
            future = super().submit(fn, *args, **kwargs)
        except BaseException:
            self._done(None)
            raise
        future.add_done_callback(self._done)
        return future

    def _done(self, _: object) -> None:
        with self._counting:
            self.calls -= 1


class _AtOnce(ThreadPoolExecutor):
    """Runs in the calling thread what never waits; gRPC takes no other kind of executor."""

    def submit(self, fn: Callable[..., Any], /, *args: Any, **kwargs: Any) -> Future[Any]:
        future: Future[Any] = Future()
        future.set_result(fn(*args, **kwargs))
        return future


class Gate(grpc.ServerInterceptor):  # type: ignore[misc]
    """Refuses calls, or gives them to their threads.

    Args:
        calls: threads of all calls but those of health and reflection.
        roles: path of each admitted method → role in the metrics.
        tokens: of clients; None: everybody may ask.
    """

    def __init__(self, calls: CallPool, roles: dict[str, str], tokens: Tokens | None) -> None:
        self._calls, self._roles, self._tokens = calls, roles, tokens
        self._health = ThreadPoolExecutor(_HEALTH_THREADS, thread_name_prefix="health")
        self._reflection = CallPool(_REFLECTION_THREADS, "reflection")
        self._at_once = _AtOnce(1)
        self._handlers: dict[str, grpc.RpcMethodHandler] = {}
        """Handlers on their threads, by path."""

    def close(self) -> None:
        """End the threads of health and reflection."""
        self._health.shutdown(wait=False)
        self._reflection.shutdown(wait=False)

    def intercept_service(
        self,
        continuation: Callable[[grpc.HandlerCallDetails], grpc.RpcMethodHandler | None],
        details: grpc.HandlerCallDetails,
    ) -> grpc.RpcMethodHandler | None:
        """Check a call's token and the threads' room before a thread takes the call.

        Returns:
            Handler of the method, or of the refusal; None: there is no such method.
        """
        path = details.method
        handler = self._handlers.get(path) or continuation(details)
        if handler is None:
            return None  # UNIMPLEMENTED
        healthy, name = path.startswith(_HEALTH_PREFIX), path.rpartition("/")[2]
        pool = self._reflection if name == REFLECTION else self._calls
        if path not in self._handlers:
            handler = self._handlers[path] = _on(self._health if healthy else pool, handler)
        if healthy:
            return handler
        try:
            if self._tokens is not None:
                self._tokens.check(name, details.invocation_metadata)
            if pool.full:
                raise OverloadError(f"{pool.threads} calls are under way")
        except AnswerError as refusal:
            return self._refusal(refusal, self._roles.get(path))
        return handler

    def _refusal(self, refusal: AnswerError, role: str | None) -> grpc.RpcMethodHandler:
        if role is not None:
            metrics.REQUESTS.labels(role, refusal.status.name).inc()
            if isinstance(refusal, OverloadError):
                metrics.SHED.labels(role).inc()

        def refuse(_: object, context: grpc.ServicerContext) -> None:
            abort(context, refusal)

        # As if of a stream: the handler of a message would wait until the message is there.
        return _on(self._at_once, grpc.stream_unary_rpc_method_handler(refuse))


def _on(pool: ThreadPoolExecutor, handler: grpc.RpcMethodHandler) -> grpc.RpcMethodHandler:
    """Handler whose behavior runs on the threads of a pool."""
    kind = f"{'stream' if handler.request_streaming else 'unary'}_"
    kind += "stream" if handler.response_streaming else "unary"
    behavior = getattr(handler, kind)

    def run(*args: Any) -> Any:
        return behavior(*args)

    run.experimental_thread_pool = pool  # type: ignore[attr-defined]
    run.experimental_non_blocking = getattr(behavior, "experimental_non_blocking", False)  # type: ignore[attr-defined]
    return handler._replace(**{kind: run})
