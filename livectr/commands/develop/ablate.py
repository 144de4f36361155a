"""`livectr experiment ablate`: train variants of a pipeline's models on the same log. Needs a checkout."""

import argparse
import os
import sys
from pathlib import Path
from typing import Any

from livectr.checkout import import_from_checkout
from livectr.commands.flags import command, count

EXAMPLES = """\
  livectr experiment ablate --pipeline examples/images/pipeline.py --source file:logs \\
      --content images=features --grid images --seeds 5 --out ablation
  livectr experiment ablate --pipeline p.py --source 'file:logs-{seed}' \\
      --content 'images=features-{seed}' --grid aggregator,warm_up --jobs 2 --out ablation"""


def add(commands: Any) -> None:
    """Add the command."""
    parser = command(
        commands,
        "ablate",
        run,
        "train variants of a pipeline's models on the same log, and print the gain of each part",
        EXAMPLES,
    )
    parser.add_argument(
        "--pipeline",
        required=True,
        metavar="FILE.py",
        help="a pipeline whose rank= is a DICM (grid prerank: prerank=)",
    )
    parser.add_argument(
        "--source",
        required=True,
        metavar="URL",
        help="the logs, read to their end: file:DIR or kafka://HOST:PORT; {seed} is the seed's number",
    )
    parser.add_argument(
        "--content", metavar="NAME=DIR,…", help="features of the pipeline's content; may hold {seed}"
    )
    parser.add_argument(
        "--grid",
        required=True,
        metavar="A,B,…",
        help="images (Table 3), aggregator (Table 4), basic_net (Figure 5), warm_up (Table 5), "
        "prerank (Table 8), all",
    )
    parser.add_argument("--seeds", type=count, default=5, metavar="N", help="trainings of each variant [5]")
    parser.add_argument("--out", required=True, metavar="DIR", help="for ablation.json, tables.md, figures")
    parser.add_argument(
        "--jobs", type=count, default=None, metavar="N", help="trainings at a time [one a core]"
    )
    parser.add_argument(
        "--ledger",
        metavar="FILE",
        help="ledger of livectr logs simulate: also measure the true probabilities",
    )


def run(given: argparse.Namespace) -> int:
    """Train, and print the tables. Shows a progress bar on a terminal, else a line for each training."""
    from rich.console import Console
    from rich.progress import BarColumn, MofNCompleteColumn, Progress, TextColumn, TimeElapsedColumn

    ablation = import_from_checkout("bench.ablation.ablate", "experiment ablate")
    cores = len(os.sched_getaffinity(0))
    at_once = given.jobs or cores
    options = ablation.AblateOptions(
        pipeline=given.pipeline,
        source=given.source,
        grids=ablation.grids_named(given.grid),
        out=Path(given.out),
        content=given.content,
        ledger=given.ledger,
        seeds=given.seeds,
        at_once=at_once,
        threads=max(1, cores // at_once),
    )
    console = Console(stderr=True)
    columns = (TextColumn("{task.description}"), BarColumn(), MofNCompleteColumn(), TimeElapsedColumn())
    with Progress(*columns, console=console, disable=not console.is_terminal, transient=True) as bar:
        task = bar.add_task("trainings", total=None)

        def progress(name: str, done: int, total: int) -> None:
            bar.update(task, completed=done, total=total, description=name or "trainings")
            if name and not console.is_terminal:
                print(f"{done} of {total}: {name}", file=sys.stderr, flush=True)

        tables = ablation.ablate(options, progress=progress)
    print(tables)
    return 0
