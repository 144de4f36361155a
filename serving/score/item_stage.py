"""Partial results of a request's items: kept ones from memory, others from the items' features."""

from __future__ import annotations

import threading
import time
from collections.abc import Callable
from dataclasses import dataclass

import numpy as np
import pyarrow as pa

from livectr.ingest.language.keys import key_of
from livectr.kernels.network.forward import Kept
from livectr.serving import metrics
from livectr.serving.errors import AnswerError
from livectr.serving.request.parse import GivenColumns
from livectr.serving.score.item_partials import ItemPartials
from livectr.serving.score.look_up import VersionLookup
from livectr.serving.score.plan_stages import PlanStages
from livectr.serving.score.rank_scorer import rank_scorer
from livectr.serving.version.follower import VersionFollower
from livectr.serving.version.loader import ModelVersion
from livectr.serving.version.near_cache import NearCache, SupersededError
from livectr.store.layout import I64
from livectr.store.redis_errors import REDIS_ERRORS

_PART = 512
"""Items that are computed at a time ahead of requests."""
_SHARE = 0.1
"""Largest share of a core's time that is spent on partial results ahead of requests."""


@dataclass(frozen=True)
class _Store:
    """Partial results that hold for a version and its rows."""

    version: ModelVersion
    rows: NearCache
    partials: ItemPartials


class ItemStage:
    """Finds partial results of items. Thread-safe.

    Args:
        column: column of the impression stream that names the item.
        stages: enrich, extract and look up of the items' features.
        max_bytes: memory of kept partial results.
        ttl_s: seconds after which they are computed again though the version is the same.
    """

    def __init__(
        self,
        column: str,
        stages: PlanStages,
        follower: VersionFollower,
        *,
        max_bytes: int,
        ttl_s: float,
    ) -> None:
        self._stages = stages
        self._follower = follower
        self.column = column
        self._max_bytes = max_bytes
        self._ttl_s = ttl_s
        self._store: _Store | None = None
        self._lock = threading.Lock()
        self._swapped_at = time.monotonic()
        follower.on_served(self._prepare)

    def completed(
        self,
        lookup: VersionLookup,
        store: ItemPartials,
        items: pa.Array,
        keys: I64,
        addresses: I64,
        row_name: Callable[[int], str],
    ) -> tuple[Kept, bool]:
        """Compute the partial results of n items that are not kept.

        Args:
            lookup: version that answers.
            store: of this version.
            items: values of the item column.
            keys: i64[n], of the items.
            addresses: i64[n], of the kept partial results; 0: there is none.
            row_name: name in the request of the row with a given index, for error messages.

        Returns:
            The partial results; False if look-up rows of items may be missing.

        Raises:
            AnswerError: the status that the client receives.
        """
        missing = np.flatnonzero(addresses == 0)
        metrics.ITEM_PARTIALS.labels("kept").inc(len(keys) - len(missing))
        metrics.ITEM_PARTIALS.labels("computed").inc(len(missing))
        unique, first, places = np.unique(keys[missing], return_index=True, return_inverse=True)
        chosen = missing[first]
        values, complete = self._computed(
            lookup, store, items.take(pa.array(chosen)), unique, lambda i: row_name(int(chosen[i]))
        )
        addresses[missing] = values.addresses[places]
        return Kept(addresses, (store.partials.values, *values.arrays)), complete

    def _computed(
        self,
        lookup: VersionLookup,
        store: ItemPartials,
        items: pa.Array,
        keys: I64,
        row_name: Callable[[int], str] | None,
    ) -> tuple[Kept, bool]:
        """Compute partial results of distinct items, and keep them if no row can be missing.

        Args:
            lookup: version that answers.
            store: of this version.
            items: values of the item column, n.
            keys: i64[n], distinct.
            row_name: as in `completed`; None: no request asked for them.
        """
        columns = GivenColumns(len(items), {}, {self.column: items}, 0)
        inputs = self._stages.inputs(lookup, columns, {}, row_name or str)
        partials = rank_scorer(lookup.version).item_partials(inputs.vectors, inputs.dense)
        if inputs.complete and lookup.complete:
            store.add(keys, items, partials, asked=row_name is not None)
        return Kept.of(partials), inputs.complete

    def partials(self, lookup: VersionLookup) -> ItemPartials:
        """Store of a version; for a request of a version that was replaced, an empty one that takes none."""
        held = self._store
        if held is None or held.version is not lookup.version or held.rows is not lookup.cache:
            return self._renewed(lookup, held)
        fresh = time.monotonic() - held.partials.made_at < self._ttl_s
        return held.partials if fresh else self._renewed(lookup, held)

    def _renewed(self, lookup: VersionLookup, before: _Store | None) -> ItemPartials:
        """As `partials`, where the store before does not serve."""
        size = rank_scorer(lookup.version).partial_size
        with self._lock:
            if self._store is before:
                version, rows = self._follower.served()
                if version is not lookup.version or rows is not lookup.cache:
                    return ItemPartials(size, 0)
                kept = None if before is None else before.partials
                made = _Store(lookup.version, lookup.cache, ItemPartials(size, self._max_bytes, kept))
                self._store = made
                return made.partials
        return self.partials(lookup)  # another request was first

    def _prepare(self, version: ModelVersion, rows: NearCache) -> None:
        """Compute the partial results of items that requests are likely to ask for; the follower's thread."""
        now = time.monotonic()
        time_s, self._swapped_at = _SHARE * (now - self._swapped_at), now
        lookup = VersionLookup(version, rows, self._follower.reader)
        store = self.partials(lookup)
        items = store.wanted()
        if items is None:
            return
        for start in range(0, len(items), _PART):
            if time.monotonic() - now > time_s or self._follower.current is not version:
                return
            part = items[start : start + _PART]
            keys = key_of(part)
            absent = np.flatnonzero(store.partials.find(keys) == 0)
            if len(absent):
                try:
                    self._computed(lookup, store, part.take(pa.array(absent)), keys[absent], None)
                except (SupersededError, AnswerError, *REDIS_ERRORS):
                    return  # requests compute what they need, and report it
                metrics.ITEM_PARTIALS.labels("ahead").inc(len(absent))
