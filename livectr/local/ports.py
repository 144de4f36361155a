"""Free TCP ports for servers that are about to start.

An outgoing connection may use a port that the kernel hands out (bind to 0) before the server binds it, which
takes seconds. So ports are drawn from below the kernel's range for outgoing connections.
"""

import contextlib
import random
import socket
from pathlib import Path

LOWEST = 10_000
_RANGE = Path("/proc/sys/net/ipv4/ip_local_port_range")


def free_ports(n: int, host: str = "127.0.0.1") -> int:
    """The first of `n` consecutive TCP ports of `host` that nobody listens on."""
    ephemeral = int(_RANGE.read_text().split()[0]) if _RANGE.exists() else 32_768
    below = ephemeral if ephemeral > LOWEST + 10 * n else 65_536
    draw = random.SystemRandom()
    while True:
        first = draw.randrange(LOWEST, below - n)
        with contextlib.ExitStack() as held:
            if all(_bind(held, host, first + i) for i in range(n)):
                return first


def _bind(held: contextlib.ExitStack, host: str, port: int) -> bool:
    one = held.enter_context(socket.socket(socket.AF_INET6 if ":" in host else socket.AF_INET))
    try:
        one.bind((host, port))
    except OSError:
        return False
    return True
