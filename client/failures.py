"""Errors of a call, each a sentence that says what to do.

CallError                 a LiveCTRError and a grpc.RpcError, with its code() and details()
 ├─ RefusedCallError      a ConfigError: change the request, or ask another kind of server
 ├─ NoAnswerError         a ConnectError: ask again later, or another server
 └─ ServerFaultError      an InternalError: the server's log says why
"""

from __future__ import annotations

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
_HANDSHAKES = {
    "CERTIFICATE_VERIFY_FAILED": "its certificate is not of the authority that --tls-ca names",
    "Hostname Verification Check failed": "its certificate is for another name: ask by a name that is in it",
    "WRONG_VERSION_NUMBER": "it does not speak TLS: leave out --tls-ca",
    "Socket closed": "it closed the connection. If it speaks TLS, name its authority (--tls-ca FILE); if it "
    "asks for certificates, show one that it trusts (--tls-cert FILE --tls-key FILE)",
}
"""Part of gRPC's text → what is wrong, and what to say."""


class CallError(LiveCTRError, grpc.RpcError):  # type: ignore[misc]  # no types in grpc
    """A call without an answer.

    Args:
        address: of the server.
        says: what the server does, as the rest of the sentence.
        code: status of the call.
        details: text of the server, or of gRPC.
    """

    def __init__(self, address: str, says: str, code: grpc.StatusCode, details: str) -> None:
        super().__init__(f"{address} {says}")
        self.says = says
        self._code = code
        self._details = details

    def code(self) -> grpc.StatusCode:
        """Status of gRPC."""
        return self._code

    def details(self) -> str:
        """Text of the server, such as the name of the wrong field."""
        return self._details


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
    return _KINDS.get(code, ServerFaultError)(address, says, code, details)


def _no_connection(details: str) -> str:
    """Why there is no connection, from gRPC's nested texts.

    A handshake of TLS fails with texts of OpenSSL, whose innermost is "OK".
    """
    for text, why in _HANDSHAKES.items():
        if text in details:
            return why
    return details.rpartition(": ")[2]
