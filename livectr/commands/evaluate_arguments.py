"""The flags of `livectr evaluate`."""

from typing import Any

from livectr.commands.flags import command, duration_s

MEASURES = ("gauc", "auc", "cold_gauc", "cold_auc", "logloss", "calibration")


def add_evaluate(commands: Any) -> None:
    """Add the command."""
    parser = command(
        commands,
        "evaluate",
        "evaluate",
        "how good the models of a run were: AUC, GAUC, cold GAUC and more, over the log and over event time",
        "  livectr train … --predictions run.log\n"
        "  livectr evaluate run.log\n"
        "  livectr evaluate run.log --plot gauc.svg --bars gauc-bars.png\n"
        "  livectr evaluate images.log ids.log --period 1h --plot cold.png --measure cold_gauc",
    )
    parser.add_argument(
        "files",
        nargs="+",
        metavar="PREDICTIONS",
        help="of livectr train --predictions (with --checkpoint DIR: DIR/predictions); several are shown one"
        " after the other, and in one plot",
    )
    parser.add_argument("--json", action="store_true", help="print JSON in place of tables")
    parser.add_argument(
        "--plot", metavar="FILE.svg|.png", help="draw the measure of every model over event time"
    )
    parser.add_argument("--bars", metavar="FILE.svg|.png", help="draw the measure of every model as bars")
    parser.add_argument(
        "--measure", choices=MEASURES, default="gauc", help="what is drawn [gauc]", metavar="|".join(MEASURES)
    )
    parser.add_argument(
        "--period",
        type=duration_s,
        metavar="DURATION",
        help="of event time, a row of the table each [at most 8 round ones]",
    )
    parser.add_argument(
        "--window",
        type=duration_s,
        metavar="DURATION",
        help="of event time, before each point of --plot [a tenth of the log]",
    )
