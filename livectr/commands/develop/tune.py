"""`livectr experiment tune`: variants of a model side by side."""

import argparse
from typing import Any

from livectr.commands.flags import command
from livectr.commands.settings import add_log_flags
from livectr.system.heap import loading

EXAMPLES = """\
  livectr experiment tune --pipeline p.py --source file:logs --grid dense_lr=1e-3,3e-3
  livectr experiment tune --pipeline p.py --source file:logs --grid dim=8,16 --grid "hidden=(64,32),(256,128)"
  livectr experiment tune --pipeline p.py --source kafka://… --grid optimiser.lr=.02,.05"""


def add(commands: Any) -> None:
    """Add the command."""
    parser = command(
        commands,
        "tune",
        run,
        "learn variants of the rank model from one log, each example once, and compare them",
        EXAMPLES,
    )
    parser.add_argument("--pipeline", metavar="FILE.py", required=True, help="the pipeline file")
    parser.add_argument(
        "--source", metavar="URL", required=True, help="the logs: file:DIR or kafka://HOST:PORT"
    )
    parser.add_argument(
        "--grid",
        action="append",
        required=True,
        metavar="NAME=VALUE,…",
        help="a setting of the model and its values; several make all combinations",
    )
    parser.add_argument("--json", action="store_true", help="print JSON in place of a table")
    add_log_flags(parser, "tune")


def run(given: argparse.Namespace) -> int:
    """Learn and compare."""
    with loading(lean=given.alone):
        from livectr.analysis.tune import tune

    return tune(given.pipeline, given.source, given.grid, as_json=given.json)
