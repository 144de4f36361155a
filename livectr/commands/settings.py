"""Settings of a command: their flags, and the options objects that are made of them."""

from __future__ import annotations

import argparse
import logging
import os
from collections.abc import Collection
from typing import TYPE_CHECKING, Any

from livectr import __version__
from livectr.config.groups import GROUPS
from livectr.config.settings import FIELDS, SECRET, TYPES, Settings
from livectr.config.sources import resolve
from livectr.secrets import has_password
from livectr.system.errors import ConfigError
from livectr.system.logs import log_to_stderr

if TYPE_CHECKING:
    from livectr.ingest.pipeline import Pipeline

LOG = logging.getLogger(__name__)

_FEW = 15
"""Flags of a command that need no groups."""


def add_settings(parser: Any, command: str, only: Collection[str] | None = None) -> None:
    """Add a flag for every setting of the command. An absent flag leaves the other sources alone.

    Args:
        only: settings that get a flag; None: all of the command.
    """
    ours = [
        name for name, field in FIELDS.items()
        if command in field.metadata["commands"] and (only is None or name in only)
    ]  # fmt: skip
    for title, names in GROUPS.items():
        group = parser.add_argument_group(title) if len(ours) > _FEW else parser
        if "config" in names:
            group.add_argument("--config", metavar="FILE.toml", help="read settings from this file")
        _add_flags(group, [name for name in names if name in ours])


def _add_flags(group: Any, names: Collection[str]) -> None:
    for name in names:
        field = FIELDS[name]
        flag, about = "--" + name.replace("_", "-"), field.metadata["help"]
        default = "" if field.default in (None, False) else f" [{field.default}]"
        keywords: dict[str, Any] = dict(
            default=argparse.SUPPRESS, help=about + default, dest=f"setting_{name}"
        )
        if TYPES[name] is bool:
            group.add_argument(flag, action=argparse.BooleanOptionalAction, **keywords)
        else:
            group.add_argument(flag, metavar=field.metadata["example"] or name.upper(), **keywords)


def add_log_flags(parser: Any, role: str) -> None:
    """Add the flags of the log to a command without other settings; `livectr.cli` starts its log.

    Args:
        role: of the process, in JSON lines.
    """
    _add_flags(parser, ("log_format", "log_level"))
    parser.set_defaults(config=None, log_role=role)


def given_settings(given: argparse.Namespace) -> dict[str, Any]:
    """Setting → text of its flag, of the flags that were given."""
    return {n.removeprefix("setting_"): v for n, v in vars(given).items() if n.startswith("setting_")}


def settings_of(given: argparse.Namespace, *needed: str) -> tuple[Pipeline, Settings]:
    """Pipeline that the settings name, and all settings, with those of the pipeline file.

    Raises ConfigError when a `needed` setting or the pipeline is not given.
    """
    from livectr.ingest.pipeline import load_pipeline

    flags = given_settings(given)
    for name in SECRET:
        if name in flags and has_password(flags[name]):
            LOG.warning(
                "every user of this machine can read the password in --%s; say --redis-password-file FILE, "
                "or set LIVECTR_%s",
                name,
                name.upper(),
            )
    outer = resolve(flags, toml=given.config)
    for name in ("pipeline", *needed):
        if getattr(outer, name) is None:
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
        return FIELDS[name].default


def start_log(given: argparse.Namespace, role: str) -> None:
    """Write log messages to standard error, in the format that flags, environment or file ask for."""
    fields: dict[str, object] = {"release": __version__, "role": role}
    if int(os.environ.get("WORLD_SIZE", 1)) > 1:
        fields["rank"] = int(os.environ["RANK"])
    log_to_stderr(outer_setting(given, "log_format"), fields, outer_setting(given, "log_level"))
