"""Parsing of one value: types, durations, amounts of memory, limits."""

import difflib
import os
import re
from typing import Any

from livectr.config.redis_urls import check_redis_url
from livectr.config.settings import SECRET, SETTINGS
from livectr.system.byte_units import parse_bytes
from livectr.system.durations import duration_ms
from livectr.system.errors import ConfigError
from livectr.system.settings import Setting

_AGES = 'keep_ages names the ages of the checkpoints to keep, such as "5m,1h,1d", and keep_bytes bounds them'
FORMER = {
    "keep_versions": _AGES,
    "keep_every_s": _AGES,
    "batch_min": "batch_ramp is the size of the first batches",
    "online_batch": "leave it out: batches of up to 2,048 examples are learned example by example",
}
"""Setting of an earlier release → sentence on what replaces it."""


def nearest(name: str, known: Any) -> str:
    """Hint for a misspelled name: the closest known name, or all of them."""
    close = difflib.get_close_matches(name, list(known), n=1, cutoff=0.5)
    return f"did you mean {close[0]!r}?" if close else f"known are {', '.join(sorted(known))}."


def parse(name: str, value: Any, where: str) -> Any:
    """Convert and check the value of a setting.

    Args:
        name: of the setting.
        value: text, or a value of TOML or Python.
        where: source of the value, for errors.

    Raises:
        ConfigError: there is no such setting, or the value has another type or is out of its limits.
    """
    if name in FORMER:
        raise ConfigError(f"{where}: {name} is no setting any more; {FORMER[name]}")
    if name not in SETTINGS:
        raise ConfigError(f"{where}: there is no setting {name!r}; {nearest(name, SETTINGS)}")
    declared = SETTINGS[name]
    if value is None:
        if declared.optional:
            return None
        raise ConfigError(f"{where}: {name} needs a value.")
    try:
        parsed = _convert(declared, value)
    except ValueError as error:
        raise ConfigError(f"{where}: {name} is {value!r}, but {error}.") from None
    if trouble := declared.trouble(parsed):
        raise ConfigError(f"{where}: {name} is {value!r}, but {trouble}.")
    scheme = declared.metadata["scheme"]
    if name in SECRET:
        check_redis_url(str(parsed), f"{where}: {name}", scheme)
    elif scheme and not str(parsed).startswith(scheme):
        raise ConfigError(f"{where}: {name} is {value!r}, but must begin with {' or '.join(scheme)}.")
    return parsed


def _convert(declared: Setting, value: Any) -> Any:
    name, kind = declared.name, declared.kind
    unit = 1000.0 if name.endswith("_s") else 1.0
    timed = name.endswith(("_s", "_ms"))
    if isinstance(value, str) and timed and re.search(r"[a-z]", value):
        try:
            value = duration_ms(value, name) / unit
        except ConfigError:
            raise ValueError('must be a number or a duration like "500ms", "10s", "14d"') from None
    if isinstance(value, str) and declared.in_bytes and re.search(r"[a-zA-Z]\s*$", value):
        try:
            value = parse_bytes(value, name)
        except ConfigError:
            raise ValueError('must be bytes or an amount of memory like "512MiB", "8GiB"') from None
    if kind is bool:
        words = {"true": True, "1": True, "yes": True, "false": False, "0": False, "no": False}
        if isinstance(value, bool):
            return value
        if isinstance(value, str) and value.lower() in words:
            return words[value.lower()]
        raise ValueError("must be true or false")
    if kind is str:
        if isinstance(value, str | os.PathLike) and str(value):
            return str(value)
        raise ValueError("must be a text that is not empty")
    if isinstance(value, bool) or not isinstance(value, str | int | float):
        raise ValueError("must be a number")
    try:
        number = float(value)
    except ValueError:
        raise ValueError("must be a number") from None
    if not abs(number) < 2**63:  # also infinity and not-a-number
        raise ValueError("must be a number below 2^63")
    if kind is int:
        if number != int(number):
            raise ValueError("must be a whole number")
        return (
            int(value) if isinstance(value, int | str) and re.fullmatch(r"-?\d+", str(value)) else int(number)
        )
    return number
