"""Entry of the command line.

Exit codes: 0 done, 1 a part failed, 2 a user's mistake, 3 a log that does not fit the pipeline, 4 something
is not there or in use, or too many rows of a file do not fit, 5 a training that was stopped before the log's
end, 130 Ctrl-C; 1 to 5 with one sentence on standard error, or with the table of `livectr check`.
"""

import argparse
import logging
import os
import select
import sys
from collections.abc import Sequence
from contextlib import nullcontext, suppress

from livectr import __version__
from livectr.commands.data import check, features, init, logs
from livectr.commands.develop import bench, experiment, plan
from livectr.commands.flags import Parser
from livectr.commands.moved import todays
from livectr.commands.run import demo, down, local, query, rollout, serve, status, train, up, versions
from livectr.commands.settings import start_log
from livectr.commands.watch import evaluate, inspect, report
from livectr.system.disk import is_full
from livectr.system.errors import (
    ConfigError,
    ConnectError,
    DataError,
    InternalError,
    InUseError,
    NotLearningError,
    RowsError,
    UserError,
)
from livectr.system.logs import tell
from livectr.system.signals import kept_handlers
from livectr.trainer.process import share_cores

COMMANDS = {
    "run": (up, status, rollout, down, demo, train, serve, query, versions, local),
    "data": (init, check, logs, features),
    "watch": (inspect, evaluate, report),
    "develop": (experiment, plan, bench),
}
"""Group of `livectr --help` → modules of its commands."""
DESCRIPTION = "LiveCTR learns click-through rates from a live log stream and serves them while it learns."
EPILOG = """\
start here:
  livectr demo                     the whole path on this machine: logs, trainer, servers, queries
  livectr demo --log kafka --ranks 2

your own logs:
  livectr init --from impressions.csv --label clicked      a pipeline file and a log from a CSV
  livectr init --impressions kafka://localhost:9092/views --clicks kafka://localhost:9092/clicks
  livectr init --example display_ads --out my_ads          an example's pipeline file, to start from
  livectr up views/pipeline.py --source kafka://localhost:9092      trainer and servers, on this machine
  livectr query rank --server localhost:50051 --context user_id=42 --candidates ad_id=1,2,3
  livectr status --watch

`livectr COMMAND --help` explains a command. Settings are read from the pipeline file, --config FILE.toml,
LIVECTR_<NAME> variables and flags; the later wins."""


def build_parser() -> argparse.ArgumentParser:
    """Parser of every command."""
    parser = Parser(
        prog="livectr",
        usage="livectr [-h] [--version] COMMAND …",
        description=DESCRIPTION,
        epilog=EPILOG,
        formatter_class=argparse.RawDescriptionHelpFormatter,
        allow_abbrev=False,
    )
    parser.add_argument("--version", action="version", version=f"livectr {__version__}")
    commands = parser.add_subparsers(
        prog="livectr", metavar="COMMAND", help=argparse.SUPPRESS, parser_class=Parser
    )
    for title, modules in COMMANDS.items():
        for module in modules:
            module.add(commands)
        listed = parser.add_argument_group(title)  # argparse itself has no groups of commands
        listed._group_actions += commands._choices_actions
        commands._choices_actions = []
    return parser


def main(arguments: Sequence[str] | None = None) -> int:
    """Run one command and return its exit code.

    Args:
        arguments: words of a program that continues afterwards: it gets its signal handlers back. None: the
            words of this process. A second SIGTERM on its way out must not change its exit code.
    """
    with nullcontext() if arguments is None else kept_handlers():
        return _main(arguments)


def _main(arguments: Sequence[str] | None) -> int:
    # kafka-python repeats its messages while a broker is away; our own loggers and errors say what matters.
    logging.getLogger("kafka").setLevel(logging.CRITICAL)
    try:
        words = todays(sys.argv[1:] if arguments is None else arguments)
        given = build_parser().parse_args(words)
        given.arguments = words
        given.alone = arguments is None  # no program that may use pandas runs on in this process
        if not hasattr(given, "run"):
            raise ConfigError("say what to do: `livectr --help` lists the commands.")
        if given.run is not bench.run:  # peers have OpenMP's default
            share_cores()
        if hasattr(given, "log_role"):
            start_log(given, given.log_role)
        code = given.run(given)
        sys.stdout.flush()
        return int(code or 0)
    except DataError as error:
        if not error.told and int(os.environ.get("RANK", 0)) == 0:  # the other ranks say the same
            tell(str(error))
        return 3
    except UserError as error:
        if not error.told:
            tell(str(error))
        return 4 if isinstance(error, ConnectError | InUseError | RowsError) else 2
    except NotLearningError as error:
        if int(os.environ.get("RANK", 0)) == 0:  # the other ranks say the same
            tell(str(error))
        return 1
    except InternalError as error:
        tell(str(error))
        return 1
    except KeyboardInterrupt:
        tell("stopped.")
        return 130
    except BrokenPipeError:
        if not _reader_is_gone():
            raise  # of a socket or another process
        sys.stderr.close()
        return 0
    except OSError as error:
        if is_full(error):
            where = f"{error.filename}: " if error.filename else ""
            tell(f"no space is left to write to ({where}{error.strerror}); free some.")
            _leave_stdout()
            return 2
        if error.filename is None:
            raise
        # The user named an unusable path: a folder in place of a file, no permission, …
        tell(f"{error.filename}: {error.strerror}; name another path.")
        return 2


def _reader_is_gone() -> bool:
    """Tell if nobody reads what this process says any more: `livectr inspect … | head`."""
    poll = select.poll()
    for stream in (sys.stdout, sys.stderr):
        with suppress(OSError, ValueError):  # a test's stream is no file
            poll.register(stream, 0)
    return bool(poll.poll(0))


def _leave_stdout() -> None:
    """Drop unwritten output: the interpreter would fail on it once more at its end."""
    try:
        sys.stdout.flush()
    except OSError:
        with suppress(OSError):
            sys.stdout.close()
