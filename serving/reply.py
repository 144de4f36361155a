"""Reply to a request: a message, and the fields that a kernel has written in protobuf's wire format."""

from __future__ import annotations

from typing import Any, NamedTuple

from livectr.serving import metrics


class Reply(NamedTuple):
    """Reply to a request, before it is bytes.

    Args:
        message: reply, without the fields in `packed`.
        packed: other fields of the message, on the wire.
    """

    message: Any
    packed: bytes = b""

    def serialized(self) -> bytes:
        """Bytes of the whole message. Fields may come in any order (protobuf.dev, Encoding, field order)."""
        head: bytes = self.message.SerializeToString()
        return head + self.packed


def mark_degraded(message: Any, role: str, reason: str) -> None:
    """Say in a reply that rows may be missing, and count it."""
    message.degraded, message.degraded_reason = True, reason
    metrics.DEGRADED.labels(role).inc()
