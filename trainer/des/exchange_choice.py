"""Field exchange of a run: forced by the settings, read from a checkpoint, or chosen by the first batch."""

from __future__ import annotations

from collections.abc import Mapping, Sequence

import torch
from torch import Tensor

from livectr.kernels.errors import ConfigError
from livectr.trainer.step_settings import FIELD_EXCHANGES, FieldExchange

FIELD_EXCHANGE_KEY = "des.field_exchange"
"""Checkpoint key: int16[1 + F], number of ranks and exchange of every field (index in FIELD_EXCHANGES)."""


def forced_exchange(
    setting: FieldExchange | Mapping[str, FieldExchange], fields: Sequence[str]
) -> list[FieldExchange]:
    """Exchange of every field by the setting: one for all, or by field name (others: `partial`).

    Raises:
        ConfigError: the setting names a field that does not exist.
    """
    if isinstance(setting, str):
        return [setting] * len(fields)
    if unknown := sorted(set(setting) - set(fields)):
        raise ConfigError(
            f"field_exchange names {unknown[0]!r}, which is no field; fields: {', '.join(fields)}"
        )
    return [setting.get(name, "partial") for name in fields]


def saved_exchange(state: Mapping[str, Tensor], world: int) -> list[FieldExchange] | None:
    """Exchange in a checkpoint; None where there is none, or one of another number of ranks."""
    saved = state[FIELD_EXCHANGE_KEY].tolist() if FIELD_EXCHANGE_KEY in state else []
    return [FIELD_EXCHANGES[number] for number in saved[1:]] if saved and saved[0] == world else None


def exchange_state(field_exchange: Sequence[FieldExchange], world: int) -> dict[str, Tensor]:
    """Entry of a checkpoint that `saved_exchange` reads."""
    saved = [world, *(FIELD_EXCHANGES.index(exchange) for exchange in field_exchange)]
    return {FIELD_EXCHANGE_KEY: torch.tensor(saved, dtype=torch.int16)}
