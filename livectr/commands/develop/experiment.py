"""`livectr experiment tune|ablate|compare`: variants of a model, and whether they differ."""

from typing import Any

from livectr.commands.develop import ablate, compare, tune
from livectr.commands.flags import group


def add(commands: Any) -> None:
    """Add the commands."""
    actions = group(
        commands, "experiment", "train variants of a model, and compare runs", "tune|ablate|compare"
    )
    tune.add(actions)
    ablate.add(actions)
    compare.add(actions)
