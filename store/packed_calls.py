"""Script calls as bytes on the wire (RESP): rows of byte matrices become keys and arguments at once.

redis-py packs a call argument by argument, which takes longer than Redis takes to write the rows. Here NumPy
frames all rows of a matrix at once. Some calls are under way on each server, so that it works while the next
are packed.
"""

from __future__ import annotations

import hashlib
from collections import deque
from collections.abc import Callable, Iterable, Iterator, Sequence
from dataclasses import dataclass, field
from functools import cache

import numpy as np
import numpy.typing as npt
from redis.connection import ConnectionPool

from livectr.store.kept_connections import Asked, KeptConnections
from livectr.store.keyspace import cut

U8 = npt.NDArray[np.uint8]
UNDER_WAY = 4
"""Calls that a server may have before the first is answered."""


@dataclass(frozen=True)
class ScriptCall:
    """Call of a Lua script, whose keys have one hash tag."""

    source: str
    keys: Sequence[str | bytes]
    args: Sequence[object]


@dataclass(frozen=True)
class PackedCall:
    """Call of a Lua script with a key and an argument for each row.

    Attributes:
        source: of the script.
        key: first key.
        head: first arguments.
        names: further keys, framed: u8[n, …] (`framed`).
        values: further arguments, framed: u8[n, …].
    """

    source: str
    key: str
    head: Sequence[bytes | int]
    names: U8
    values: U8

    @property
    def command(self) -> bytes:
        """EVALSHA in RESP."""
        count = 1 + len(self.names)
        words = [b"EVALSHA", sha(self.source), b"%d" % count, self.key.encode()]
        head = b"".join(bulk(word) for word in words)
        args = b"".join(bulk(b"%d" % one if isinstance(one, int) else one) for one in self.head)
        size = b"*%d\r\n" % (3 + count + len(self.head) + len(self.values))
        return b"".join((size, head, self.names.data, args, self.values.data))

    def plain(self) -> ScriptCall:
        """The call for clients that pack it themselves."""
        return ScriptCall(
            self.source, [self.key, *unframed(self.names)], [*self.head, *unframed(self.values)]
        )


def bulk(word: bytes) -> bytes:
    """Bulk string of RESP."""
    return b"$%d\r\n%b\r\n" % (len(word), word)


def framed(matrix: U8, head: bytes = b"") -> U8:
    """Each row of u8[n, w], behind a head that all have in common, as a bulk string of RESP."""
    n, width = matrix.shape
    start = np.frombuffer(b"$%d\r\n%b" % (len(head) + width, head), np.uint8)
    out = np.empty((n, len(start) + width + 2), np.uint8)
    out[:, : len(start)] = start
    out[:, len(start) : -2] = matrix
    out[:, -2:] = np.frombuffer(b"\r\n", np.uint8)
    return out


def unframed(rows: U8) -> list[bytes]:
    """Rows of `framed` as bytes."""
    if not len(rows):
        return []
    start = rows[0].tobytes().index(b"\n") + 1
    return cut(np.ascontiguousarray(rows[:, start:-2]))


@cache
def sha(source: str) -> bytes:
    """Name of a script in EVALSHA."""
    return hashlib.sha1(source.encode()).hexdigest().encode()


def answers_of(
    calls: Iterable[PackedCall], server: Callable[[PackedCall], ConnectionPool]
) -> Iterator[tuple[PackedCall, object]]:
    """Send calls and iterate over (call, answer), in the order of each server.

    An error of Redis is an answer. No call is sent again: if a connection breaks, the outcome is unknown, and
    an error of REDIS_ERRORS is raised.

    Args:
        calls: they are sent in this order, some at once.
        server: connections to the server of a call.
    """
    waiting: dict[int, _Server] = {}
    try:
        for call in calls:
            pool = server(call)
            at = waiting.setdefault(id(pool), _Server(KeptConnections(pool)))
            if len(at.sent) >= UNDER_WAY:
                yield at.oldest()
            at.sent.append((call, at.connections.ask(call.command, 1, None)))
        for at in waiting.values():
            while at.sent:
                yield at.oldest()
    finally:
        for at in waiting.values():
            for _, asked in at.sent:
                at.connections.drop(asked)
            at.connections.give_back()


@dataclass(frozen=True)
class _Server:
    """Calls under way on a server."""

    connections: KeptConnections
    sent: deque[tuple[PackedCall, Asked]] = field(default_factory=deque)

    def oldest(self) -> tuple[PackedCall, object]:
        """Wait for the answer to the oldest call."""
        call, asked = self.sent.popleft()
        return call, self.connections.answers(asked, None, attempts=1)[0]
