"""`livectr demo`: the whole path on this machine."""

import argparse
from pathlib import Path
from typing import Any

from livectr.commands.flags import command, count, positive, seed
from livectr.commands.settings import add_log_flags

EXAMPLES = """\
  livectr demo --seconds 60
  livectr demo --watch --ranks 2
  livectr demo --seconds 300 --log kafka --ranks 2 --report report.json"""


def add(commands: Any) -> None:
    """Add the command."""
    parser = command(
        commands, "demo", run, "simulator, trainer, servers and queries, together on this machine", EXAMPLES
    )
    length = parser.add_mutually_exclusive_group()
    length.add_argument("--seconds", type=positive, default=60.0, help="length of the simulated traffic [60]")
    length.add_argument(
        "--watch", action="store_true", help="run until Ctrl-C, with a Prometheus beside it and no report"
    )
    parser.add_argument("--rules", metavar="FILE.yaml", help="other rules for the Prometheus of --watch")
    parser.add_argument("--log", choices=("file", "kafka"), default="file", help="carrier of the logs [file]")
    parser.add_argument("--ranks", type=count, default=1, help="processes that train together [1]")
    parser.add_argument("--rate", type=positive, help="impressions per second [2000; 500 with --watch]")
    parser.add_argument("--seed", type=seed, default=1, help="seed of the simulated market [1]")
    parser.add_argument("--report", metavar="FILE", help="write the report (JSON) here")
    parser.add_argument("--pipeline", metavar="FILE.py", help="another pipeline for the simulator's logs")
    parser.add_argument("--keep", metavar="DIR", help="work in this folder and keep logs, checkpoint, ledger")
    add_log_flags(parser, "demo")


def run(given: argparse.Namespace) -> int:
    """Run the demo, and show it on the terminal."""
    from livectr.demo.demo import DemoOptions, demo
    from livectr.system.errors import ConfigError

    if given.rules and not given.watch:
        raise ConfigError("--rules are Prometheus' rules: say --watch, too.")
    if given.rules and not Path(given.rules).is_file():
        raise ConfigError(f"there is no file {given.rules}.")
    if given.watch and given.report:
        raise ConfigError("--report needs an end of the traffic: say --seconds instead of --watch.")
    options = DemoOptions(
        seconds=given.seconds,
        log=given.log,
        ranks=given.ranks,
        rate=given.rate or (500.0 if given.watch else 2000.0),
        seed=given.seed,
        pipeline=given.pipeline,
        keep=Path(given.keep) if given.keep else None,
        report=Path(given.report) if given.report else None,
        watch=given.watch,
        rules=Path(given.rules) if given.rules else None,
    )
    try:
        demo(options)
    except KeyboardInterrupt:
        if not given.watch:
            raise
    return 0
