"""Redis client that measures its round trips and counts their errors."""

from __future__ import annotations

import socket
import time
from collections.abc import Iterator, Sequence
from contextlib import contextmanager, suppress
from typing import Any, Self, cast

import redis
from hiredis import pack_command
from prometheus_client import Counter, Histogram
from redis._parsers.helpers import parse_info
from redis.client import Pipeline

from livectr.protos.kept_connections import KeptConnections
from livectr.protos.redis_errors import REDIS_ERRORS, Outcome, outcome_of

REDIS_SECONDS = Histogram(
    "livectr_redis_seconds",
    "Seconds from a command or pipeline to its answer, by the client of this process",
    ["client"],
    buckets=(0.0001, 0.0002, 0.0005, 0.001, 0.002, 0.005, 0.01, 0.02, 0.05, 0.1, 0.25, 0.5, 1, 2.5, 10, 30),
)
REDIS_ERRORS_TOTAL = Counter(
    "livectr_redis_errors",
    "Commands and pipelines that failed, by the client of this process and the meaning of the error",
    ["client", "outcome"],
)


class MeasuredRedis(redis.Redis):
    """Redis client with metrics: the seconds of each round trip, and errors by their `Outcome`.

    Messages of a subscription are not measured: their time is the sender's.
    """

    _measured = ""

    @classmethod
    def named(cls, name: str, url: str, **options: Any) -> Self:
        """Make a client; errors of every kind begin at 0.

        Args:
            name: of the client in the metrics.
            url, options: as in `redis.Redis.from_url`.
        """
        client = cast(Self, cls.from_url(url, **options))
        client._measured = name
        REDIS_SECONDS.labels(name)
        for outcome in Outcome:
            REDIS_ERRORS_TOTAL.labels(name, outcome.value)
        return client

    def execute_command(self, *args: Any, **options: Any) -> Any:
        with round_trip(self._measured):
            return super().execute_command(*args, **options)  # type: ignore[no-untyped-call]

    def fetch(self, names: Sequence[bytes], deadline: float | None = None) -> list[bytes | None]:
        """MGET on a connection that the client keeps; thread-safe.

        A connection that Redis has closed is replaced, and the read is repeated once, within the deadline.

        Args:
            deadline: instant of time.monotonic(); None: the client's time-outs alone.

        Raises an error of REDIS_ERRORS: redis.TimeoutError when the deadline passes.
        """
        return cast("list[bytes | None]", self._read((b"MGET", *names), deadline))

    def info_by(self, deadline: float) -> dict[str, Any]:
        """INFO, with a deadline as in `fetch`. Raises an error of REDIS_ERRORS."""
        text = self._read((b"INFO",), deadline)
        return cast("dict[str, Any]", parse_info(text))  # type: ignore[no-untyped-call]

    def _read(self, command: tuple[bytes, ...], deadline: float | None) -> Any:
        with round_trip(self._measured):
            kept: KeptConnections = self.__dict__.get("_kept") or self.__dict__.setdefault(
                "_kept", KeptConnections(self.connection_pool)
            )
            return kept.read(pack_command(command), deadline)  # type: ignore[arg-type]

    def interrupt(self) -> None:
        """Break the connections in use: commands that wait for an answer in other threads fail at once.

        redis-py's `disconnect` would take the socket out of a connection while its thread uses it, which then
        dies of an AttributeError or TypeError, or waits for ever. A connection that is shut down stays whole.
        """
        pool = self.connection_pool
        with pool._lock:
            sockets = [connection._sock for connection in pool._in_use_connections]
        for used in sockets:
            if used is not None:
                with suppress(OSError):  # its thread has closed it
                    socket.socket.shutdown(used, socket.SHUT_RDWR)  # a TLS socket's own would end the session

    def pipeline(self, transaction: bool = True, shard_hint: str | None = None) -> Pipeline:
        pipe = _MeasuredPipeline(self.connection_pool, self.response_callbacks, transaction, shard_hint)
        pipe.measured = self._measured
        return pipe


class _MeasuredPipeline(Pipeline):
    measured = ""
    """Name of its client."""

    def execute(self, raise_on_error: bool = True) -> list[Any]:
        if not len(self):
            return super().execute(raise_on_error)
        with round_trip(self.measured):
            return super().execute(raise_on_error)


@contextmanager
def round_trip(name: str) -> Iterator[None]:
    """Measure a block as a round trip of the named client."""
    started = time.perf_counter()
    try:
        yield
    except redis.exceptions.NoScriptError:
        raise  # redis-py answers with the script: no failure, but its way to ask
    except REDIS_ERRORS as error:
        REDIS_ERRORS_TOTAL.labels(name, outcome_of(error).value).inc()
        raise
    finally:
        REDIS_SECONDS.labels(name).observe(time.perf_counter() - started)
