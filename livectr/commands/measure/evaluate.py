"""`livectr evaluate`: quality of a run, from its log of predictions."""

import argparse
from pathlib import Path
from typing import Any

from livectr.commands.flags import command, duration_s
from livectr.kernels.process.heap import loading

MEASURES = ("gauc", "auc", "cold_gauc", "cold_auc", "logloss", "calibration")
EXAMPLES = """\
  livectr train … --predictions run.log
  livectr evaluate run.log
  livectr evaluate run.log --plot gauc.svg --bars gauc-bars.png
  livectr evaluate images.log ids.log --period 1h --plot cold.png --measure cold_gauc"""


def add(commands: Any) -> None:
    """Add the command."""
    parser = command(
        commands,
        "evaluate",
        run,
        "measure AUC, GAUC, cold GAUC and more of a run's models, over the log and over event time",
        EXAMPLES,
    )
    parser.add_argument(
        "files",
        nargs="+",
        metavar="PREDICTIONS",
        help="logs of livectr train --predictions (with --checkpoint DIR: DIR/predictions); several are "
        "shown one after the other, and in one plot",
    )
    parser.add_argument("--json", action="store_true", help="print JSON in place of tables")
    parser.add_argument(
        "--plot", metavar="FILE.svg|.png", help="draw the measure of every model over event time"
    )
    parser.add_argument("--bars", metavar="FILE.svg|.png", help="draw the measure of every model as bars")
    parser.add_argument(
        "--measure",
        choices=MEASURES,
        default="gauc",
        help="measure to draw [gauc]",
        metavar="|".join(MEASURES),
    )
    parser.add_argument(
        "--period",
        type=duration_s,
        metavar="DURATION",
        help="event time of a row of the table [a round time, at most 8 rows]",
    )
    parser.add_argument(
        "--window",
        type=duration_s,
        metavar="DURATION",
        help="event time before each point of --plot [a tenth of the log]",
    )


def run(given: argparse.Namespace) -> int:
    """Print the measures, and draw them."""
    with loading():
        from livectr.analysis.evaluate import EvaluateOptions, evaluate

    options = EvaluateOptions(
        files=[Path(file) for file in given.files],
        as_json=given.json,
        plot=Path(given.plot) if given.plot else None,
        bars=Path(given.bars) if given.bars else None,
        measure=given.measure,
        period_s=given.period,
        window_s=given.window,
    )
    return evaluate(options)
