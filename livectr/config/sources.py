"""Sources of settings: pipeline file, TOML file, environment variables, flags; the later wins."""

import os
import re
import tomllib
from collections.abc import Mapping
from pathlib import Path
from typing import Any

from livectr.config.parsing import nearest, parse
from livectr.config.settings import SECRET, SETTINGS, Settings
from livectr.secrets import read_password, with_password
from livectr.system.errors import ConfigError, reason_of

OTHER_ENVIRONMENT = ("LIVECTR_CACHE_DIR", "LIVECTR_KERNELS", "LIVECTR_SANITIZE", "LIVECTR_THREADS")
"""Variables of kernels.runtime.compiler, which are no settings."""
SERVICE_LINK = re.compile(r"_(SERVICE_HOST|SERVICE_PORT(_\w+)?|PORT|PORT_\d+_(TCP|UDP|SCTP)(_\w+)?)$")
"""Kubernetes describes a Service "livectr-rank" to every pod as LIVECTR_RANK_SERVICE_HOST and so on."""


def from_toml(path: str | Path) -> dict[str, Any]:
    """Settings of a TOML file: `name = value` lines, without tables."""
    try:
        values = tomllib.loads(Path(path).read_text())
    except OSError as error:
        raise ConfigError(f"The configuration file {path} cannot be read: {reason_of(error)}.") from None
    except (tomllib.TOMLDecodeError, UnicodeDecodeError) as error:
        raise ConfigError(f"The configuration file {path} is not TOML: {error}.") from None
    for name, value in values.items():
        if isinstance(value, dict):
            raise ConfigError(
                f"{path}: [{name}] is a table, and settings are in none; {_instead(name, value)}"
            )
    return {name: parse(name, value, str(path)) for name, value in values.items()}


def _instead(table: str, values: Mapping[str, Any]) -> str:
    """Hint of what replaces a table of TOML."""
    if table in SETTINGS:
        return f"write {table} = … in its place"
    for name in values:
        if name not in SETTINGS:
            return f"there is no setting {name!r}; {nearest(name, SETTINGS)}"
    return f"write {', '.join(values)} without it" if values else nearest(table, SETTINGS)


def from_environment(environment: Mapping[str, str]) -> dict[str, Any]:
    """Settings of `LIVECTR_<NAME>` variables. Raises ConfigError for an unknown name with that prefix."""
    values = {}
    for variable, text in environment.items():
        name = variable.removeprefix("LIVECTR_").lower()
        if not variable.startswith("LIVECTR_") or variable in OTHER_ENVIRONMENT:
            continue
        if name not in SETTINGS and SERVICE_LINK.search(variable):
            continue
        values[name] = parse(name, text, f"environment variable {variable}")
    return values


def resolve(
    flags: Mapping[str, Any],
    *,
    toml: str | Path | None = None,
    environment: Mapping[str, str] | None = None,
    pipeline: Mapping[str, Any] | None = None,
) -> Settings:
    """Settings of all sources. The URLs get the password of `redis_password_file`.

    Args:
        flags: setting → value, of the flags that were given.
        toml: path of the TOML file.
        environment: variables; None: those of the process.
        pipeline: settings of the pipeline file.

    Raises:
        ConfigError: a name is unknown, or a value does not fit.
    """
    values: dict[str, Any] = {}
    values.update({n: parse(n, v, "settings of the pipeline") for n, v in (pipeline or {}).items()})
    values.update(from_toml(toml) if toml else {})
    values.update(from_environment(os.environ if environment is None else environment))
    values.update({n: parse(n, v, "command line") for n, v in flags.items()})
    if values.get("redis_password_file") is not None:
        password = read_password(values["redis_password_file"])
        for name in SECRET:
            url = values.get(name, SETTINGS[name].default)
            values[name] = url and with_password(url, password)
    return Settings(**values)
