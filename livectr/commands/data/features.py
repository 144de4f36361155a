"""`livectr features materialize|encode|show|compile`: what can be made before training and serving."""

from typing import Any

from livectr.commands.data import compile, encode, materialize
from livectr.commands.flags import group


def add(commands: Any) -> None:
    """Add the commands."""
    actions = group(
        commands,
        "features",
        "compute features, or compile what computes them, before training and serving",
        "materialize|encode|show|compile",
    )
    materialize.add(actions)
    encode.add(actions)
    compile.add(actions)
