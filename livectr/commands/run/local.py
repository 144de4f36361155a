"""`livectr local kafka|redis`: stand-ins on this machine for the servers that LiveCTR needs."""

from typing import Any

from livectr.commands.flags import group
from livectr.commands.run import kafka, redis


def add(commands: Any) -> None:
    """Add the commands."""
    actions = group(commands, "local", "run a Kafka broker or a Redis-protocol server here", "kafka|redis")
    kafka.add(actions)
    redis.add(actions)
