"""`livectr report`: page of a training run, from its run log."""

import argparse
from pathlib import Path
from typing import Any

from livectr.commands.flags import command, count
from livectr.system.disk import writing
from livectr.system.errors import ConfigError
from livectr.system.heap import loading

EXAMPLES = """\
  livectr train … --set run_log=run.log
  livectr report run.log --html run.html
  livectr report run.log --html run.html --pipeline p.py --checkpoint c --source file:tomorrow --from-start
  livectr train … --live      # the same page at http://127.0.0.1:8350/ while it runs"""
MODEL = ("pipeline", "checkpoint", "source")


def add(commands: Any) -> None:
    """Add the command."""
    parser = command(
        commands,
        "report",
        run,
        "write a page on a training run: learning curve, calibration, tables, dead letters, freshness",
        EXAMPLES,
    )
    parser.add_argument(
        "run_log", metavar="RUN.log", help="log of livectr train --set run_log=FILE; it may still grow"
    )
    parser.add_argument(
        "--html", required=True, metavar="FILE.html", help="the page, a file that loads nothing"
    )
    model = parser.add_argument_group("permutation importance by field, which needs a model and examples")
    model.add_argument("--pipeline", metavar="FILE.py", help="the pipeline file")
    model.add_argument("--checkpoint", metavar="DIR", help="the model; it learns nothing here")
    model.add_argument("--source", metavar="URL", help="the logs: file:DIR or kafka://HOST:PORT")
    model.add_argument(
        "--from-start",
        action="store_true",
        help="take the newest examples of the whole log [of those that the checkpoint has not learned]",
    )
    model.add_argument("--examples", type=count, metavar="N", help="newest examples that are taken [20000]")


def run(given: argparse.Namespace) -> int:
    """Write the page."""
    missing = [f"--{name}" for name in MODEL if getattr(given, name) is None]
    asked = len(missing) < len(MODEL)
    if missing and (asked or given.from_start or given.examples):
        raise ConfigError(f"for the importance of fields, give {', '.join(missing)}, too")
    target = Path(given.html)
    with loading(lean=given.alone):
        from livectr.analysis.page.page import page
        from livectr.analysis.page.reading import read_run_log

    data = read_run_log(Path(given.run_log))
    text = page(data, _importance(given) if asked else None)
    with writing("the page", target):
        target.parent.mkdir(parents=True, exist_ok=True)
        target.write_text(text, encoding="utf-8")
    print(f"{target}: {len(data.windows):,} windows, {len(data.samples):,} samples, {len(text) >> 10:,} KiB")
    return 0


def _importance(given: argparse.Namespace) -> Any:
    with loading(lean=given.alone):
        from livectr.analysis.page.importance import MOST, Asked, importance

    return importance(
        Asked(
            given.pipeline,
            Path(given.checkpoint),
            given.source,
            from_start=given.from_start,
            most=given.examples or MOST,
        )
    )
