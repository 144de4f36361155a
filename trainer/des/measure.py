"""Sizes of a batch's fields, from which the field exchange is chosen."""

from __future__ import annotations

import numpy as np

from livectr.ingest.common_features import CommonFeatures
from livectr.ingest.plan.features import Features
from livectr.kernels.keys.unique import unique_segments
from livectr.trainer.comm.key_codec import encode
from livectr.trainer.des.exchange import Exchange
from livectr.trainer.placement.exchange_cost import Measured


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
