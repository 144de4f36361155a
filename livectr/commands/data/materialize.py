"""`livectr features materialize`: compute features once, for every training run that follows."""

import argparse
from pathlib import Path
from typing import Any

from livectr.commands.flags import command
from livectr.commands.settings import add_log_flags
from livectr.system.heap import loading

ABOUT = """\
Features that cost much and hardly change can be computed once (materialized features). The command reads
the logs to their end, joins them, computes the features and writes them by instance id to Parquet files.

`livectr train --set materialized=DIR` reads them beside the logs and computes the other features. It reads
only the log columns that the other features need. A feature whose expression has changed since is refused; a
new feature is computed."""

EXAMPLES = """\
  livectr features materialize --pipeline p.py --source file:logs --out once
  livectr features materialize --pipeline p.py --source file:logs --out once --features words,query_x_title
  livectr train --pipeline p.py --source file:logs --until-end --set materialized=once"""


def add(commands: Any) -> None:
    """Add the command."""
    make = command(
        commands,
        "materialize",
        run,
        "compute features once, for every training run that follows",
        EXAMPLES,
    )
    make.description = ABOUT
    make.add_argument("--pipeline", required=True, metavar="FILE.py", help="the pipeline file")
    make.add_argument(
        "--source",
        required=True,
        metavar="URL",
        help="the logs, read to their end: file:DIR or kafka://HOST:PORT",
    )
    make.add_argument("--out", required=True, metavar="DIR", help="a folder that does not exist yet")
    make.add_argument(
        "--features",
        metavar="A,B,…",
        help="features to compute [all that do not depend on running statistics]",
    )
    make.add_argument(
        "--part",
        default="0/1",
        metavar="I/N",
        help="compute the partitions p with p mod N = I; the last part puts all together [0/1]",
    )
    add_log_flags(make, "materialize")


def run(given: argparse.Namespace) -> int:
    """Materialize features."""
    with loading(lean=given.alone):
        from livectr.ingest.materialized.parts import Part
        from livectr.logs.materialize import materialize

    names = [name.strip() for name in given.features.split(",")] if given.features is not None else None
    out, part = Path(given.out), Part.parse(given.part)
    return materialize(given.pipeline, source=given.source, out=out, names=names, part=part)
