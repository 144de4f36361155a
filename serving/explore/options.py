"""Setting `explore`: a share of the requests is answered in a drawn order, so that logs can judge others."""

from __future__ import annotations

import math
from dataclasses import dataclass, fields

from livectr.serving.canary import CANARY, STABLE
from livectr.system.errors import ConfigError

FORM = "share=SHARE,temperature=T[,top=N][,seed=N][,side=stable|canary]"
MOST_PLACES = 100
"""Largest `top`."""


@dataclass(frozen=True)
class ExploreOptions:
    """Setting `explore`.

    Args:
        share: of the requests that are answered in a drawn order, above 0 and at most 1.
        temperature: T > 0 of the Plackett-Luce distribution with weights value^(1/T): 0.1 seldom leaves the
            order of the values, and with 10 nearly all orders are equally likely.
        top: candidates that change places: the best ones, at most `MOST_PLACES`.
        seed: of the draws, which depend on it and the request id alone.
        side: that explores, STABLE or CANARY; empty: both.
    """

    share: float
    temperature: float
    top: int = 10
    seed: int = 0
    side: str = ""

    @staticmethod
    def parse(text: str) -> ExploreOptions:
        """Parse `share=0.1,temperature=0.5,top=10,seed=1,side=stable`.

        Raises:
            ConfigError: the text has another form, or a value cannot be used.
        """
        known = [field.name for field in fields(ExploreOptions)]
        values: dict[str, str] = {}
        for part in text.split(","):
            name, equals, value = part.partition("=")
            if not (equals and value and name in known) or name in values:
                raise ConfigError(f"explore is {text!r}, but must be {FORM}; {part!r} is wrong")
            values[name] = value
        if missing := [name for name in ("share", "temperature") if name not in values]:
            raise ConfigError(f"explore is {text!r}, but must be {FORM}; {missing[0]}= is missing")
        side = values.get("side", "")
        if side not in ("", STABLE, CANARY):
            raise ConfigError(f"explore: side is {side!r}, but must be {STABLE} or {CANARY}")
        return ExploreOptions(
            _number("share", values["share"], most=1.0),
            _number("temperature", values["temperature"], most=100.0),
            _whole("top", values.get("top", "10"), 1, MOST_PLACES),
            _whole("seed", values.get("seed", "0"), 0, (1 << 63) - 1),
            side,
        )

    def __str__(self) -> str:
        """Form that `parse` reads, without the side."""
        return f"share={self.share!r},temperature={self.temperature!r},top={self.top},seed={self.seed}"


def _number(name: str, text: str, *, most: float) -> float:
    try:
        value = float(text)
    except ValueError:
        value = math.nan
    if not 0 < value <= most:
        raise ConfigError(f"explore: {name} is {text!r}, but must be a number above 0 and at most {most:g}")
    return value


def _whole(name: str, text: str, least: int, most: int) -> int:
    try:
        value = int(text)
    except ValueError:
        value = least - 1
    if not least <= value <= most:
        raise ConfigError(f"explore: {name} is {text!r}, but must be a whole number from {least} to {most}")
    return value
