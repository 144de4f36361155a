"""Settings of a step; they change the model by rounding alone. Nothing heavy is imported here."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass
from typing import Literal, get_args

from livectr.kernels.errors import ConfigError

Mode = Literal["allreduce", "reducescatter"]
FieldExchange = Literal["partial", "vectors", "rows"]
Wire = Literal["fp32", "bf16"]
Precision = Literal["fp32", "bf16"]
TRAVELS: tuple[FieldExchange, ...] = get_args(FieldExchange)


@dataclass(frozen=True)
class StepSettings:
    """Settings of a step.

    aggregate: how ⊕ is run. travel: what of every field travels, "auto", one for all or by field name; see
        `trainer.des.route`. precision: of the networks' matrix products; see `models.precision`.
    """

    aggregate: Mode = "reducescatter"
    field_exchange: FieldExchange | Literal["auto"] | Mapping[str, FieldExchange] = "auto"
    precision: Precision = "fp32"


def parse_field_exchange(text: str) -> FieldExchange | Literal["auto"] | dict[str, FieldExchange]:
    """ "auto", a travel, or "field=travel,…" as text. Raises ConfigError."""
    words: dict[str, FieldExchange | Literal["auto"]] = {"auto": "auto", **{way: way for way in TRAVELS}}
    if text in words:
        return words[text]
    ways: dict[str, FieldExchange] = {}
    for part in text.split(","):
        name, _, way = part.partition("=")
        if way not in TRAVELS:
            raise ConfigError(
                f"travel is {text!r}; it must be auto, {', '.join(TRAVELS)}, or ways of fields as in "
                "user=rows,ad=vectors"
            )
        ways[name.strip()] = TRAVELS[TRAVELS.index(way)]
    return ways
