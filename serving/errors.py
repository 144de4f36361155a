"""Errors that a client receives instead of an answer, each with its gRPC status.

    AnswerError
    ├─ RequestError         INVALID_ARGUMENT    the message names the field
    ├─ NotReadyError        UNAVAILABLE         no version has been published yet
    ├─ PinnedError          FAILED_PRECONDITION another version is served than the request pins
    ├─ SideError            FAILED_PRECONDITION the side that the request names has no version to answer with
    ├─ RefusedError         UNAVAILABLE         Redis refuses what the request needs
    ├─ OverloadError        RESOURCE_EXHAUSTED  load shedding: no place to compute or to wait
    ├─ UnauthenticatedError UNAUTHENTICATED     no token, or one that is not known
    ├─ ForbiddenError       PERMISSION_DENIED   the token may not call the method
    ├─ DeadlineError        DEADLINE_EXCEEDED   the deadline passed before the answer
    └─ CancelledError       CANCELLED           the client no longer waits

They are replies to clients, not failures of the server, so they stay inside `serving`.
"""

from __future__ import annotations

from collections.abc import Iterator
from contextlib import contextmanager
from typing import ClassVar

import grpc

_MOST_CHARACTERS = 400
"""Longest message: it is sent percent-encoded in a header, and clients accept headers of 8 KB."""
_MOST_OF_FIELD = 100
"""Longest name of a field within a message."""


class AnswerError(Exception):
    """Base class; `status` is the gRPC status that the client receives."""

    status: ClassVar[grpc.StatusCode] = grpc.StatusCode.UNKNOWN

    def __init__(self, text: str) -> None:
        super().__init__(_cut(text, _MOST_CHARACTERS))


class RequestError(AnswerError):
    """Invalid request.

    Args:
        field: name of the first wrong field.
        problem: rest of the sentence.
    """

    status = grpc.StatusCode.INVALID_ARGUMENT

    def __init__(self, field: str, problem: str) -> None:
        super().__init__(f"{_cut(field, _MOST_OF_FIELD)}: {problem}")
        self.field, self.problem = field, problem


class NotReadyError(AnswerError):
    """No version has been published that this server can serve."""

    status = grpc.StatusCode.UNAVAILABLE


class PinnedError(AnswerError):
    """Another version is served than the request pins.

    Args:
        pinned: version of the request.
        served: version of the server.
    """

    status = grpc.StatusCode.FAILED_PRECONDITION

    def __init__(self, pinned: int, served: int) -> None:
        super().__init__(
            f"version: the request pins {pinned}, and this server serves {served}; pin the version of a "
            "reply, or leave it out (0)"
        )


class SideError(AnswerError):
    """The request names a side that the server does not have, or that has no version yet.

    Args:
        side: of the request.
        problem: rest of the sentence.
    """

    status = grpc.StatusCode.FAILED_PRECONDITION

    def __init__(self, side: str, problem: str) -> None:
        super().__init__(f"side: the request names {_cut(side, _MOST_OF_FIELD)}, {problem}")


class RefusedError(AnswerError):
    """Redis refuses the request; a retry fails until an operator changes Redis or its users."""

    status = grpc.StatusCode.UNAVAILABLE


class OverloadError(AnswerError):
    """Admission refused the request: the server is full."""

    status = grpc.StatusCode.RESOURCE_EXHAUSTED


class UnauthenticatedError(AnswerError):
    """No token, or one that the server does not know."""

    status = grpc.StatusCode.UNAUTHENTICATED


class ForbiddenError(AnswerError):
    """Token may not call the method."""

    status = grpc.StatusCode.PERMISSION_DENIED


class DeadlineError(AnswerError):
    """Deadline of the request passed before the answer."""

    status = grpc.StatusCode.DEADLINE_EXCEEDED


class CancelledError(AnswerError):
    """Client cancelled its request, or its connection broke."""

    status = grpc.StatusCode.CANCELLED


@contextmanager
def foreign_values() -> Iterator[None]:
    """Turn a ValueError of decoding into RefusedError: another program wrote the value."""
    try:
        yield
    except ValueError as error:
        raise RefusedError(f"Redis holds a value that no trainer wrote: {error}") from error


def _cut(text: str, most: int) -> str:
    return text if len(text) <= most else f"{text[:most]}…"
