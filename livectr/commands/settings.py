"""Settings of a command: their flags, and the options objects that are made of them."""

from __future__ import annotations

import argparse
import difflib
import logging
import os
from collections.abc import Collection
from typing import TYPE_CHECKING, Any, NoReturn

from livectr import __version__
from livectr.config.parsing import FORMER, parse
from livectr.config.settings import SECRET, SETTINGS, Settings, commands_of
from livectr.config.sources import resolve
from livectr.secrets import has_password
from livectr.system.errors import ConfigError
from livectr.system.logs import log_to_stderr

if TYPE_CHECKING:
    from livectr.ingest.pipeline import Pipeline

LOG = logging.getLogger(__name__)

_FEW = 15
"""Settings of a command that all have flags of their own."""


def add_settings(parser: Any, command: str, only: Collection[str] | None = None) -> None:
    """Add the settings of a command to its parser. An absent flag leaves the other sources alone.

    Few settings have a flag each. Of many, those declared so; `--set NAME=VALUE` sets the others, and
    `--settings` lists them.

    Args:
        parser: parser of the command.
        command: whose settings are added.
        only: settings that the command has; None: all.
    """
    ours = {
        name: declared
        for name, declared in SETTINGS.items()
        if command in commands_of(declared) and (only is None or name in only)
    }
    many = len(ours) > _FEW
    flagged = [name for name, declared in ours.items() if not many or declared.metadata["flag"]]
    parser.add_argument("--config", metavar="FILE.toml", help="read settings from this file")
    _add_flags(parser, flagged)
    others = tuple(name for name in ours if name not in flagged)
    parser.set_defaults(assignable=others, flagged=tuple(flagged))
    if many:
        parser.add_argument(
            "--set",
            metavar="NAME=VALUE",
            action="extend",
            nargs="+",
            default=[],
            dest="assigned",
            help=f"set some of the {len(others)} other settings",
        )
        parser.add_argument(
            "--settings",
            action=_ListSettings,
            nargs="?",
            metavar="WORD",
            names=others,
            help="list the other settings, or those whose name or meaning has the word, and end",
        )
        parser.assignable = {name: ours[name].kind for name in others}


class _ListSettings(argparse.Action):
    """Prints the settings of a command that have no flag of their own, by group, and ends.

    Args:
        names: of the settings. A word after the flag chooses those whose name or meaning has it.
    """

    def __init__(self, *, names: Collection[str], **more: Any) -> None:
        super().__init__(**more)
        self._names = names

    def __call__(self, parser: Any, namespace: Any, word: Any, option: str | None = None) -> NoReturn:
        names = self._names if word is None else self._with(word)
        from rich.markup import escape
        from rich.padding import Padding

        from livectr.config.page import by_group, shown_default
        from livectr.console import make_console

        console = make_console()
        for title, group in by_group(names).items():
            console.print(f"[bold]{title}[/bold]")
            for declared in group:
                console.print(f"  {declared.name} [dim]({shown_default(declared)})[/dim]", highlight=False)
                console.print(
                    Padding(escape(declared.metadata["help"]), (0, 0, 0, 6), expand=False), highlight=False
                )
        raise SystemExit(0)

    def _with(self, word: str) -> list[str]:
        """Names of the settings that have a word. Raises ConfigError when there are none."""
        wanted = word.lower()
        if found := [n for n in self._names if wanted in f"{n} {SETTINGS[n].metadata['help']}".lower()]:
            return found
        close = difflib.get_close_matches(wanted, self._names, n=1, cutoff=0.5)
        hint = f"did you mean {close[0]!r}?" if close else "`--settings` lists all"
        raise ConfigError(f"--settings {word}: no setting has the word {word!r}; {hint}")


