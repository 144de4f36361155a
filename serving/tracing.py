"""Traces of requests (OpenTelemetry), sent by OTLP where the environment names a receiver.

    livectr.v1.Rank/Rank                       child of the caller's span, by the header `traceparent`
     ├─ wait ─ parse ─ enrich ─ extract ─ look_up ─ score ─ respond

Without a receiver OpenTelemetry is not imported here: handlers stay as they are, and the end of a stage
looks at one variable.
"""

from __future__ import annotations

import logging
import os
import sys
import threading
import time
from collections.abc import Callable, Iterator, Mapping
from contextlib import contextmanager
from typing import Any

from grpc import StatusCode

from livectr.system.logs import REQUEST_ID, add_log_field

log = logging.getLogger(__name__)

Handle = Callable[[bytes, Any], bytes]
"""Answers the bytes of a request in a gRPC context."""

_ENDPOINTS = ("OTEL_EXPORTER_OTLP_TRACES_ENDPOINT", "OTEL_EXPORTER_OTLP_ENDPOINT")
_PROTOCOLS = ("OTEL_EXPORTER_OTLP_TRACES_PROTOCOL", "OTEL_EXPORTER_OTLP_PROTOCOL")
_FAULTS = frozenset(
    {
        StatusCode.UNKNOWN,
        StatusCode.DEADLINE_EXCEEDED,
        StatusCode.UNIMPLEMENTED,
        StatusCode.INTERNAL,
        StatusCode.UNAVAILABLE,
        StatusCode.DATA_LOSS,
    }
)
"""Statuses that are errors of a server, by OpenTelemetry's conventions for gRPC."""
_LAST_SPANS_S = 2.0
"""Seconds to send the last spans at the end."""
_RELEASE: str = sys.modules[__name__.partition(".")[0]].__version__


class _Clock(threading.local):
    """Offset of a thread's request: nanoseconds since 1970 where time.perf_counter() is 0."""

    zero_ns = 0


class Tracer:
    """Makes spans of requests and their stages.

    Args:
        provider: opentelemetry.sdk.trace.TracerProvider.
    """

    def __init__(self, provider: Any) -> None:
        from opentelemetry import propagate, trace

        self._trace = trace
        self._extract = propagate.extract
        self._tracer = provider.get_tracer("livectr.serving", _RELEASE)
        self._thread = _Clock()

    def traced(self, handle: Handle, service: str, method: str) -> Handle:
        """Handler that makes a span of each request."""
        name = f"{service}/{method}"
        attributes = {"rpc.system.name": "grpc", "rpc.method": name}
        trace = self._trace

        def traced_handle(raw: bytes, context: Any) -> bytes:
            # One clock for the request and its stages: no stage begins before its request.
            began_ns = time.perf_counter_ns()
            zero_ns = self._thread.zero_ns = time.time_ns() - began_ns
            headers = {key: value for key, value in context.invocation_metadata() if isinstance(value, str)}
            span = self._tracer.start_span(
                name,
                self._extract(headers),
                kind=trace.SpanKind.SERVER,
                attributes=attributes,
                start_time=zero_ns + began_ns,
            )
            # gRPC's abort raises, and its status says what happened.
            with trace.use_span(span, record_exception=False, set_status_on_exception=False):
                try:
                    return handle(raw, context)
                finally:
                    code = context.code() or StatusCode.OK
                    span.set_attribute("rpc.response.status_code", code.name)
                    if code in _FAULTS:
                        details = (context.details() or b"").decode()
                        span.set_status(trace.StatusCode.ERROR, details)
                    span.end(zero_ns + time.perf_counter_ns())

        return traced_handle

    def stage_ended(self, stage: str, since_s: float, until_s: float) -> None:
        """Make a span of a stage.

        Args:
            stage: name of the span.
            since_s: its start, by time.perf_counter().
            until_s: its end, by time.perf_counter().
        """
        if self._trace.get_current_span().is_recording():
            zero_ns = self._thread.zero_ns
            span = self._tracer.start_span(stage, start_time=zero_ns + round(since_s * 1e9))
            span.end(zero_ns + round(until_s * 1e9))

    def answered(self, answer: Any) -> None:
        """Note in the request's span which version answered."""
        span = self._trace.get_current_span()
        if span.is_recording():
            span.set_attribute("livectr.version", answer.version)
            span.set_attribute("livectr.model", answer.model)
            if side := getattr(answer, "side", ""):
                span.set_attribute("livectr.side", side)
            if getattr(answer, "degraded", False):
                span.set_attribute("livectr.degraded", answer.degraded_reason)
            if REQUEST_ID.get():
                span.set_attribute("livectr.request_id", REQUEST_ID.get())

    def trace_id(self) -> str | None:
        """Id of the trace of the request that this thread answers, in hexadecimal."""
        found = self._trace.get_current_span().get_span_context()
        return f"{found.trace_id:032x}" if found.is_valid else None


