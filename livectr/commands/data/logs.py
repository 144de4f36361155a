"""`livectr logs simulate|replay`: write event streams."""

from typing import Any

from livectr.commands.data import replay, simulate
from livectr.commands.flags import group


def add(commands: Any) -> None:
    """Add the commands."""
    actions = group(
        commands, "logs", "write event streams: a simulated market, or a log file", "simulate|replay"
    )
    simulate.add(actions)
    replay.add(actions)
