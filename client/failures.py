"""Errors of a call, each a sentence that says what to do.

CallError                 a LiveCTRError and a grpc.RpcError, with its code() and details()
 ├─ RefusedCallError      a ConfigError: change the request, or ask another kind of server
 ├─ NoAnswerError         a ConnectError: ask again later, or another server
 └─ ServerFaultError      an InternalError: the server's log says why
"""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

import grpc

from livectr.system.errors import ConfigError, ConnectError, InternalError, LiveCTRError

Code = grpc.StatusCode

_SENTENCES = {
    Code.INVALID_ARGUMENT: "refuses the request",
    Code.FAILED_PRECONDITION: "serves another version",
    Code.UNIMPLEMENTED: "does not offer this call: ask another kind of server",
    Code.UNAUTHENTICATED: "does not know who asks: give the client a token (--token-file FILE)",
    Code.PERMISSION_DENIED: "does not allow this call: give the client another token (--token-file FILE)",
    Code.UNAVAILABLE: "cannot answer yet, or is no LiveCTR server",
    Code.CANCELLED: "ended before it answered",
    Code.RESOURCE_EXHAUSTED: "is full: ask less often, or add servers",
    Code.DEADLINE_EXCEEDED: "did not answer in time: raise the time-out, or ask for less",
}
"""Status → what the server does, as the words after its address."""
_CLOSED = (
    "it closed the connection. If it speaks TLS, name its authority (--tls-ca FILE); if it asks for "
    "certificates, show one that it trusts (--tls-cert FILE --tls-key FILE)"
)
_HANDSHAKES = {
    "CERTIFICATE_VERIFY_FAILED": "its certificate is not of the authority that --tls-ca names",
    "Hostname Verification Check failed": "its certificate is for another name: ask by a name that is in it",
    "WRONG_VERSION_NUMBER": "it does not speak TLS: leave out --tls-ca",
    "Socket closed": _CLOSED,
    "TSI_DATA_CORRUPTED": _CLOSED,  # by an alert of TLS
}
"""Part of gRPC's text → what is wrong, and what to say."""


class CallError(LiveCTRError, grpc.RpcError):  # type: ignore[misc]  # no types in grpc
    """A call without an answer.

    Args:
        address: of the server.
        says: what the server does, as the rest of the sentence.
        code: status of the call.
        details: text of the server, or of gRPC.
        trailing: metadata that ended the call.
    """

    def __init__(
        self, address: str, says: str, code: grpc.StatusCode, details: str, trailing: Sequence[Any] = ()
    ) -> None:
        super().__init__(f"{address} {says}")
        self.says = says
        self._code = code
        self._details = details
        self._trailing = tuple(trailing)

    def code(self) -> grpc.StatusCode:
        """Status of gRPC."""
        return self._code

    def details(self) -> str:
        """Text of the server, such as the name of the wrong field."""
        return self._details

    def trailing_metadata(self) -> Sequence[Any]:
        """Metadata that ended the call, as of gRPC."""
        return self._trailing

    def status_details(self) -> list[Any]:
        """Details of google.rpc.Status, such as BadRequest with the wrong field; mostly one or none."""
        from google.rpc import error_details_pb2  # of errors alone: a client is quick to import
        from grpc_status import rpc_status

        try:
            status = rpc_status.from_call(self)
        except ValueError:  # another program's, for another call
            return []
        found = []
        for packed in status.details if status is not None else ():
            kind = getattr(error_details_pb2, packed.type_url.rpartition(".")[2], None)
            if kind is not None and packed.Is(kind.DESCRIPTOR):
                found.append(kind.FromString(packed.value))
        return found

    def fields(self) -> dict[str, str]:
        """Wrong fields of the request, such as "candidates.ad_id", with what is wrong about each."""
        return {
            violation.field: violation.description
            for detail in self.status_details()
            for violation in getattr(detail, "field_violations", ())
        }


class RefusedCallError(CallError, ConfigError):
    """The request is wrong, or not for this server: asked again, it is refused again."""


class NoAnswerError(CallError, ConnectError):
    """No server is there, or none can answer at present."""


class ServerFaultError(CallError, InternalError):
    """The server failed at this request."""


_KINDS: dict[grpc.StatusCode, type[CallError]] = {
    **dict.fromkeys(
        (
            Code.INVALID_ARGUMENT,
            Code.FAILED_PRECONDITION,
            Code.UNIMPLEMENTED,
            Code.UNAUTHENTICATED,
            Code.PERMISSION_DENIED,
        ),
        RefusedCallError,
    ),
    **dict.fromkeys(
        (Code.UNAVAILABLE, Code.CANCELLED, Code.RESOURCE_EXHAUSTED, Code.DEADLINE_EXCEEDED), NoAnswerError
    ),
}


def call_error(error: grpc.RpcError, address: str) -> CallError:
    """Error of a call that gRPC ended without an answer.

    Args:
        error: what gRPC raised.
        address: of the server.
    """
    code, details = error.code(), error.details() or ""
    why = _no_connection(details) if code is Code.UNAVAILABLE else details
    says = f"{_SENTENCES.get(code, 'failed')} ({code.name}): {why}"
    trailing = error.trailing_metadata() or ()
    return _KINDS.get(code, ServerFaultError)(address, says, code, details, trailing)


def _no_connection(details: str) -> str:
    """Why there is no connection, from gRPC's nested texts.

    A handshake of TLS fails with texts of OpenSSL, whose innermost is "OK".
    """
    for text, why in _HANDSHAKES.items():
        if text in details:
            return why
    return details.rpartition(": ")[2]
