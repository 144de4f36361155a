"""Parser of a command, and types of its flags."""

import argparse
import difflib
import re
from collections.abc import Callable, Mapping, Sequence
from types import MappingProxyType
from typing import Any, NoReturn

from livectr.config.parsing import nearest
from livectr.system.errors import ConfigError
from livectr.system.logs import tell

Run = Callable[[argparse.Namespace], int]
"""Does a command with its flags, and returns the exit code."""


class Parser(argparse.ArgumentParser):
    """Raises ConfigError in place of argparse's usage text.

    A user's mistake is one sentence, which names the words that were probably meant.

    Attributes:
        assignable: settings that the command takes by `--set`, with their kinds.
        example: first example that runs this command, for the help of its group.
    """

    assignable: Mapping[str, type] = MappingProxyType({})
    example: str = ""

    def __init__(self, *given: Any, **more: Any) -> None:
        super().__init__(*given, **more)
        self._negative_number_matcher = re.compile(r"-\.?\d")  # -5s is a value, and no flag

    def error(self, message: str) -> NoReturn:
        """Raise ConfigError with the message, or with the words that were probably meant."""
        meant = self._meant(message)
        stop = " " if meant[-1] in "?." else "; "
        raise ConfigError(f"{meant}{stop}`{self.prog} --help` explains the flags.")

    def format_help(self) -> str:
        """As argparse; the help of a command that has commands ends with an example of each."""
        if self.epilog is None and self._subparsers is not None:
            commands = self._subparsers._group_actions[0].choices
            assert isinstance(commands, dict)
            self.epilog = "examples:\n" + "\n".join(command.example for command in commands.values())
        return super().format_help()

    def parse_known_args(self, args: Any = None, namespace: Any = None) -> Any:
        """As argparse; a command refuses all words that it does not know itself, for it knows the others."""
        found, unknown = super().parse_known_args(args, namespace)
        if unknown and self._subparsers is None:
            unknown = self._assign(unknown, found)
            if unknown:
                self._refuse(unknown)
        return found, unknown

    def _assign(self, words: Sequence[str], found: argparse.Namespace) -> list[str]:
        """Take the flags that settings had before 0.2, with a line for each; return the other words."""
        others, at = list[str](), 0
        while at < len(words):
            assigned, count = self._assigned(words[at:])
            if not count:
                others.append(words[at])
                at += 1
                continue
            flag, name = words[at].partition("=")[0], assigned.partition("=")[0]
            found.assigned = [*found.assigned, assigned]
            tell(f"{flag} is --set {name}=… now.")  # without the value: it may be a password
            at += count
        return others

    def _refuse(self, words: Sequence[str]) -> NoReturn:
        """Raise the ConfigError of unknown words: flags, and what stands between them."""
        flags = [number for number, word in enumerate(words) if re.match(r"-(?!\.?\d)", word)]
        if not flags:
            verb = "is" if len(words) == 1 else "are"
            self.error(f"{', '.join(map(repr, words))} {verb} too much")
        hints = {words[number].partition("=")[0]: self._hint(words[number:]) for number in flags}
        if len(hints) > 1:
            self.error(f"there are no flags {', '.join(f + (h and f' ({h})') for f, h in hints.items())}")
        ((flag, hint),) = hints.items()
        said = f"there is no flag {flag}" + (hint and f"; {hint}")
        if hint.startswith("say "):
            raise ConfigError(said)
        self.error(said)

    def _hint(self, words: Sequence[str]) -> str:
        """Hint of what replaces an unknown flag, the first of the words; "" if nothing is near."""
        if assigned := self._assigned(words)[0]:
            return f"say --set {assigned}"
        flag = words[0].partition("=")[0]
        close = difflib.get_close_matches(flag, self._option_string_actions, n=1)
        if not close:
            named = difflib.get_close_matches(flag[2:].replace("-", "_"), self.assignable, n=1)
            close = [f"--set {name}=…" for name in named]
        return f"did you mean {close[0]}?" if close else ""

    def _assigned(self, words: Sequence[str]) -> tuple[str, int]:
        """NAME=VALUE of an unknown flag that is a setting without one, and how many words it took.

        ("", 0) if it is no setting; (NAME=…, 0) if its value is missing.
        """
        flag, equals, value = words[0].partition("=")
        name = flag.removeprefix("--").replace("-", "_")
        off = name.removeprefix("no_")
        if off != name and off in self.assignable and self.assignable[off] is bool:
            return f"{off}=false", 1
        if name not in self.assignable or not flag.startswith("--"):
            return "", 0
        if equals:
            return f"{name}={value}", 1
        if len(words) > 1 and words[1][:2] != "--":
            return f"{name}={words[1]}", 2
        return (f"{name}=true", 1) if self.assignable[name] is bool else (f"{name}=…", 0)

    def _meant(self, message: str) -> str:
        """Message with the nearest known word of a choice."""
        choice = re.fullmatch(r"argument (\S+): invalid choice: '([^']*)' \(choose from (.*)\)", message)
        if choice is None:
            return message
        known = nearest(choice[2], re.findall(r"[^\s,']+", choice[3]))
        if self._subparsers is not None:
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
    parser = _added(commands, name, help, epilog=epilog and "examples:\n" + epilog)
    parser.set_defaults(run=run)
    own = re.search(rf"^ *{parser.prog} (.*\\\n)*.*", epilog, re.MULTILINE)  # with the lines that continue it
    parser.example = own[0] if own else ""
    return parser


