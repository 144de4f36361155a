"""How a step is run; none of it changes the model but for rounding. Nothing heavy is imported here."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass
from typing import Literal, get_args

from livectr.kernels.errors import ConfigError

Mode = Literal["allreduce", "reducescatter"]
Travel = Literal["partial", "vectors", "rows"]
Wire = Literal["fp32", "bf16"]
Precision = Literal["fp32", "bf16"]
TRAVELS: tuple[Travel, ...] = get_args(Travel)


@dataclass(frozen=True)
class StepSettings:
    """How a step is run.

    aggregate: how ⊕ is run. travel: what of every field travels, "auto", one for all or by field name; see
        `trainer.des.route`. precision: of the networks' matrix products; see `models.precision`.
    """

    aggregate: Mode = "reducescatter"
    travel: Travel | Literal["auto"] | Mapping[str, Travel] = "auto"
    precision: Precision = "fp32"


def parse_travel(text: str) -> Travel | Literal["auto"] | dict[str, Travel]:
    """ "auto", a travel, or "field=travel,…" as text. Raises ConfigError."""
    words: dict[str, Travel | Literal["auto"]] = {"auto": "auto", **{way: way for way in TRAVELS}}
    if text in words:
        return words[text]
    ways: dict[str, Travel] = {}
    for part in text.split(","):
        name, _, way = part.partition("=")
        if way not in TRAVELS:
            raise ConfigError(
                f"travel is {text!r}; it must be auto, {', '.join(TRAVELS)}, or ways of fields as in "
                "user=rows,ad=vectors"
            )
        ways[name.strip()] = TRAVELS[TRAVELS.index(way)]
    return ways
