"""Connections to Redis that a client keeps for its reads, with the deadline of the caller.

redis-py's time-outs are those of a step: of each connect, and of each `recv`. Here a caller's deadline bounds
all of a read: the connect, every `recv`, and the repetition on another connection.
"""

from __future__ import annotations

import time
from collections import deque
from collections.abc import Sequence
from dataclasses import dataclass
from typing import Any, cast

import redis
from redis._parsers.hiredis import NOT_ENOUGH_DATA
from redis.connection import Connection, ConnectionPool
from redis.sentinel import SentinelConnectionPool, SentinelManagedConnection


@dataclass(frozen=True)
class Asked:
    """Commands that were sent.

    Args:
        commands: packed, one after the other.
        count: of their answers.
        error: the send failed.
    """

    connection: Connection | None
    commands: bytes
    count: int
    error: BaseException | None = None


class KeptConnections:
    """Connections out of a pool that are not given back after a read. Thread-safe.

    A pool examines a connection whenever it hands it out, which costs more than a round trip. Here a
    connection that Redis has closed is found by the read itself, which is then repeated once. Behind
    sentinels, a connection to another server than the newest primary is dropped.
    """

    def __init__(self, pool: ConnectionPool) -> None:
        self.pool = pool
        self._kept: deque[Connection] = deque()

    def read(self, command: bytes, deadline: float | None = None) -> Any:
        """Send a packed command and return the answer.

        Args:
            command: with its arguments, in Redis's protocol.
            deadline: instant of time.monotonic() after which the read is given up; None: each step has the
                pool's own time-out.

        Raises an error of REDIS_ERRORS: redis.TimeoutError when the deadline passes.
        """
        (answer,) = self.answers(self.ask(command, 1, deadline), deadline)
        if isinstance(answer, redis.ResponseError):  # the connection is as good as before
            raise answer
        return answer

    def ask(self, commands: bytes, count: int, deadline: float | None) -> Asked:
        """Send packed commands; `answers` waits, or `drop` gives up. An error is raised by `answers`."""
        connection = None
        try:
            connection = self._take(deadline)
            _send(connection, commands, deadline)
        except BaseException as error:
            if connection is not None:
                self._drop(connection)
            if not isinstance(error, redis.RedisError):
                raise
            return Asked(None, commands, count, error)
        return Asked(connection, commands, count)

    def answers(self, asked: Asked, deadline: float | None, *, attempts: int = 2) -> list[Any]:
        """Wait for the answers to commands; errors of Redis among them are returned, not raised.

        The commands are sent again, on another connection, if the connection broke.
        """
        for attempt in range(1, attempts + 1):
            try:
                if asked.error is not None:
                    raise asked.error
                assert asked.connection is not None
                found = [_answer(asked.connection, deadline) for _ in range(asked.count)]
                _usual_timeout(asked.connection)
            except BaseException as error:
                self.drop(asked)
                passed = deadline is not None and time.monotonic() >= deadline
                if (
                    attempt == attempts
                    or passed
                    or type(error) not in (redis.ConnectionError, redis.TimeoutError)
                ):
                    raise
                asked = self.ask(asked.commands, asked.count, deadline)
                continue
            self._kept.append(asked.connection)
            return found
        raise AssertionError("the second attempt returns or raises")

    def drop(self, asked: Asked) -> None:
        """Give up commands that were sent: their connection has answers that nobody reads."""
        if asked.connection is not None:
            self._drop(asked.connection)

    def give_back(self) -> None:
        """Give all connections back to the pool."""
        while self._kept:
            self.pool.release(self._kept.pop())

    def _take(self, deadline: float | None) -> Connection:
        """Take a kept connection, or a new one."""
        pool = self.pool
        primary = pool.sentinel_manager.known if isinstance(pool, SentinelConnectionPool) else None
        while self._kept:
            try:
                connection = self._kept.pop()
            except IndexError:
                break
            if primary is None or (connection.host, connection.port) == primary:
                return connection
            self._drop(connection)
        if deadline is None:
            return pool.get_connection()
        with pool._lock:
            idle = pool._available_connections
            connection = cast(Connection, idle.pop() if idle else pool.make_connection())
            pool._in_use_connections.add(connection)
        try:
            if isinstance(connection, SentinelManagedConnection):
                connection.host, connection.port = pool.get_master_address()  # type: ignore[attr-defined]
            _connect(connection, deadline)
        except BaseException:
            self._drop(connection)
            raise
        return connection

    def _drop(self, connection: Connection) -> None:
        connection.disconnect()  # type: ignore[no-untyped-call]
        self.pool.release(connection)


