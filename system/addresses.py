"""Addresses of this machine alone."""

from __future__ import annotations

import ipaddress


def is_loopback(address: str) -> bool:
    """Tell whether only processes of this machine can read what goes to HOST:PORT or a Unix socket."""
    if address.startswith(("unix:", "unix-abstract:")):
        return True
    host = address.rpartition(":")[0].rpartition("/")[2].strip("[]")
    try:
        return ipaddress.ip_address(host).is_loopback
    except ValueError:
        return host == "localhost"
