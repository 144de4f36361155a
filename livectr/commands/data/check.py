"""`livectr check`: some rows of a log through decoding, joins and features, before a run of a day."""

from __future__ import annotations

import argparse
from typing import Any

from livectr.commands.flags import command, count
from livectr.system.heap import loading

EXAMPLES = """\
  livectr check --pipeline p.py --source file:/data/logs
  livectr check --pipeline p.py --source kafka://localhost:9092 --rows 20000
  livectr check --pipeline p.py --source file:/data/logs --json"""


def add(commands: Any) -> None:
    """Add the command."""
    parser = command(
        commands, "check", run, "try a pipeline on some rows of its log, and say what is wrong", EXAMPLES
    )
    parser.add_argument("--pipeline", required=True, metavar="FILE.py", help="the pipeline file")
    parser.add_argument("--source", required=True, metavar="URL", help="kafka://HOST:PORT or file:DIR")
    parser.add_argument("--rows", type=count, default=1000, help="examples to look at [1000]")
    parser.add_argument("--json", action="store_true", help="print JSON in place of a table")


def run(given: argparse.Namespace) -> int:
    """Print the findings; 1 when something is wrong. Nothing is committed, and no dead letter is kept."""
    with loading(lean=given.alone):
        from livectr.check.rules import WRONG, findings, unread_files
        from livectr.check.sample import read_sample
        from livectr.check.show import as_json, show
        from livectr.config.sources import resolve
        from livectr.ingest.pipeline import load_pipeline
        from livectr.inspection.check import check_settings

    pipeline = load_pipeline(given.pipeline)
    check_settings(resolve({}, pipeline=pipeline.settings))
    sample = read_sample(pipeline, given.source, given.rows)
    found = [*unread_files(pipeline, given.source), *findings(pipeline, sample)]
    if given.json:
        print(as_json(found, len(sample)))
    else:
        show(found, f"{given.pipeline} on {len(sample):,} rows of {given.source}")
    return int(any(one.mark == WRONG for one in found))
