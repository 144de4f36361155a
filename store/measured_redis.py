"""Redis client that measures its round trips and counts their errors."""

from __future__ import annotations

import socket
import time
from collections.abc import Iterable, Iterator, Sequence
from contextlib import contextmanager, suppress
from typing import Any, Self, cast

import redis
from hiredis import pack_command
from prometheus_client import Counter, Histogram
from redis._parsers.helpers import parse_info
from redis.client import Pipeline
from redis.connection import ConnectionPool

from livectr.store.kept_connections import KeptConnections
from livectr.store.packed_calls import PackedCall, answers_of
from livectr.store.packed_calls import ScriptCall as ScriptCall
from livectr.store.redis_errors import REDIS_ERRORS, Outcome, outcome_of

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


SCAN_COUNT = 2000


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
            url: as in `redis.Redis.from_url`.
            options: as in `redis.Redis.from_url`.
        """
        return cast(Self, cls.from_url(url, **options)).measured_as(name)

    def measured_as(self, name: str) -> Self:
        """Give the client a name in the metrics; errors of every kind begin at 0."""
        self._measured = name
        show_client(name)
        return self

    def execute_command(self, *args: Any, **options: Any) -> Any:
        """Run a command, and measure its round trip."""
        with round_trip(self._measured):
            return super().execute_command(*args, **options)  # type: ignore[no-untyped-call]

    def fetch(self, names: Sequence[bytes], deadline: float | None = None) -> list[bytes | None]:
        """MGET on a connection that the client keeps; thread-safe.

        A connection that Redis has closed is replaced, and the read is repeated once, within the deadline.

        Args:
            names: n keys.
            deadline: instant of time.monotonic(); None: the client's time-outs alone.

        Raises an error of REDIS_ERRORS: redis.TimeoutError when the deadline passes.
        """
        return cast("list[bytes | None]", self._read((b"MGET", *names), deadline))

    def info_by(self, deadline: float) -> dict[str, Any]:
        """INFO, with a deadline as in `fetch`. Raises an error of REDIS_ERRORS."""
        text = self._read((b"INFO",), deadline)
        return cast("dict[str, Any]", parse_info(text))  # type: ignore[no-untyped-call]

    def infos(self, *section: str, deadline: float | None = None) -> list[dict[str, Any]]:
        """INFO of each server. Raises an error of REDIS_ERRORS."""
        if deadline is not None:
            return [self.info_by(deadline)]
        return [self.info(*section)]

    def run_ids(self, names: Sequence[str]) -> tuple[str, ...]:
        """Word that the process which holds each key has for itself. Raises an error of REDIS_ERRORS."""
        return (str(self.infos("server")[0].get("run_id", "")),) * len(names)

    def call(self, script: ScriptCall) -> Any:
        """Run a script. Raises an error of REDIS_ERRORS."""
        return self._registered(script.source)(keys=script.keys, args=script.args)

    def call_all(self, scripts: Sequence[ScriptCall]) -> list[Any]:
        """Run scripts in a single round trip of each server. Raises an error of REDIS_ERRORS."""
        pipe = self.pipeline(transaction=False)
        for script in scripts:
            self._registered(script.source)(keys=script.keys, args=script.args, client=pipe)
        return pipe.execute()

    def call_packed(self, calls: Iterable[PackedCall], source: str) -> Iterator[Any]:
        """Run calls of a script, some of them at once; iterate over their answers, in any order.

        Raises an error of REDIS_ERRORS.
        """
        unknown: list[ScriptCall] = []
        with round_trip(self._measured):
            self._read((b"SCRIPT", b"LOAD", source.encode()), None)
            for call, answer in answers_of(calls, lambda _: self.connection_pool):
                if isinstance(answer, redis.exceptions.NoScriptError):  # Redis has restarted
                    unknown.append(call.plain())
                elif isinstance(answer, BaseException):
                    raise answer
                else:
                    yield answer
        yield from self.call_all(unknown) if unknown else ()

    def scan_all(self, pattern: str) -> Iterator[list[bytes]]:
        """Names of the keys that match a pattern, in parts. Raises an error of REDIS_ERRORS."""
        cursor = 0
        while True:
            cursor, names = cast("tuple[int, list[Any]]", self.scan(cursor, match=pattern, count=SCAN_COUNT))
            if names:
                yield [name if isinstance(name, bytes) else name.encode() for name in names]
            if cursor == 0:
                return

    def remove(self, names: Iterable[str | bytes]) -> int:
        """UNLINK of keys with any tags; returns how many there were. Raises an error of REDIS_ERRORS."""
        every = list(names)
        return int(self.unlink(*every)) if every else 0

    def subscription(self, channel: str, near: str) -> redis.client.PubSub:
        """Subscribe to a channel. Raises an error of REDIS_ERRORS.

        Args:
            channel: name of the channel.
            near: key whose server is asked.
        """
        subscription: redis.client.PubSub = self.pubsub(ignore_subscribe_messages=True)  # type: ignore[no-untyped-call]
        subscription.subscribe(channel)
        return subscription

    def _registered(self, source: str) -> Any:
        scripts: dict[str, Any] = self.__dict__.setdefault("_scripts", {})
        if source not in scripts:
            scripts[source] = self.register_script(source)
        return scripts[source]

    def _read(self, command: tuple[bytes, ...], deadline: float | None) -> Any:
        with round_trip(self._measured):
            return self._connections.read(pack_command(command), deadline)  # type: ignore[arg-type]

    @property
    def _connections(self) -> KeptConnections:
        """Connections that the client keeps."""
        kept: KeptConnections = self.__dict__.get("_kept") or self.__dict__.setdefault(
            "_kept", KeptConnections(self.connection_pool)
        )
        return kept

    def interrupt(self) -> None:
        """Break the connections in use: commands that wait for an answer in other threads fail at once.

        redis-py's `disconnect` would take the socket out of a connection while its thread uses it, which then
        dies of an AttributeError or TypeError, or waits for ever. A connection that is shut down stays whole.
        """
        shut_down(self.connection_pool)

    def pipeline(self, transaction: bool = True, shard_hint: str | None = None) -> Pipeline:
        """Make a pipeline whose round trip is measured."""
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


def show_client(name: str) -> None:
    """Let the metrics of a client begin at 0."""
    REDIS_SECONDS.labels(name)
    for outcome in Outcome:
        REDIS_ERRORS_TOTAL.labels(name, outcome.value)


def shut_down(pool: ConnectionPool) -> None:
    """Break the connections of a pool that are in use."""
    with pool._lock:
        sockets = [connection._sock for connection in pool._in_use_connections]
    for used in sockets:
        if used is not None:
            with suppress(OSError):  # its thread has closed it
                socket.socket.shutdown(used, socket.SHUT_RDWR)  # a TLS socket's own would end the session


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
