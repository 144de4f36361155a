"""Wait of a command for its broker."""

from __future__ import annotations

import time
from typing import Any

from livectr.commands.flags import wait_s
from livectr.system.errors import ConnectError


def add_wait(parser: Any) -> None:
    """Add the flag of `wait_for_broker`."""
    parser.add_argument(
        "--start-wait-s",
        type=wait_s,
        default=0.0,
        metavar="DURATION",
        help="wait for a broker that does not answer yet [0]",
    )


def wait_for_broker(url: str, seconds: float) -> None:
    """Return when a broker answers, or after `seconds`: then the first connection says what is wrong."""
    if not seconds or not url.startswith("kafka://"):
        return
    from livectr.ingest.addresses import connect_admin

    end = time.monotonic() + seconds
    while time.monotonic() < end:
        try:
            with connect_admin(url):
                return
        except ConnectError:
            time.sleep(0.5)
