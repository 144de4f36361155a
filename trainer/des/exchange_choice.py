"""Field exchange of a run: forced by the settings, read from a checkpoint, or chosen by a batch."""

from __future__ import annotations

from collections.abc import Mapping, Sequence

import numpy as np
import safetensors.torch
import torch
from torch import Tensor

from livectr.ingest.common_features import CommonFeatures
from livectr.ingest.plan.features import Features
from livectr.kernels.errors import ConfigError
from livectr.kernels.keys.unique import unique_segments
from livectr.trainer.comm.collectives import Collectives
from livectr.trainer.comm.key_codec import encode
from livectr.trainer.des.exchange import Exchange
from livectr.trainer.placement.exchange_cost import Measured
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


def gather_state(collectives: Collectives, state: Mapping[str, Tensor]) -> dict[str, Tensor]:
    """Merge the tensors of all ranks by name; every rank gets all of them. Collective."""
    packed = safetensors.torch.save(dict(state))
    sizes = collectives.all_gather(np.array([len(packed)], np.int64), "state")[:, 0].tolist()
    words = [-(-size // 4) for size in sizes]
    own = np.frombuffer(packed.ljust(4 * words[collectives.rank], b"\0"), np.int32)
    shares = collectives.all_gather_ragged(own, words, "state")
    merged: dict[str, Tensor] = {}
    for share, size in zip(shares, sizes, strict=True):
        merged |= safetensors.torch.load(share.tobytes()[:size])
    return merged


def measure_batch(exchange: Exchange, features: Features | CommonFeatures) -> Measured:
    """Measure the batch that all ranks' examples make. Collective."""
    own = exchange.read(features)
    sizes = np.array([len(keys) for keys in own.keys], np.int64)
    keys = np.concatenate([*own.keys, np.empty(0, np.int64)])
    unique = np.diff(unique_segments(keys, np.r_[0, np.cumsum(sizes)]).bounds)
    encoded = np.diff(encode(own.segments).bounds)
    every_rank = exchange.collectives.all_gather(np.concatenate([[features.rows], encoded, unique]), "sizes")
    total = every_rank.sum(axis=0).astype(np.float64)
    return Measured(int(total[0]), total[1 : 1 + len(sizes)], total[1 + len(sizes) :])
