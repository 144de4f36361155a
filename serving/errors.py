"""Why a request is not answered, and the gRPC status that says so.

    AnswerError
     ├─ RequestError       INVALID_ARGUMENT    the message names the field
     ├─ NotReadyError      UNAVAILABLE         no version has been published yet
     ├─ RefusedError       UNAVAILABLE         Redis refuses what the request needs
     ├─ OverloadError      RESOURCE_EXHAUSTED  shed: no place to compute or to wait
     ├─ DeadlineError      DEADLINE_EXCEEDED   the deadline passed first
     └─ CancelledError     CANCELLED           the client does not wait for the answer any more

These are answers to clients, not failures of the server, so they stay inside `serving`.
"""

from __future__ import annotations

from collections.abc import Iterator
from contextlib import contextmanager
from typing import ClassVar

import grpc

_MOST_CHARACTERS = 400
"""Of a text: it travels in a header, percent-encoded, and clients take headers of 8 KB."""
_MOST_OF_FIELD = 100


class AnswerError(Exception):
    """Root of what a client is told instead of an answer."""

    status: ClassVar[grpc.StatusCode] = grpc.StatusCode.UNKNOWN

    def __init__(self, text: str) -> None:
        super().__init__(_cut(text, _MOST_CHARACTERS))


class RequestError(AnswerError):
    """A request that cannot be understood; `field` is the first thing wrong in it."""

    status = grpc.StatusCode.INVALID_ARGUMENT

    def __init__(self, field: str, problem: str) -> None:
        super().__init__(f"{_cut(field, _MOST_OF_FIELD)}: {problem}")
        self.field = field


class NotReadyError(AnswerError):
    """Nothing has been published that this server could answer from."""

    status = grpc.StatusCode.UNAVAILABLE


class RefusedError(AnswerError):
    """Redis answers, but not to this server: asking again will not help before somebody changes something."""

    status = grpc.StatusCode.UNAVAILABLE


class OverloadError(AnswerError):
    """The server has no place for the request."""

    status = grpc.StatusCode.RESOURCE_EXHAUSTED


class DeadlineError(AnswerError):
    """The request's deadline passed before it was answered."""

    status = grpc.StatusCode.DEADLINE_EXCEEDED


class CancelledError(AnswerError):
    """The client cancelled its request, or its connection broke."""

    status = grpc.StatusCode.CANCELLED


@contextmanager
def foreign_values() -> Iterator[None]:
    """Raises RefusedError for a value of Redis that does not decode, as one that another program wrote."""
    try:
        yield
    except ValueError as error:
        raise RefusedError(f"Redis holds what no trainer wrote: {error}") from error


def _cut(text: str, most: int) -> str:
    return text if len(text) <= most else f"{text[:most]}…"
