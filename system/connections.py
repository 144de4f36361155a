"""Connections to servers that may not listen yet."""

from __future__ import annotations

import errno
import os
import socket
import struct

_AT_ONCE = struct.pack("ii", 1, 0)  # SO_LINGER: close with a reset, so that the port is free again


def connected(host: str, port: int, timeout_s: float) -> socket.socket:
    """Connection to a server.

    The kernel may give the very port that is asked for to an outgoing connection, if nobody listens there and
    the port is in its range for those. Then the connection is to itself: it answers, and the server that is
    about to start finds its port taken. Such a connection is closed at once.

    Raises:
        OSError: nobody listens, or nobody answers in time.
    """
    link = socket.create_connection((host, port), timeout=timeout_s)
    if link.getsockname() == link.getpeername():
        link.setsockopt(socket.SOL_SOCKET, socket.SO_LINGER, _AT_ONCE)
        link.close()
        raise ConnectionRefusedError(errno.ECONNREFUSED, os.strerror(errno.ECONNREFUSED))
    return link
