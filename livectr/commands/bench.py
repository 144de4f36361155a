"""`livectr bench NAME`: measure, and compare with a peer in the same run."""

import argparse
from pathlib import Path

from livectr.commands.checkout import import_from_checkout
from livectr.config import nearest
from livectr.kernels.errors import ConfigError

NAMES = (
    "ingest",
    "features",
    "featurebox",
    "allocation",
    "gpu",
    "tables",
    "tiers",
    "train",
    "peers",
    "common",
    "des-bytes",
    "mesh",
    "quality",
    "scaling",
    "publish",
    "serving",
    "images",
    "memory",
)
"""Modules of `bench`; they are listed here for a quick `--help`."""


def bench(given: argparse.Namespace) -> int:
    """Run a benchmark. Raises ConfigError for an unknown name, and without a checkout."""
    if given.name not in NAMES:
        raise ConfigError(f"there is no benchmark {given.name!r}; {nearest(given.name, NAMES)}")
    run = import_from_checkout("bench.run", "bench")
    run.run_benchmark(given.name, json_file=Path(given.json) if given.json else None, quick=given.quick)
    return 0
