"""Sweep of a complete version: look-up rows and histories that Redis has and the version lacks are removed.

A delta names who has left since the version before. That is not known after a crash, after another run, or
when the list grew too long while Redis was away. So a complete version is compared with all that Redis holds.
"""

from __future__ import annotations

import logging
from collections.abc import Mapping, Sequence

import numpy as np
import numpy.typing as npt

from livectr.store.layout import key_of
from livectr.trainer.publish.redis_store import RedisStore
from livectr.trainer.publish.values import Values

LOG = logging.getLogger(__name__)
I64 = npt.NDArray[np.int64]


def sweep(store: RedisStore, kept: Mapping[str, I64]) -> int:
    """Remove all look-up rows and histories but those of some keys.

    Args:
        store: that has the version.
        kept: "lookup:TOPIC" or "history:NAME" → keys int64[n], rising.

    Returns:
        Number of keys in Redis that were removed.
    """
    removed = 0
    for names in store.client.scan_all(store.space.value_pattern):
        others = _others(names, kept)
        store.rows.write_values(others)
        removed += len(others)
    if removed:
        LOG.info("removed %d look-up rows and histories that no version has any more", removed)
    return removed


def _others(names: Sequence[bytes], kept: Mapping[str, I64]) -> Values:
    """Values to remove: those whose key is not kept under their name."""
    keys = np.array([key_of(name) for name in names], np.int64)
    kinds = [name[:-9].partition(b"}:")[2].decode() for name in names]
    left = np.ones(len(names), np.bool_)
    for kind in set(kinds) & kept.keys():
        own = np.array([one == kind for one in kinds])
        known = kept[kind]
        at = np.minimum(np.searchsorted(known, keys[own]), max(0, len(known) - 1))
        left[own] = known[at] != keys[own] if len(known) else True
    places = np.flatnonzero(left)
    return Values(keys[places], [names[i] for i in places.tolist()], [None] * len(places))
