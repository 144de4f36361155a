"""`livectr local redis`: a Redis-protocol server on this machine."""

import argparse
from typing import Any

from livectr.commands.flags import command
from livectr.commands.settings import add_log_flags


def add(commands: Any) -> None:
    """Add the command."""
    parser = command(
        commands,
        "redis",
        run,
        "run a Redis-protocol server on this machine (pip install 'livectr[local]')",
        "  livectr local redis --listen 127.0.0.1:6379",
    )
    parser.add_argument("--listen", default="127.0.0.1:6379", metavar="HOST:PORT", help="[127.0.0.1:6379]")
    add_log_flags(parser, "redis")


def run(given: argparse.Namespace) -> int:
    """Run a server until SIGTERM or Ctrl-C; its data is lost then."""
    from livectr.local.parts import until_terminated
    from livectr.local.valkey import LocalRedis

    with LocalRedis(given.listen) as server:
        print(f"Redis answers at {server.url}; Ctrl-C stops it.", flush=True)
        until_terminated(lambda: server.running, "Redis server")
    return 0
