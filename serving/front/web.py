"""Web application of the JSON front: HTTP in, calls of a gRPC server out.

A status of gRPC becomes the status of HTTP that google.rpc.Code names beside it, with the server's sentence.
"""

from __future__ import annotations

import asyncio
import base64
import hashlib
import re
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from google.protobuf import json_format
from google.rpc.error_details_pb2 import BadRequest
from grpc import StatusCode
from starlette.applications import Starlette
from starlette.concurrency import run_in_threadpool
from starlette.exceptions import HTTPException
from starlette.requests import Request
from starlette.responses import JSONResponse, Response
from starlette.routing import Route

from livectr.client.failures import CallError
from livectr.client.pack import FieldError
from livectr.serving.front import answers
from livectr.serving.front.requests import METHODS, EveryClient
from livectr.system.errors import ConfigError

PATHS = ("GET /", "GET /v1/describe", *(f"POST /v1/{name}" for name in METHODS))

HTTP_STATUS: Mapping[StatusCode, int] = {
    StatusCode.CANCELLED: 499,
    StatusCode.UNKNOWN: 500,
    StatusCode.INVALID_ARGUMENT: 400,
    StatusCode.DEADLINE_EXCEEDED: 504,
    StatusCode.NOT_FOUND: 404,
    StatusCode.ALREADY_EXISTS: 409,
    StatusCode.PERMISSION_DENIED: 403,
    StatusCode.UNAUTHENTICATED: 401,
    StatusCode.RESOURCE_EXHAUSTED: 429,
    StatusCode.FAILED_PRECONDITION: 400,
    StatusCode.ABORTED: 409,
    StatusCode.OUT_OF_RANGE: 400,
    StatusCode.UNIMPLEMENTED: 501,
    StatusCode.INTERNAL: 500,
    StatusCode.UNAVAILABLE: 503,
    StatusCode.DATA_LOSS: 500,
}
"""Status of gRPC → of HTTP (google/rpc/code.proto)."""

_CODES = {413: "OUT_OF_RANGE", 404: "NOT_FOUND", 405: "UNIMPLEMENTED", 408: "DEADLINE_EXCEEDED"}
_PASSED_ON = ("authorization", "traceparent", "tracestate")
"""Headers that the server gets, too."""
_TIMEOUT = re.compile(r"(\d{1,8})([HMSmun])")
_UNIT_S = {"H": 3600.0, "M": 60.0, "S": 1.0, "m": 1e-3, "u": 1e-6, "n": 1e-9}
_BODY_S = 10.0
"""Seconds in which a request has to arrive."""


@dataclass(frozen=True)
class WebLimits:
    """Limits of a request.

    Args:
        timeout_s: longest deadline, and that of a request which names none.
        body_bytes: largest body.
    """

    timeout_s: float = 5.0
    body_bytes: int = 8 << 20


def web_application(client: EveryClient, limits: WebLimits) -> Starlette:
    """Application that asks through a client; see PATHS."""

    async def describe(request: Request) -> Response:
        asking, timeout_s = _asking(client, request), _timeout_s(request, limits)
        described = await run_in_threadpool(asking.describe, timeout_s=timeout_s)
        return JSONResponse(answers.facts(described))

    async def ask(request: Request) -> Response:
        method = METHODS[request.url.path.rpartition("/")[2]]
        asking, timeout_s = _asking(client, request), _timeout_s(request, limits)
        raw = await _body(request, limits.body_bytes)
        return JSONResponse(await run_in_threadpool(method, asking, raw, timeout_s))

    page = (Path(__file__).parent / "page.html").read_bytes()
    headers = {"content-security-policy": _policy(page), "x-content-type-options": "nosniff"}

    async def show(request: Request) -> Response:
        return Response(page, media_type="text/html", headers=headers)

    return Starlette(
        routes=[
            Route("/", show),
            Route("/v1/describe", describe),
            *(Route(f"/v1/{name}", ask, methods=["POST"]) for name in METHODS),
        ],
        exception_handlers={
            CallError: _call_failed,
            ConfigError: _mistake,
            HTTPException: _refused,
            Exception: _failed,
        },
    )


