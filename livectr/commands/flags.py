"""Parser of a command, and types of its flags."""

import argparse
from collections.abc import Callable
from typing import Any

from livectr.kernels.errors import ConfigError

Run = Callable[[argparse.Namespace], int]
"""Does a command with its flags, and returns the exit code."""


class Parser(argparse.ArgumentParser):
    """Raises ConfigError in place of argparse's usage text: a user's mistake is one sentence."""

    def error(self, message: str) -> Any:
        raise ConfigError(f"{message}; `{self.prog} --help` explains the flags.")


def command(commands: Any, name: str, run: Run, help: str, epilog: str = "") -> Any:
    """Add a command.

    Args:
        commands: subparsers of `livectr`, or of a group.
        name: word on the command line.
        run: does the command.
        help: one sentence without its capital and full stop.
        epilog: examples, a line each.

    Returns:
        The parser, which takes the command's flags.
    """
    parser = commands.add_parser(
        name,
        help=help,
        description=help[0].upper() + help[1:] + ".",
        epilog=epilog and "examples:\n" + epilog,
        formatter_class=argparse.RawDescriptionHelpFormatter,
        allow_abbrev=False,
    )
    parser.set_defaults(run=run)
    return parser


def group(parser: Any, title: str, metavar: str) -> Any:
    """Subparsers of a command that has commands of its own, for `command`."""
    return parser.add_subparsers(title=title, metavar=metavar, parser_class=Parser, required=True)


def positive(text: str) -> float:
    """Number above 0."""
    value = _number(text)
    if not 0 < value < float("inf"):
        raise argparse.ArgumentTypeError(f"{text} must be more than 0")
    return value


def count(text: str) -> int:
    """Whole number of at least 1."""
    value = _number(text)
    if value < 1 or value != int(value):
        raise argparse.ArgumentTypeError(f"{text} must be a whole number of at least 1")
    return int(value)


def seed(text: str) -> int:
    """Whole number of at least 0."""
    value = _number(text)
    if value < 0 or value != int(value):
        raise argparse.ArgumentTypeError(f"{text} must be a whole number of at least 0")
    return int(value)


def duration_s(text: str) -> float:
    """Seconds, from a number of seconds or a duration such as "10m"."""
    from livectr.ingest.language.durations import duration_ms

    try:
        value = _number(text) if text[-1:].isdigit() else duration_ms(text, "flag") / 1000
    except ConfigError:
        raise argparse.ArgumentTypeError(f'{text!r} is no duration such as "500ms", "10s", "14d"') from None
    if not 0 < value < float("inf"):
        raise argparse.ArgumentTypeError(f"{text} must be more than 0")
    return value


def _number(text: str) -> float:
    try:
        return float(text)
    except ValueError:
        raise argparse.ArgumentTypeError(f"{text!r} is no number") from None
