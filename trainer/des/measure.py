"""What a batch's fields are like: the numbers that a choice of what travels is made from."""

from __future__ import annotations

import numpy as np

from livectr.ingest.common_features import CommonFeatures
from livectr.ingest.plan.features import Features
from livectr.kernels.keys.unique import unique_segments
from livectr.trainer.comm.key_codec import encode
from livectr.trainer.des.exchange import Exchange
from livectr.trainer.placement.exchange_cost import Measured


def measure_batch(exchange: Exchange, features: Features | CommonFeatures) -> Measured:
    """Measures the batch that all ranks' examples make. Collective."""
    mine = exchange.read(features)
    sizes = np.array([len(keys) for keys in mine.keys], np.int64)
    keys = np.concatenate([*mine.keys, np.empty(0, np.int64)])
    unique = np.diff(unique_segments(keys, np.r_[0, np.cumsum(sizes)]).bounds)
    encoded = np.diff(encode(mine.segments).bounds)
    told = exchange.collectives.all_gather(np.concatenate([[features.rows], encoded, unique]), "sizes")
    total = told.sum(axis=0).astype(np.float64)
    return Measured(int(total[0]), total[1 : 1 + len(sizes)], total[1 + len(sizes) :])
