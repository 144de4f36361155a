"""`livectr evaluate`: quality of a run, of a checkpoint on a log, or of what was served.

A run's quality is measured from its log of predictions.
"""

import argparse
from dataclasses import replace
from pathlib import Path
from typing import Any

from livectr.commands.flags import command, count, duration_s, positive
from livectr.system.errors import ConfigError
from livectr.system.heap import loading
from livectr.system.logs import log_to_stderr

MEASURES = ("gauc", "auc", "cold_gauc", "cold_auc", "logloss", "calibration")
EXAMPLES = """\
  livectr train … --set predictions=predictions
  livectr evaluate predictions
  livectr evaluate predictions --plot gauc.svg --bars gauc-bars.png
  livectr evaluate images.log ids.log --period 1h --plot cold.png --measure cold_gauc
  livectr evaluate --pipeline p.py --checkpoint c --source file:tomorrow --from-start --to scored
  livectr evaluate --pipeline p.py --checkpoint c --source kafka://… --to scored --part 0/4
  livectr evaluate --served kafka://…/served --pipeline p.py --source kafka://…
  livectr evaluate --served file:served --pipeline p.py --source file:logs --off-policy 127.0.0.1:50051"""
SCORING = ("pipeline", "checkpoint", "source", "to")


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
        nargs="*",
        metavar="PREDICTIONS",
        help="logs of predictions of livectr train (with --checkpoint DIR: DIR/predictions); several are "
        "shown one after the other, and in one plot",
    )
    _add_scoring(parser)
    _add_served(parser)
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


def _add_scoring(parser: Any) -> None:
    """Add the flags that score a log by a checkpoint first."""
    scoring = parser.add_argument_group("score a log by a checkpoint, in place of PREDICTIONS")
    scoring.add_argument("--pipeline", metavar="FILE.py", help="the pipeline file")
    scoring.add_argument("--checkpoint", metavar="DIR", help="the model, which learns nothing here")
    scoring.add_argument("--source", metavar="URL", help="the logs: file:DIR or kafka://HOST:PORT")
    scoring.add_argument("--to", metavar="DIR", help="a folder for the predictions")
    scoring.add_argument(
        "--from-start",
        action="store_true",
        help="score all examples of the log [those that the checkpoint has not learned]",
    )
    scoring.add_argument(
        "--part",
        default="0/1",
        metavar="I/N",
        help="score the partitions p with p mod N = I; the last part measures all [0/1]",
    )


def _add_served(parser: Any) -> None:
    """Add the flags that join a served log with clicks."""
    served = parser.add_argument_group("measure what was served: with --pipeline and --source")
    served.add_argument(
        "--served",
        metavar="URL",
        help="served_log of a server: kafka://HOST:PORT/TOPIC or file:DIR. Prints AUC and "
        "calibration of the served versions, by side where there is a canary, and the skew of each feature "
        "against the trainer's",
    )
    served.add_argument(
        "--request-column",
        metavar="COLUMN",
        help="impression column that holds the request_id of the rank request [the first column of the label "
        "join]",
    )
    served.add_argument(
        "--item-column",
        metavar="COLUMN",
        help="impression column that tells the candidates of a request apart [that of the items table]",
    )

    served.add_argument(
        "--off-policy",
        metavar="HOST:PORT[@SIDE]",
        help="estimate what this server's order would have got, from a log of a server with `explore` (IPS, "
        "SNIPS, DR)",
    )
    served.add_argument(
        "--places",
        type=count,
        metavar="K",
        help="first places of an answer that count, with --off-policy [1]",
    )
    served.add_argument(
        "--clip", type=positive, metavar="W", help="largest weight, with --off-policy [all count as they are]"
    )


def run(given: argparse.Namespace) -> int:
    """Score a log if asked for; print the measures, and draw them."""
    if given.served is not None:
        return _served(given)
    for name in ("request_column", "item_column", "off_policy", "places", "clip"):
        if getattr(given, name) is not None:
            raise ConfigError(f"--{name.replace('_', '-')} goes with --served, which is not given")
    missing = [f"--{name}" for name in SCORING if getattr(given, name) is None]
    scores = len(missing) < len(SCORING) or given.from_start or given.part != "0/1"
    if bool(given.files) == scores:
        raise ConfigError("give either PREDICTIONS, or a checkpoint to score a log: see --help")
    if scores and missing:
        raise ConfigError(f"to score a log by a checkpoint, give {', '.join(missing)}, too")
    with loading(lean=given.alone):
        from livectr.analysis.evaluate import EvaluateOptions, check_plots, evaluate

    options = EvaluateOptions(
        files=[Path(file) for file in given.files],
        as_json=given.json,
        plot=Path(given.plot) if given.plot else None,
        bars=Path(given.bars) if given.bars else None,
        measure=given.measure,
        period_s=given.period,
        window_s=given.window,
    )
    check_plots(options)
    if scores:
        predictions = _score(given)
        if predictions is None:
            return 0
        options = replace(options, files=[predictions])
    return evaluate(options)


def _served(given: argparse.Namespace) -> int:
    """Measure a served log."""
    missing = [f"--{name}" for name in ("pipeline", "source") if getattr(given, name) is None]
    if missing:
        raise ConfigError(f"to measure what was served, give {' and '.join(missing)}, too")
    alone = {"PREDICTIONS": given.files, "--checkpoint": given.checkpoint, "--to": given.to}
    alone |= {"--from-start": given.from_start, "--plot": given.plot, "--bars": given.bars}
    alone |= {"--period": given.period, "--window": given.window}
    if wrong := [name for name, value in alone.items() if value]:
        raise ConfigError(f"--served does not go with {', '.join(wrong)}: give the one or the other")
    for name in ("places", "clip"):
        if getattr(given, name) is not None and given.off_policy is None:
            raise ConfigError(f"--{name} goes with --off-policy, which is not given")
    with loading(lean=given.alone):
        from livectr.analysis.served.evaluate import ServedOptions, evaluate_served
        from livectr.analysis.served.off_policy import OffPolicyOptions, evaluate_off_policy

    log_to_stderr("text")
    options = ServedOptions(
        served=given.served,
        pipeline=given.pipeline,
        source=given.source,
        request_column=given.request_column,
        item_column=given.item_column,
        as_json=given.json,
    )
    if given.off_policy is None:
        return evaluate_served(options)
    return evaluate_off_policy(OffPolicyOptions(options, given.off_policy, given.places or 1, given.clip))


def _score(given: argparse.Namespace) -> Path | None:
    """Prediction log of a checkpoint; None while parts are missing."""
    with loading(lean=given.alone):
        from livectr.analysis.score_log import Scoring, score_log
        from livectr.ingest.materialized.parts import Part

    log_to_stderr("text")
    return score_log(
        Scoring(
            pipeline=given.pipeline,
            checkpoint=Path(given.checkpoint),
            source=given.source,
            target=Path(given.to),
            from_start=given.from_start,
            part=Part.parse(given.part),
        )
    )