TRACER: Tracer | None = None
"""None: requests are not traced."""


@contextmanager
def tracing(role: str, variables: Mapping[str, str] = os.environ) -> Iterator[None]:
    """Trace the requests of servers that are made meanwhile, if the environment names a receiver.

    OTEL_EXPORTER_OTLP_ENDPOINT does. The other OTEL_* variables of the SDK count, too: headers, TLS, sampler,
    resource. A receiver that is away loses traces, and delays nothing but the end, by _LAST_SPANS_S.

    Args:
        role: of the server; the service is "livectr-ROLE", unless the environment names another.
        variables: the environment.
    """
    global TRACER
    provider = _provider(role, variables) if _wanted(variables) else None
    if provider is None:
        yield
        return
    TRACER = Tracer(provider)
    add_log_field("trace_id", TRACER.trace_id)
    try:
        yield
    finally:
        TRACER = None
        add_log_field("trace_id", lambda: None)
        # It keeps trying for half a minute where the receiver is away, longer than a pod has to end.
        ending = threading.Thread(target=provider.shutdown, daemon=True)
        ending.start()
        ending.join(_LAST_SPANS_S)


def traced(handle: Handle, service: str, method: str) -> Handle:
    """Handler with traces, if there are any."""
    return handle if TRACER is None else TRACER.traced(handle, service, method)


def _wanted(variables: Mapping[str, str]) -> bool:
    off = (
        variables.get("OTEL_SDK_DISABLED", "").lower() == "true"
        or variables.get("OTEL_TRACES_EXPORTER") == "none"
    )
    return not off and any(variables.get(name) for name in _ENDPOINTS)


def _provider(role: str, variables: Mapping[str, str]) -> Any:
    """Provider with an OTLP exporter; None, and a warning, where that cannot be."""
    protocol = next((variables[name] for name in _PROTOCOLS if variables.get(name)), "grpc")
    if protocol != "grpc":
        log.warning("no traces: the protocol is %s, but LiveCTR sends OTLP by grpc (port 4317)", protocol)
        return None
    try:
        from opentelemetry.exporter.otlp.proto.grpc.trace_exporter import OTLPSpanExporter
        from opentelemetry.sdk.resources import Resource
        from opentelemetry.sdk.trace import TracerProvider
        from opentelemetry.sdk.trace.export import BatchSpanProcessor
    except ModuleNotFoundError as error:
        log.warning("no traces: the package %s is missing: pip install 'livectr[otel]'", error.name)
        return None
    attributes = {"service.version": _RELEASE}
    named = variables.get("OTEL_SERVICE_NAME") or "service.name=" in variables.get(
        "OTEL_RESOURCE_ATTRIBUTES", ""
    )
    if not named:
        attributes["service.name"] = f"livectr-{role}"
    provider = TracerProvider(resource=Resource.create(attributes), shutdown_on_exit=False)
    provider.add_span_processor(BatchSpanProcessor(OTLPSpanExporter()))
    return provider
