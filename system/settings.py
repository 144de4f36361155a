"""Declaration of settings.

An options dataclass declares each field with `setting`: default, sentence, limits, the group in which a user
looks for it, whether it has a flag of its own. The parser of flags, the readers of TOML and environment, the
checks, `--help` and the table of docs/configuration.md walk these declarations.

Units are in the names: `*_ms` are int milliseconds, `*_s` float seconds, `*_bytes` bytes.
"""

from __future__ import annotations

import dataclasses
import inspect
import math
import numbers
import os
from functools import cache
from typing import Any, Literal, TypedDict, Unpack, get_args, get_origin, get_type_hints

from livectr.system.errors import ConfigError


class Limits(TypedDict, total=False):
    """Further parts of a declaration.

    Attributes:
        least, most, above: limits of a number.
        scheme: begins of a URL, one of which it must have.
        among: values that a text may have; those of a Literal need not be said.
        example: metavariable of its flag.
        flag: a flag of its own in commands with many settings; the other settings are set by `--set`.
        commands: sub-commands that have it, beside or in place of those of its class (livectr.config).
        memory: a text such as "8GiB" is an amount of bytes, as for a name that ends in _bytes.
        see: page and heading that explain it, such as "operate.md#versions".
    """

    least: float
    most: float
    above: float
    scheme: tuple[str, ...]
    among: tuple[str, ...]
    example: str
    flag: bool
    commands: tuple[str, ...]
    memory: bool
    see: str


_DEFAULTS: dict[str, Any] = dict(
    least=None, most=None, above=None, scheme=(), among=(), example="", flag=False, commands=(), memory=False,
    see="",
)  # fmt: skip


def setting(default: Any, help: str, group: str, **limits: Unpack[Limits]) -> Any:
    """Field of an options dataclass.

    Args:
        default: value when no source gives any.
        help: its sentence, without capital and full stop.
        group: title under which `--help` and docs/configuration.md list it.
        limits: see `Limits`.
    """
    return dataclasses.field(default=default, metadata={"help": help, "group": group, **_DEFAULTS, **limits})


@dataclasses.dataclass(frozen=True)
class Setting:
    """A declared setting.

    Attributes:
        owner: class that declares it.
        kind: bool, int, float or str.
        optional: it may be None.
        among: values that it may have; (): any.
        metadata: help, group and the keys of `Limits`.
    """

    name: str
    owner: type
    kind: type
    optional: bool
    among: tuple[str, ...]
    default: Any
    metadata: dict[str, Any]

    @property
    def in_bytes(self) -> bool:
        """Tell if its number is of bytes."""
        return self.name.endswith("_bytes") or bool(self.metadata["memory"])

    def _of_other_kind(self, value: Any) -> str:
        """Kind that a value should have, such as "a whole number"; "" if it has it."""
        if self.kind is bool:
            return "" if isinstance(value, bool) else "true or false"
        if self.kind is str:
            return "" if isinstance(value, str | os.PathLike) else "a text"
        if isinstance(value, bool) or not isinstance(value, numbers.Real):
            return "a number"
        whole = self.kind is float or isinstance(value, numbers.Integral)
        return ("" if math.isfinite(value) else "a finite number") if whole else "a whole number"

    def trouble(self, value: Any) -> str:
        """Limit that a value breaks, such as "must be at least 1"; "" if it breaks none."""
        if value is None:
            return "" if self.optional else "must have a value"
        if wanted := self._of_other_kind(value):
            return f"must be {wanted}"
        limits = self.metadata
        if limits["least"] is not None and value < limits["least"]:
            return f"must be at least {_shown(limits['least'])}"
        if limits["most"] is not None and value > limits["most"]:
            return f"must be at most {_shown(limits['most'])}"
        if limits["above"] is not None and value <= limits["above"]:
            return f"must be more than {_shown(limits['above'])}"
        if self.among and value not in self.among:
            return f"must be {' or '.join(self.among)}"
        return ""


def _shown(limit: float) -> str:
    return f"{limit:g}" if isinstance(limit, float) else str(limit)


@cache
def settings_of_class(options: type) -> dict[str, Setting]:
    """Name → setting, of the fields that an options dataclass declares or inherits, bases first."""
    hints = get_type_hints(options)
    found = {}
    for field in dataclasses.fields(options):
        owner = next(base for base in options.__mro__ if field.name in inspect.get_annotations(base))
        parts = get_args(hints[field.name])
        optional = type(None) in parts
        union = [part for part in parts if part is not type(None)] if optional else [hints[field.name]]
        (kind,) = union
        literal = get_origin(kind) is Literal
        found[field.name] = Setting(
            field.name,
            owner,
            str if literal else kind,
            optional,
            get_args(kind) if literal else field.metadata["among"],
            field.default,
            dict(field.metadata),
        )
    return found


def check(options: Any) -> None:
    """Raise ConfigError for a value of an options object that is out of its setting's limits."""
    kind: type = type(options)
    for name, declared in settings_of_class(kind).items():
        if trouble := declared.trouble(getattr(options, name)):
            raise ConfigError(f"{name} is {getattr(options, name)!r}, but {trouble}")
