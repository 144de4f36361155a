"""Settings of a step; they change the model by rounding alone. Nothing heavy is imported here."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass
from typing import Literal, get_args

from livectr.system.errors import ConfigError

Mode = Literal["allreduce", "reducescatter"]
FieldExchange = Literal["partial", "vectors", "rows"]
Wire = Literal["fp32", "bf16"]
Precision = Literal["fp32", "bf16"]
Library = Literal["torch", "packed"]
Products = Literal["auto", "torch", "packed"]
ONLINE = 2048
"""Largest batch whose first and second order are learned example by example.

Half of the default batch, so that steps of full size are as fast as without.
"""
FIELD_EXCHANGES: tuple[FieldExchange, ...] = get_args(FieldExchange)


@dataclass(frozen=True)
class StepSettings:
    """Settings of a step.

    Args:
        aggregate: collective of ⊕.
        field_exchange: "auto", a field exchange for all fields, or by field name; see `trainer.des.route`.
        precision: of the networks' matrix products; see `models.precision`.
        choose_from: least examples of the batch that chooses an automatic field exchange; keys of smaller
            batches repeat less.
        online: largest batch whose first and second order are learned example by example
            (`trainer.des.online`); 0: none. A run has `ONLINE`.
        products: library of the networks' fp32 products; "auto": the one that suits this rank's CPU.
    """

    aggregate: Mode = "reducescatter"
    field_exchange: FieldExchange | Literal["auto"] | Mapping[str, FieldExchange] = "auto"
    precision: Precision = "fp32"
    choose_from: int = 1
    online: int = 0
    products: Products = "auto"

    @property
    def library(self) -> Library:
        """Library of fp32 products; compiles its kernel."""
        from livectr.models.library import suited  # with torch, which settings do without

        return suited() if self.products == "auto" else self.products


def parse_field_exchange(text: str) -> FieldExchange | Literal["auto"] | dict[str, FieldExchange]:
    """Parse "auto", a field exchange, or "field=exchange,…". Raises ConfigError."""
    if text == "auto":
        return "auto"
    if text in FIELD_EXCHANGES:
        return FIELD_EXCHANGES[FIELD_EXCHANGES.index(text)]
    by_field: dict[str, FieldExchange] = {}
    for part in text.split(","):
        name, _, exchange = part.partition("=")
        if exchange not in FIELD_EXCHANGES:
            raise ConfigError(
                f"field_exchange is {text!r}; it must be auto, {', '.join(FIELD_EXCHANGES)}, "
                "or by field as in user=rows,ad=vectors"
            )
        by_field[name.strip()] = FIELD_EXCHANGES[FIELD_EXCHANGES.index(exchange)]
    return by_field
