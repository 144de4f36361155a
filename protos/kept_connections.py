"""Connections to Redis that a client keeps for its reads, with the deadline of the caller.

redis-py's time-outs are those of a step: of each connect, and of each `recv`. Here a caller's deadline bounds
all of a read: the connect, every `recv`, and the repetition on another connection.
"""

from __future__ import annotations

import time
from collections import deque
from typing import Any, cast

import redis
from redis._parsers.hiredis import NOT_ENOUGH_DATA
from redis.connection import Connection, ConnectionPool


class KeptConnections:
    """Connections out of a pool that are not given back after a read. Thread-safe.

    A pool examines a connection whenever it hands it out, which costs more than a round trip. Here a
    connection that Redis has closed is found by the read itself, which is then repeated once.
    """

    def __init__(self, pool: ConnectionPool) -> None:
        self._pool = pool
        self._kept: deque[Connection] = deque()

    def read(self, command: bytes, deadline: float | None = None) -> Any:
        """Send a packed command and return the answer.

        Args:
            deadline: instant of time.monotonic() after which the read does not go on; None: each step has the
                pool's own time-out.

        Raises an error of REDIS_ERRORS: redis.TimeoutError when the deadline passes.
        """
        for attempt in (1, 2):
            connection = self._take(deadline)
            try:
                answer = _answer(connection, command, deadline)
            except BaseException as error:
                self._drop(connection)
                passed = deadline is not None and time.monotonic() >= deadline
                if attempt == 2 or passed or type(error) not in (redis.ConnectionError, redis.TimeoutError):
                    raise
                continue
            self._kept.append(connection)
            if isinstance(answer, redis.ResponseError):  # the connection is as good as before
                raise answer
            return answer
        raise AssertionError("the second attempt returns or raises")

    def _take(self, deadline: float | None) -> Connection:
        """Take a kept connection, or a new one."""
        try:
            return self._kept.pop()
        except IndexError:
            pass
        if deadline is None:
            return self._pool.get_connection()
        with self._pool._lock:
            idle = self._pool._available_connections
            connection = cast(Connection, idle.pop() if idle else self._pool.make_connection())
            self._pool._in_use_connections.add(connection)
        try:
            _connect(connection, deadline)
        except BaseException:
            self._drop(connection)
            raise
        return connection

    def _drop(self, connection: Connection) -> None:
        connection.disconnect()  # type: ignore[no-untyped-call]
        self._pool.release(connection)


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


def _answer(connection: Connection, command: bytes, deadline: float | None) -> Any:
    """Answer to a command; an error of Redis is returned, not raised."""
    parser = connection._parser
    try:
        _limit(connection, deadline)
        connection.send_packed_command([command])  # type: ignore[no-untyped-call]
        reader = parser._reader
        if reader is None:
            raise redis.ConnectionError("another thread closed the client")
        while (answer := reader.gets()) is NOT_ENOUGH_DATA:
            _limit(connection, deadline)
            parser.read_from_socket()
        if connection._sock is not None and connection._sock.gettimeout() != connection.socket_timeout:
            connection._sock.settimeout(connection.socket_timeout)
    except OSError as error:
        raise redis.ConnectionError(f"the connection broke: {error}") from error
    if isinstance(answer, redis.ConnectionError):  # LOADING, say: redis-py has one class for both
        raise answer
    return answer


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
