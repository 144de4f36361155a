"""What the flags of every command are made of. Nothing heavy is imported here: `--help` is quick."""

import argparse
from typing import Any

from livectr.kernels.errors import ConfigError


class Parser(argparse.ArgumentParser):
    """Raises what argparse would print as usage, so that every user's mistake is one sentence."""

    def error(self, message: str) -> Any:
        raise ConfigError(f"{message}; `{self.prog} --help` explains the flags.")


def command(commands: Any, name: str, run: str, help: str, epilog: str = "") -> Any:
    """The parser of a command that `livectr.commands.handlers.RUN` runs."""
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


def positive(text: str) -> float:
    """A number above 0."""
    value = _number(text)
    if not 0 < value < float("inf"):
        raise argparse.ArgumentTypeError(f"{text} must be more than 0")
    return value


def count(text: str) -> int:
    """A whole number of at least 1."""
    value = _number(text)
    if value < 1 or value != int(value):
        raise argparse.ArgumentTypeError(f"{text} must be a whole number of at least 1")
    return int(value)


def seed(text: str) -> int:
    """A whole number of at least 0."""
    value = _number(text)
    if value < 0 or value != int(value):
        raise argparse.ArgumentTypeError(f"{text} must be a whole number of at least 0")
    return int(value)


def duration_s(text: str) -> float:
    """Seconds: a number of them, or a duration such as "10m"."""
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