def _add_flags(parser: Any, names: Collection[str]) -> None:
    for name in names:
        declared = SETTINGS[name]
        flag, about = "--" + name.replace("_", "-"), declared.metadata["help"]
        default = "" if declared.default in (None, False, "") else f" [{declared.default}]"
        keywords: dict[str, Any] = dict(
            default=argparse.SUPPRESS, help=about + default, dest=f"setting_{name}"
        )
        if declared.kind is bool:
            parser.add_argument(flag, action=argparse.BooleanOptionalAction, **keywords)
        else:
            metavar = declared.metadata["example"] or "|".join(declared.among) or name.upper()
            parser.add_argument(flag, metavar=metavar, **keywords)


def add_log_flags(parser: Any, role: str) -> None:
    """Add the flags of the log to a command without other settings; `livectr.cli` starts its log.

    Args:
        parser: parser of the command.
        role: of the process, in JSON lines.
    """
    _add_flags(parser, ("log_format", "log_level"))
    parser.set_defaults(config=None, log_role=role)


def given_settings(given: argparse.Namespace) -> dict[str, Any]:
    """Setting → text, of the flags that were given and of `--set`.

    Raises:
        ConfigError: a `--set` is no NAME=VALUE, or the command has no such setting.
    """
    found = {n.removeprefix("setting_"): v for n, v in vars(given).items() if n.startswith("setting_")}
    for text in getattr(given, "assigned", []):
        name, equals, value = text.partition("=")
        if not equals or not name:
            raise ConfigError(f"--set {text}: say a name and a value, as in --set NAME=VALUE")
        if name in given.flagged:
            flag = name.replace("_", "-")
            both = f"--{flag} or --no-{flag}" if SETTINGS[name].kind is bool else f"--{flag}"
            raise ConfigError(f"--set {name}: this setting has a flag, say {both}")
        if name in SETTINGS and name not in given.assignable:
            raise ConfigError(f"--set {name}: this is a setting of {', '.join(commands_of(SETTINGS[name]))}")
        if name in FORMER:
            parse(name, value, "--set")
        if name not in SETTINGS:
            known = (*given.flagged, *given.assignable)
            close = difflib.get_close_matches(name.lower(), known, n=1, cutoff=0.5)
            hint = f"did you mean {close[0]!r}?" if close else "`--settings` lists them"
            raise ConfigError(f"--set {name}: there is no setting {name!r}; {hint}")
        found[name] = value
    return found


def settings_of(given: argparse.Namespace, *needed: str) -> tuple[Pipeline, Settings]:
    """Pipeline that the settings name, and all settings, with those of the pipeline file.

    Raises ConfigError when a `needed` setting or the pipeline is not given.
    """
    from livectr.ingest.pipeline import load_pipeline

    flags = given_settings(given)
    for name in SECRET:
        if name in flags and has_password(flags[name]):
            LOG.warning(
                "every user of this machine can read the password in --%s; set redis_password_file, "
                "or set LIVECTR_%s",
                name,
                name.upper(),
            )
    outer = resolve(flags, toml=given.config)
    for name in ("pipeline", *needed):
        if not getattr(outer, name):
            raise ConfigError(f"say --{name.replace('_', '-')}, or set LIVECTR_{name.upper()}.")
    assert outer.pipeline is not None
    pipeline = load_pipeline(outer.pipeline)
    return pipeline, resolve(flags, toml=given.config, pipeline=pipeline.settings)


def outer_setting(given: argparse.Namespace, name: str) -> Any:
    """Setting of flags, environment or file, before the pipeline file is read; the default after a mistake.

    `settings_of` tells the mistake later.
    """
    try:
        flags = {flag: value for flag, value in given_settings(given).items() if flag == name}
        return getattr(resolve(flags, toml=given.config), name)
    except ConfigError:
        return SETTINGS[name].default


def start_log(given: argparse.Namespace, role: str) -> None:
    """Write log messages to standard error, in the format that flags, environment or file ask for."""
    fields: dict[str, object] = {"release": __version__, "role": role}
    if int(os.environ.get("WORLD_SIZE", 1)) > 1:
        fields["rank"] = int(os.environ["RANK"])
    log_to_stderr(outer_setting(given, "log_format"), fields, outer_setting(given, "log_level"))
