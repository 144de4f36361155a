"""Bearer token of a client, sent with each call."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any, NamedTuple

import grpc


class _CallDetails(NamedTuple):
    """`grpc.ClientCallDetails`, which has no constructor."""

    method: str
    timeout: float | None
    metadata: Sequence[tuple[str, str | bytes]]
    credentials: Any
    wait_for_ready: bool | None
    compression: Any


class WithToken(grpc.UnaryUnaryClientInterceptor):  # type: ignore[misc]
    """Sends a bearer token with each call."""

    def __init__(self, token: str) -> None:
        self._header = "authorization", f"Bearer {token}"

    def intercept_unary_unary(self, continuation: Any, details: Any, request: Any) -> Any:
        details = _CallDetails(
            details.method,
            details.timeout,
            (*(details.metadata or ()), self._header),
            details.credentials,
            details.wait_for_ready,
            details.compression,
        )
        return continuation(details, request)
