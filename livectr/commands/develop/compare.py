"""`livectr experiment compare`: difference of two runs, and its significance; the runs may go on."""

import argparse
from pathlib import Path
from typing import Any

from livectr.commands.flags import command, count, duration_s
from livectr.system.errors import ConfigError

EVERY_S = 5.0
EXAMPLES = """\
  livectr experiment compare /data/old-checkpoint /data/new-checkpoint --watch
  livectr experiment compare OLD NEW --watch --rule 'examples >= 50000 and auc > 0'    # exit code 0 or 1
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
    parser.add_argument(
        "runs",
        nargs="*",
        metavar="RUN",
        help="two checkpoint folders or prediction logs, whose trainers may be running, or two reports of "
        "livectr train --report",
    )
    parser.add_argument(
        "--predictions",
        nargs=2,
        metavar="FILE",
        help="logs of predictions of livectr train: compare example by example, with standard errors",
    )
    parser.add_argument(
        "--watch",
        type=duration_s,
        nargs="?",
        const=EVERY_S,
        metavar="SECONDS",
        help=f"follow the runs: compare again when both have learned more, looked at so often [{EVERY_S:g}]",
    )
    parser.add_argument(
        "--rule",
        metavar="RULE",
        help="say if the second run may take the first one's place, by a rule of livectr rollout --promote; "
        "exit code 0: yes, 1: no; with --watch, wait for its answer",
    )
    parser.add_argument(
        "--most",
        type=count,
        default=0,
        metavar="N",
        help="examples after which a rule says no [10 times its]",
    )
    parser.add_argument("--json", action="store_true", help="print JSON in place of a table")


def run(given: argparse.Namespace) -> int:
    """Print the comparison."""
    from livectr.analysis.compare import compare, log_of

    predictions = [Path(file) for file in given.predictions] if given.predictions else None
    if len(given.runs) not in ((0, 2) if predictions else (2,)):
        raise ConfigError(
            "name two runs: checkpoint folders or prediction logs of livectr train, or a REPORT.json of each."
        )
    runs = [Path(run) for run in given.runs]
    if given.rule is not None:
        from livectr.rollout.comparison import judge_runs
        from livectr.rollout.rule import Rule

        rule = Rule.parse(given.rule, given.most)
        logs = predictions or [log for log in map(log_of, runs) if log is not None]
        if len(logs) != 2 or given.json:
            raise ConfigError(
                "--rule is about two checkpoint folders or prediction logs, and prints no JSON."
            )
        old, new = logs
        return judge_runs(old, new, rule, lambda line: print(line, flush=True), every_s=given.watch)
    return compare(runs, predictions, as_json=given.json, every_s=given.watch)
