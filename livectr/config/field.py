"""Declaration of a setting: default, help, the commands that have its flag, limits.

Units are in the names: `*_ms` are int milliseconds, `*_s` float seconds. A value may be a plain number in
that unit or a duration: "500ms", "10s", "2m", "1h", "14d". Memory is in bytes, or "512MiB", "8GiB".
"""

import dataclasses
from typing import Any, TypedDict, Unpack

from livectr.store.redis_url import SCHEMES


class Limits(TypedDict, total=False):
    """Values that a setting may have, and the metavariable of its flag."""

    least: float
    most: float
    above: float
    scheme: tuple[str, ...]
    among: tuple[str, ...]
    example: str


NO_LIMITS: dict[str, Any] = dict(least=None, most=None, above=None, scheme=(), among=(), example="")


def setting(default: Any, help: str, *, commands: tuple[str, ...], **limits: Unpack[Limits]) -> Any:
    """Field of Settings.

    Args:
        default: value when no source gives any.
        help: text of `--help`.
        commands: sub-commands that have its flag.
        limits: checked by `livectr.config.parsing.parse`.
    """
    metadata = {"help": help, "commands": commands, **NO_LIMITS, **limits}
    return dataclasses.field(default=default, metadata=metadata)


TRAIN, SERVE, INSPECT = ("train",), ("rank", "prerank", "recommend"), ("inspect",)
VERIFY = ("verify",)
VERSIONS = ("versions",)
EVERY = TRAIN + SERVE
RANKS = ("rank", "recommend")
REDIS = SCHEMES
