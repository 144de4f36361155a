"""`livectr experiment compare`: difference of two runs, and its significance."""

import argparse
from pathlib import Path
from typing import Any

from livectr.commands.flags import command

EXAMPLES = """\
  livectr train … --report a.json --set predictions=a.log
  livectr train … --report b.json --set predictions=b.log
  livectr experiment compare a.json b.json --predictions a.log b.log"""


def add(commands: Any) -> None:
    """Add the command."""
    parser = command(
        commands,
        "compare",
        run,
        "compare the quality of two training runs, and say whether they differ by chance",
        EXAMPLES,
    )
    parser.add_argument("reports", nargs=2, metavar="REPORT.json", help="reports of livectr train --report")
    parser.add_argument(
        "--predictions",
        nargs=2,
        metavar="FILE",
        help="logs of predictions of livectr train: compare example by example, with standard errors",
    )
    parser.add_argument("--json", action="store_true", help="print JSON in place of a table")


def run(given: argparse.Namespace) -> int:
    """Print the comparison."""
    from livectr.analysis.compare import compare

    predictions = [Path(file) for file in given.predictions] if given.predictions else None
    return compare([Path(file) for file in given.reports], predictions, as_json=given.json)