def _asking(client: EveryClient, request: Request) -> EveryClient:
    """Client with the headers that the request passes on."""
    passed = {name: value for name in _PASSED_ON if (value := request.headers.get(name))}
    if not all(value.isascii() and value.isprintable() for value in passed.values()):
        raise ConfigError(f"the headers {', '.join(passed)} must be of printable ASCII characters")
    return client.with_metadata(passed) if passed else client


def _timeout_s(request: Request, limits: WebLimits) -> float:
    """Deadline in seconds: that of the header `grpc-timeout`, at most the limit."""
    given = request.headers.get("grpc-timeout")
    if given is None:
        return limits.timeout_s
    found = _TIMEOUT.fullmatch(given)
    if found is None:
        raise ConfigError(
            f"the header grpc-timeout is {given!r}, but must be such as 200m (milliseconds) or 2S"
        )
    return min(limits.timeout_s, int(found[1]) * _UNIT_S[found[2]])


async def _body(request: Request, most: int) -> bytes:
    # Browsers send a body of another type for any web page, without asking this server first.
    if request.headers.get("content-type", "").partition(";")[0].strip().lower() != "application/json":
        raise HTTPException(415, "say Content-Type: application/json, as `curl --json` does")
    raw = bytearray()
    try:
        async with asyncio.timeout(_BODY_S):
            async for chunk in request.stream():
                raw += chunk
                if len(raw) > most:
                    raise HTTPException(413, f"the request has more than {most} bytes (--max-body-bytes)")
    except TimeoutError:
        raise HTTPException(408, f"the request did not arrive within {_BODY_S:g} s") from None
    return bytes(raw)


def _policy(page: bytes) -> str:
    """Content security policy: the page's own script and styles, and this server."""
    script = page.partition(b"<script>")[2].partition(b"</script>")[0]
    digest = base64.b64encode(hashlib.sha256(script).digest()).decode()
    return (
        f"default-src 'none'; script-src 'sha256-{digest}'; style-src 'unsafe-inline'; "
        "img-src data:; connect-src 'self'; form-action 'none'; base-uri 'none'; frame-ancestors 'none'"
    )


def _failure(
    status: int,
    code: str,
    message: str,
    headers: Mapping[str, str] | None = None,
    details: Sequence[Mapping[str, Any]] = (),
) -> Response:
    error = {"code": status, "status": code, "message": message}
    body = {"error": error | ({"details": details} if details else {})}
    return JSONResponse(body, status, headers=headers)


async def _call_failed(request: Request, error: Any) -> Response:
    code = error.code()
    status = HTTP_STATUS.get(code, 500)
    headers = {401: {"www-authenticate": "Bearer"}, 429: {"retry-after": "1"}, 503: {"retry-after": "1"}}
    says = f"the server {error.says}"  # without its address
    return _failure(
        status, code.name, says, headers.get(status), [_detail(d) for d in error.status_details()]
    )


def _detail(detail: Any) -> dict[str, Any]:
    """Detail of google.rpc.Status, as the JSON of `Any` has it."""
    kind = f"type.googleapis.com/{detail.DESCRIPTOR.full_name}"
    return {"@type": kind, **json_format.MessageToDict(detail)}


async def _mistake(request: Request, error: Exception) -> Response:
    field, problem = (error.field, error.problem) if isinstance(error, FieldError) else ("", str(error))
    details = [_bad_request(field, problem)]
    return _failure(400, StatusCode.INVALID_ARGUMENT.name, str(error), details=details)


def _bad_request(field: str, problem: str) -> dict[str, Any]:
    """Detail of what is wrong with a field; "": with the request as a whole."""
    violation = BadRequest.FieldViolation(field=field, description=problem)
    return _detail(BadRequest(field_violations=[violation]))


async def _failed(request: Request, error: Exception) -> Response:
    return _failure(500, StatusCode.INTERNAL.name, "the JSON front failed; its log says why")


async def _refused(request: Request, error: Any) -> Response:
    message = error.detail
    if error.status_code in (404, 405):
        message = f"there is no {request.method} {request.url.path}; say {', '.join(PATHS)}"
    code = _CODES.get(error.status_code, StatusCode.INVALID_ARGUMENT.name)
    wrong = code == StatusCode.INVALID_ARGUMENT.name
    details = [_bad_request("", message)] if wrong else []
    return _failure(error.status_code, code, message, error.headers, details)
