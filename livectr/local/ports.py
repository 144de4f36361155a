"""Free TCP ports for servers that are about to start, and a probe for a server that has started.

An outgoing connection may use a port that the kernel hands out (bind to 0) before the server binds it, which
takes seconds. So ports are drawn from below the kernel's range for outgoing connections.
"""

import contextlib
import fcntl
import os
import random
import socket
import tempfile
from pathlib import Path
from typing import IO

LOWEST = 10_000
NAMED = 24_000
"""Ports from here on are left to those who name one, as the commands of the documentation do."""
_CLAIMS: dict[int, IO[bytes]] = {}
_RANGE = Path("/proc/sys/net/ipv4/ip_local_port_range")


def free_ports(n: int, host: str = "127.0.0.1") -> int:
    """The first of `n` consecutive TCP ports of `host` that nobody listens on."""
    draw, below = random.SystemRandom(), _below(n)
    while True:
        first = draw.randrange(LOWEST, below - n)
        with contextlib.ExitStack() as held:
            if all(_bind(held, host, first + i) for i in range(n)):
                return first


def is_free(host: str, port: int) -> bool:
    """Tell if a server could listen at a port; connections of an earlier server that linger do not count."""
    with contextlib.ExitStack() as held:
        return _bind(held, host, port, reuse=True)


def claim(port: int) -> bool:
    """Claim a port of this machine for as long as this process lives: its server starts later.

    Two processes that look for ports at once find the same ones free. Claims are of those that ask for them.

    Returns:
        False: another process has claimed it.
    """
    folder = Path(tempfile.gettempdir()) / f"livectr-ports-{os.getuid()}"
    folder.mkdir(mode=0o700, exist_ok=True)
    if port not in _CLAIMS:
        file = (folder / str(port)).open("ab")
        try:
            fcntl.flock(file, fcntl.LOCK_EX | fcntl.LOCK_NB)
        except BlockingIOError:
            file.close()
            return False
        _CLAIMS[port] = file
    return True


def listens(host: str, port: int, timeout_s: float = 1.0) -> bool:
    """True if somebody accepts connections at a port.

    A connection to a port in the kernel's range for outgoing connections may get that very port as its own.
    Then it is connected to itself, and takes the port of the server that is about to start. So the probe
    comes from a port below that range, and never from the one that it asks.
    """
    try:
        family, kind, protocol, _, address = socket.getaddrinfo(host, port, type=socket.SOCK_STREAM)[0]
        with socket.socket(family, kind, protocol) as probe:
            probe.settimeout(timeout_s)
            probe.setsockopt(socket.SOL_SOCKET, socket.SO_REUSEADDR, 1)
            probe.bind(("", _other_than(port)))
            probe.connect(address)
    except OSError:  # nobody listens; or the own port is taken, and the next probe has another
        return False
    return True


def _other_than(port: int) -> int:
    """Port below the kernel's range for outgoing connections, but not this one."""
    draw = random.SystemRandom()
    while (own := draw.randrange(LOWEST, _below(1))) == port:
        pass
    return own


def _below(n: int) -> int:
    """Port below which n ports are drawn."""
    ephemeral = int(_RANGE.read_text().split()[0]) if _RANGE.exists() else 32_768
    return min(ephemeral, NAMED) if ephemeral > LOWEST + 10 * n else 65_536


def _bind(held: contextlib.ExitStack, host: str, port: int, *, reuse: bool = False) -> bool:
    one = held.enter_context(socket.socket(socket.AF_INET6 if ":" in host else socket.AF_INET))
    if reuse:
        one.setsockopt(socket.SOL_SOCKET, socket.SO_REUSEADDR, 1)
    try:
        one.bind((host, port))
    except OSError:
        return False
    return True