def group(commands: Any, name: str, help: str, metavar: str) -> Any:
    """Add a command that has commands of its own (a group); its help ends with an example of each.

    Args:
        commands: subparsers of `livectr`.
        name: word on the command line.
        help: one sentence without its capital and full stop.
        metavar: words of its commands, as a|b.

    Returns:
        Its subparsers, for `command`.
    """
    parser = _added(commands, name, help)
    return parser.add_subparsers(title="commands", metavar=metavar, parser_class=Parser, required=True)


def _added(commands: Any, name: str, help: str, epilog: str | None = None) -> Any:
    return commands.add_parser(
        name,
        help=help,
        description=help[0].upper() + help[1:] + ".",
        epilog=epilog,
        formatter_class=argparse.RawDescriptionHelpFormatter,
        allow_abbrev=False,
    )


def positive(text: str) -> float:
    """Number above 0."""
    value = _number(text)
    if not 0 < value < float("inf"):
        raise argparse.ArgumentTypeError(f"{text} must be more than 0")
    return value


def share(text: str) -> float:
    """Number from 0 to 1."""
    value = _number(text)
    if not 0 <= value <= 1:
        raise argparse.ArgumentTypeError(f"{text} must be a share from 0 to 1")
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
    """Seconds above 0, from a number of seconds or a duration such as "10m"."""
    value = _seconds(text)
    if not 0 < value < float("inf"):
        raise argparse.ArgumentTypeError(f"{text} must be more than 0")
    return value


def wait_s(text: str) -> float:
    """Seconds of a wait, written as for `duration_s`; 0: none."""
    value = _seconds(text)
    if not 0 <= value < float("inf"):
        raise argparse.ArgumentTypeError(f"{text} must be at least 0")
    return value


def _seconds(text: str) -> float:
    from livectr.system.durations import duration_ms

    size = text.removeprefix("-")
    try:
        value = (
            _number(size) if size[-1:].isdigit() else 0.0 if size == "0s" else duration_ms(size, "") / 1000
        )
    except ConfigError:
        raise argparse.ArgumentTypeError(f'{text!r} is no duration such as "500ms", "10s", "14d"') from None
    return value if size == text else -value


def _number(text: str) -> float:
    try:
        return float(text)
    except ValueError:
        raise argparse.ArgumentTypeError(f"{text!r} is no number") from None
