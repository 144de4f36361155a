"""`livectr down`: end what `livectr up` runs."""

import argparse
from typing import Any

from livectr.commands.flags import command

EXAMPLES = """\
  livectr down
  livectr down my_ads/pipeline.py"""


def add(commands: Any) -> None:
    """Add the command."""
    parser = command(commands, "down", run, "end what `livectr up` runs, in order", EXAMPLES)
    parser.add_argument(
        "run_of", nargs="?", metavar="DIR|FILE.py", help="folder of the run, or its pipeline [the only run]"
    )


def run(given: argparse.Namespace) -> int:
    """End a run."""
    from livectr.up.end import down
    from livectr.up.runs import chosen_folder

    down(chosen_folder(given.run_of))
    return 0
