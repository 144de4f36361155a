"""Parser of a command, and types of its flags."""

import argparse
import difflib
import re
from collections.abc import Callable, Mapping, Sequence
from types import MappingProxyType
from typing import Any

from livectr.config.parsing import nearest
from livectr.system.errors import ConfigError

Run = Callable[[argparse.Namespace], int]
"""Does a command with its flags, and returns the exit code."""


class Parser(argparse.ArgumentParser):
    """Raises ConfigError in place of argparse's usage text: a user's mistake is one sentence, which names the
    word that was probably meant.

    Attributes:
        assignable: settings that the command takes by `--set`, with their kinds.
    """

    assignable: Mapping[str, type] = MappingProxyType({})

    def error(self, message: str) -> Any:
        meant = self._meant(message)
        stop = " " if meant[-1] in "?." else "; "
        raise ConfigError(f"{meant}{stop}`{self.prog} --help` explains the flags.")

    def parse_known_args(self, args: Any = None, namespace: Any = None) -> Any:
        """As argparse; a command refuses a flag that it does not know itself, for it knows the others."""
        found, unknown = super().parse_known_args(args, namespace)
        if unknown and self._subparsers is None:
            if assigned := self._assigned(unknown):
                raise ConfigError(f"there is no flag {unknown[0].partition('=')[0]}; say --set {assigned}")
            self.error(
                f"there is no flag {unknown[0]}" if unknown[0][:1] == "-" else f"{unknown[0]!r} is too much"
            )
        return found, unknown

    def _assigned(self, words: Sequence[str]) -> str:
        """NAME=VALUE of an unknown flag that is a setting without one; "" if it is none."""
        flag, equals, value = words[0].partition("=")
        name = flag.removeprefix("--").replace("-", "_")
        off = name.removeprefix("no_")
        if off != name and off in self.assignable and self.assignable[off] is bool:
            return f"{off}=false"
        if name not in self.assignable or not flag.startswith("--"):
            return ""
        following = words[1] if len(words) > 1 and words[1][:2] != "--" else None
        absent = "true" if self.assignable[name] is bool else "…"
        return f"{name}={value if equals else following or absent}"

    def _meant(self, message: str) -> str:
        """Message with the nearest known word."""
        if flag := re.fullmatch(r"there is no flag (--[^\s=]+).*", message):
            close = difflib.get_close_matches(flag[1], self._option_string_actions, n=1)
            if not close:
                named = difflib.get_close_matches(flag[1][2:].replace("-", "_"), self.assignable, n=1)
                close = [f"--set {name}=…" for name in named]
            return f"there is no flag {flag[1]}" + (f"; did you mean {close[0]}?" if close else "")
        choice = re.fullmatch(r"argument (\S+): invalid choice: '([^']*)' \(choose from (.*)\)", message)
        if choice is None:
            return message
        known = nearest(choice[2], re.findall(r"[^\s,']+", choice[3]))
        if choice[1] == "COMMAND":
            return f"there is no command {choice[2]!r}; {known}"
        return f"argument {choice[1]}: invalid choice: {choice[2]!r}; {known}"


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
    from livectr.system.durations import duration_ms

    try:
        value = _number(text) if text[-1:].isdigit() else duration_ms(text, "flag") / 1000
    except ConfigError:
        raise argparse.ArgumentTypeError(f'{text!r} is no duration such as "500ms", "10s", "14d"') from None
    if not 0 < value < float("inf"):
        raise argparse.ArgumentTypeError(f"{text} must be more than 0")
    return value


def wait_s(text: str) -> float:
    """Seconds of a wait, as `duration_s`; 0: none."""
    return 0.0 if text in ("0", "0s") else duration_s(text)


def _number(text: str) -> float:
    try:
        return float(text)
    except ValueError:
        raise argparse.ArgumentTypeError(f"{text!r} is no number") from None
