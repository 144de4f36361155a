"""`livectr features compile`: compile the kernel library, and a pipeline's plans, ahead of their use."""

import argparse
from pathlib import Path
from typing import Any

from livectr.commands.flags import command
from livectr.config.sources import resolve
from livectr.system.cpu import level, own_levels
from livectr.system.errors import ConfigError
from livectr.system.heap import loading

EXAMPLES = """\
  livectr features compile --pipeline p.py --to /opt/kernels
  livectr features compile                             # the library of this CPU, in a checkout
  livectr features compile --pipeline p.py --cpu x86-64-v3,x86-64-v4 --to /opt/kernels
  LIVECTR_KERNELS=/opt/kernels livectr serve rank --pipeline p.py …"""


def add(commands: Any) -> None:
    """Add the command."""
    parser = command(
        commands,
        "compile",
        run,
        "compile the kernel library, and a pipeline's feature plans, for levels of CPUs",
        EXAMPLES,
    )
    parser.add_argument("--pipeline", metavar="FILE.py", help="pipeline file [only the library]")
    parser.add_argument(
        "--config", metavar="FILE.toml", help="check these settings first, as `livectr inspect` does"
    )
    parser.add_argument(
        "--to", metavar="DIR", help="folder for LIVECTR_KERNELS [the installed package's own]"
    )
    parser.add_argument(
        "--cpu", metavar="LEVEL,…", help="levels of CPUs that have to run them [the highest of this CPU]"
    )
    parser.add_argument("--servers", action="store_true", help="leave out what only a trainer uses")


def run(given: argparse.Namespace) -> int:
    """Compile, and say how many kernels there are.

    Raises ConfigError without a compiler that is needed, or when settings are wrong.
    """
    with loading():
        from livectr.ingest.pipeline import load_pipeline
        from livectr.inspection.check import check_settings
        from livectr.kernels.runtime.library import BUILT
        from livectr.prebuilt import prebuild_all

    if given.config is not None:
        if given.pipeline is None:
            raise ConfigError("--config is about a pipeline; say --pipeline FILE.py too.")
        settings = load_pipeline(given.pipeline).settings
        check_settings(resolve({}, toml=given.config, pipeline=settings))
    names = [name.strip() for name in given.cpu.split(",")] if given.cpu is not None else []
    levels = [level(name) for name in names] or list(own_levels()[:1])
    folder = BUILT if given.to is None else Path(given.to)
    count = prebuild_all(given.pipeline, levels, folder, servers_only=given.servers)
    print(f"{count} kernel libraries for {', '.join(found.name for found in levels)} in {folder}")
    return 0
