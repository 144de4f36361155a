"""Details of an error beside its sentence, for programs: google.rpc.Status of gRPC's richer error model.

RequestError            BadRequest            the field, and what is wrong with it
PinnedError, SideError  PreconditionFailure   what the request wants, and what the server has
OverloadError, NotReadyError  RetryInfo       seconds after which another call makes sense
"""

from __future__ import annotations

from typing import Any, NoReturn
from urllib.parse import quote

import grpc
from google.rpc import code_pb2, error_details_pb2, status_pb2
from grpc_status import rpc_status

from livectr.serving.errors import (
    AnswerError,
    NotReadyError,
    OverloadError,
    PinnedError,
    RequestError,
    SideError,
)

RETRY_S = 1
"""Seconds after which a full server, or one without a version, may be asked again."""
_MOST_BYTES = 6_000
"""Largest status with its sentence, as headers: clients accept 8 KB of them."""


def status_of(failure: AnswerError) -> status_pb2.Status:
    """Status of an error, with at most one detail."""
    code = code_pb2.Code.Value(failure.status.name)
    status = status_pb2.Status(code=code, message=str(failure))
    if (detail := _detail(failure)) is not None:
        status.details.add().Pack(detail)
    return status


def abort(context: grpc.ServicerContext, failure: AnswerError) -> NoReturn:
    """End a call with an error; raises."""
    status = status_of(failure)
    # The sentence is percent-encoded in one header, and the status is in base64 in another.
    size = len(quote(status.message)) + status.ByteSize() * 4 // 3
    if status.details and size <= _MOST_BYTES:
        context.abort_with_status(rpc_status.to_status(status))
    else:
        context.abort(failure.status, status.message)
    raise AssertionError("abort raises")


def _detail(failure: AnswerError) -> Any:
    match failure:
        case RequestError():
            violation = error_details_pb2.BadRequest.FieldViolation(
                field=failure.field, description=failure.problem
            )
            return error_details_pb2.BadRequest(field_violations=[violation])
        case PinnedError() | SideError():
            subject, _, _ = str(failure).partition(":")
            unmet = error_details_pb2.PreconditionFailure.Violation(
                type=subject.upper(), subject=subject, description=str(failure)
            )
            return error_details_pb2.PreconditionFailure(violations=[unmet])
        case OverloadError() | NotReadyError():
            retry = error_details_pb2.RetryInfo()
            retry.retry_delay.FromSeconds(RETRY_S)
            return retry
    return None