def _connect(connection: Connection, deadline: float) -> None:
    """Connect once; each step takes at most what is left."""
    usual = connection.socket_timeout, connection.socket_connect_timeout
    # An idle connection of the pool may be broken.
    connection.disconnect()  # type: ignore[no-untyped-call]
    try:
        connection.socket_timeout = _left(deadline, usual[0])
        connection.socket_connect_timeout = _left(deadline, usual[1])
        connection.connect_check_health(check_health=False, retry_socket_connect=False)
    finally:
        connection.socket_timeout, connection.socket_connect_timeout = usual


def _send(connection: Connection, commands: bytes, deadline: float | None) -> None:
    try:
        _limit(connection, deadline)
        connection.send_packed_command([commands])  # type: ignore[no-untyped-call]
    except OSError as error:
        raise redis.ConnectionError(f"the connection broke: {error}") from error


def _answer(connection: Connection, deadline: float | None) -> Any:
    """Next answer; an error of Redis is returned, not raised."""
    parser = connection._parser
    try:
        reader = parser._reader
        if reader is None:
            raise redis.ConnectionError("another thread closed the client")
        while (answer := reader.gets()) is NOT_ENOUGH_DATA:
            _limit(connection, deadline)
            parser.read_from_socket()
    except OSError as error:
        raise redis.ConnectionError(f"the connection broke: {error}") from error
    if isinstance(answer, redis.ConnectionError):  # LOADING, say: redis-py has one class for both
        raise answer
    return answer


def read_together(
    asked: Sequence[tuple[KeptConnections, bytes, int]], deadline: float | None
) -> list[list[Any]]:
    """Ask several servers, then wait for all of them: a single round trip.

    Args:
        asked: connections of a server, its packed commands, their number.
        deadline: as of `KeptConnections.read`.

    Returns:
        Answers of each server, as `KeptConnections.answers`.
    """
    sent: list[Asked] = []
    read = 0
    try:
        for kept, commands, count in asked:
            sent.append(kept.ask(commands, count, deadline))
        found = []
        for (kept, _, _), one in zip(asked, sent, strict=True):
            read += 1
            found.append(kept.answers(one, deadline))
        return found
    finally:
        for (kept, _, _), one in zip(asked[read:], sent[read:], strict=False):
            kept.drop(one)


def _usual_timeout(connection: Connection) -> None:
    try:
        if connection._sock is not None and connection._sock.gettimeout() != connection.socket_timeout:
            connection._sock.settimeout(connection.socket_timeout)
    except OSError as error:
        raise redis.ConnectionError(f"the connection broke: {error}") from error


def _limit(connection: Connection, deadline: float | None) -> None:
    """Set the time-out of the next step, where it is not the usual one: that is a system call."""
    if deadline is None or connection._sock is None:
        return
    left_s = _left(deadline, connection.socket_timeout)
    if left_s != connection.socket_timeout:
        connection._sock.settimeout(left_s)


def _left(deadline: float | None, usual_s: float | None) -> float | None:
    """Time-out of a step in seconds: the usual one, at most what is left. Raises redis.TimeoutError."""
    if deadline is None:
        return usual_s
    left_s = deadline - time.monotonic()
    if left_s <= 0:
        raise redis.TimeoutError("Redis did not answer in what was left of the request's deadline")
    return left_s if usual_s is None else min(left_s, usual_s)
