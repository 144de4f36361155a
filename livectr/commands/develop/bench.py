"""`livectr bench NAME`: measure, and compare with a peer in the same run. Needs a checkout."""

import argparse
from pathlib import Path
from typing import Any

from livectr.checkout import import_from_checkout
from livectr.commands.flags import command, duration_s, positive
from livectr.config.parsing import nearest
from livectr.system.errors import ConfigError

NAMES = (
    "ingest",
    "kafka",
    "features",
    "featurebox",
    "gpu",
    "tables",
    "tiers",
    "train",
    "step",
    "whole-run",
    "peers",
    "des-bytes",
    "mesh",
    "quality",
    "delayed",
    "carry",
    "learning",
    "first-rows",
    "counters",
    "funnel",
    "scaling",
    "network",
    "publish",
    "redis-memory",
    "serving",
    "freshness",
    "start",
    "resize",
    "images",
    "memory",
    "day",
    "large-day",
)
"""Modules of `bench`; they are listed here for a quick `--help`."""


def add(commands: Any) -> None:
    """Add the command."""
    parser = command(
        commands,
        "bench",
        run,
        "measure, and compare with a peer in the same run",
        "  livectr bench tables\n  livectr bench serving --json serving.json",
    )
    parser.add_argument("name", metavar="NAME", help=", ".join(NAMES))
    parser.add_argument("--json", metavar="FILE", help="write the result here")
    parser.add_argument(
        "--quick", action="store_true", help="small workloads, to see that it runs; no figures to quote"
    )
    parser.add_argument("--rate", type=positive, help="freshness: events a second [50000]")
    parser.add_argument(
        "--seconds", type=duration_s, metavar="DURATION", help="freshness: length of the run [300s]"
    )


def run(given: argparse.Namespace) -> int:
    """Run a benchmark. Raises ConfigError for an unknown name, and without a checkout."""
    if given.name not in NAMES:
        raise ConfigError(f"there is no benchmark {given.name!r}; {nearest(given.name, NAMES)}")
    run = import_from_checkout("bench.run", "bench")
    run.run_benchmark(
        given.name,
        json_file=Path(given.json) if given.json else None,
        quick=given.quick,
        options={name: getattr(given, name) for name in ("rate", "seconds") if getattr(given, name)},
    )
    return 0
