"""Calls over a pool of channels, one after the other in turn: an answer, or an error with a sentence."""

from __future__ import annotations

import itertools
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from typing import Any, Generic, TypeVar

import grpc

from livectr.client.failures import call_error
from livectr.client.hedge import HedgeBudget, first_answer
from livectr.system.errors import ConfigError

Answer = TypeVar("Answer")

Metadata = tuple[tuple[str, str], ...]
"""Headers of a call: lower-case names and values."""


@dataclass(frozen=True)
class RemoteMethod(Generic[Answer]):
    """Method of a service of `livectr.v1`, and the class of its answers."""

    service: str
    name: str
    answer: type[Answer]

    @property
    def path(self) -> str:
        """Path of the method in gRPC."""
        return f"/livectr.v1.{self.service}/{self.name}"


class Calls:
    """Makes calls on channels in turn.

    Args:
        address: of the server, for errors.
        channels: to it; closed by `close`.
        hedge_after_s: seconds after which a call without an answer is made once more, on the next channel;
            None: never.

    Raises:
        ConfigError: `hedge_after_s` is not above 0.
    """

    def __init__(self, address: str, channels: Sequence[grpc.Channel], hedge_after_s: float | None) -> None:
        check_hedge(hedge_after_s)
        self._address = address
        self._channels = channels
        self._hedge_after_s = hedge_after_s
        self._budget = HedgeBudget()
        self._turn = itertools.count()
        self._callables: dict[tuple[str, int], Callable[..., Any]] = {}

    def ask(
        self, method: RemoteMethod[Answer], request: Any, timeout_s: float, metadata: Metadata = ()
    ) -> Answer:
        """Answer of the server.

        Args:
            method: of a service.
            request: message of the method.
            metadata: of the call, besides the token.
            timeout_s: seconds to the deadline; retries and hedges end with it.

        Raises:
            CallError: there is no answer.
        """

        def begin(left_s: float) -> Any:
            return self._next(method).future(request, timeout=left_s, metadata=metadata)  # type: ignore[attr-defined]

        answer: Answer
        try:
            if self._hedge_after_s is None:
                answer = self._next(method)(request, timeout=timeout_s, metadata=metadata)
            else:
                answer = first_answer(begin, timeout_s, self._hedge_after_s, self._budget)
        except grpc.RpcError as error:
            raise call_error(error, self._address) from None
        return answer

    def close(self) -> None:
        """Close the channels."""
        for channel in self._channels:
            channel.close()

    def _next(self, method: RemoteMethod[Answer]) -> Callable[..., Any]:
        at = next(self._turn) % len(self._channels)
        found = self._callables.get((method.path, at))
        if found is None:
            answer: Any = method.answer
            found = self._channels[at].unary_unary(
                method.path,
                request_serializer=lambda request: request.SerializeToString(),
                response_deserializer=answer.FromString,
            )
            self._callables[method.path, at] = found
        return found


def check_hedge(after_s: float | None) -> None:
    """Raise ConfigError if a hedge cannot begin after so many seconds; None: there are no hedges."""
    if after_s is not None and not after_s > 0:
        raise ConfigError(f"hedge_after_s is {after_s:g}, but must be above 0, or None for no hedges")
