"""Look up → score → reply in one compiled call: of candidates to rank, or of a user's best items.

features ─► kernels.request.score, kernels.request.select ─► scores, and the packed reply
                  │ a row, an item's partial result or its vector is not in memory
                  └─► it is read or computed, and the call is made again with it
"""

from __future__ import annotations

import functools
from collections.abc import Callable
from dataclasses import dataclass

import numpy as np
import numpy.typing as npt
import pyarrow as pa

from livectr.ingest.extract.sharing import SharedFeatures
from livectr.kernels.request.look_up import DONE, LATE, MISSING_ROWS, SUPERSEDED
from livectr.kernels.request.score import Items, Revenues, ScoreCall
from livectr.kernels.request.select import SelectCall, Wanted
from livectr.serving import metrics
from livectr.serving.deadlines import current_call
from livectr.serving.request.parse import RequestColumns
from livectr.serving.score.item_stage import ItemStage
from livectr.serving.score.look_up import VersionLookup
from livectr.serving.score.plan_stages import FieldOrder
from livectr.serving.score.rank_scorer import rank_scorer
from livectr.serving.score.tower_scorer import tower_scorer
from livectr.serving.version.batch import Batch
from livectr.serving.version.near_cache import SupersededError, late
from livectr.store.layout import F32, I64


@dataclass(frozen=True)
class RequestItems:
    """Items of a request's candidates.

    Args:
        stage: has their partial results.
        columns: of the request.
        row_name: name in the request of the row with a given index, for error messages.
    """

    stage: ItemStage
    columns: RequestColumns
    row_name: Callable[[int], str]

    @property
    def values(self) -> pa.Array:
        """Values of the item column."""
        return self.columns.candidates[self.stage.column]


def score_candidates(
    lookup: VersionLookup,
    order: FieldOrder,
    features: SharedFeatures,
    items: RequestItems | None,
    item_keys: I64 | None,
    revenues: Revenues | None,
) -> tuple[ScoreCall, bool]:
    """Score n candidates at a version.

    Args:
        lookup: version that answers.
        order: of the features' fields.
        features: of the candidates; without those of the items, if there are `items`.
        items: of the candidates; None: no partial result is kept.
        item_keys: i64[n], theirs.
        revenues: what to pack into a reply; None: nothing.

    Returns:
        The call, which has the results; False if look-up rows of items may be missing.

    Raises:
        AnswerError: the status that the client receives.
        SupersededError: a row is newer than the version.
    """
    snapshot = rank_scorer(lookup.version).snapshot(lookup.version, lookup.cache, order)
    shared, own = features.shared, features.own
    store, kept = None, None
    if items is not None and item_keys is not None:
        store = items.stage.partials(lookup)
        kept = Items(store.partials, item_keys)
    call = ScoreCall(snapshot, shared, own, own.dense, current_call().deadline, kept, revenues)
    complete, computed = True, False

    def compute_items() -> None:
        nonlocal complete, computed
        assert items is not None and store is not None and kept is not None
        found, complete = items.stage.completed(
            lookup, store, items.values, kept.keys, call.kept, items.row_name
        )
        call.give_kept(found)
        computed = True

    _answer(lookup, order, features, call, functools.partial(snapshot.score, call), compute_items)
    if kept is not None and not computed:
        metrics.ITEM_PARTIALS.labels("kept").inc(len(kept.keys))
    return call, complete


def select_items(
    lookup: VersionLookup,
    order: FieldOrder,
    features: SharedFeatures,
    more: F32,
    wanted: Wanted,
    vectors: Callable[[npt.NDArray[np.bool_]], tuple[F32, bool]],
) -> tuple[SelectCall, bool]:
    """Select a user's best items at a version.

    Args:
        lookup: version that answers.
        order: of the features' fields.
        features: of the user.
        more: f32[n], inputs of the user tower besides fields.
        wanted: items.
        vectors: gives the vectors f32[m, out] of those candidates, bool[n], that have none; and False if
            look-up rows of them may be missing.

    Returns:
        The call, which has the results; False if look-up rows of items may be missing.

    Raises:
        AnswerError: the status that the client receives.
        SupersededError: a row is newer than the version.
    """
    snapshot = tower_scorer(lookup.version).snapshot(lookup.version, lookup.cache, order)
    call = SelectCall(snapshot, features.shared, features.own, more, current_call().deadline, wanted)
    complete = True

    def compute_items() -> None:
        nonlocal complete
        found, complete = vectors(call.unknown)
        call.give_items(found)

    _answer(lookup, order, features, call, functools.partial(snapshot.select, call), compute_items)
    return call, complete


def _answer(
    lookup: VersionLookup,
    order: FieldOrder,
    features: SharedFeatures,
    call: ScoreCall | SelectCall,
    attempt: Callable[[], int],
    compute_items: Callable[[], None],
) -> None:
    """Make a call until it has all that it needs; rows that are not in memory are read.

    Args:
        lookup: version that answers.
        order: of the features' fields.
        features: that the call looks up.
        call: gets the rows that are read.
        attempt: makes the call, and gives its outcome.
        compute_items: gives the call what it misses of items.

    Raises:
        As `score_candidates`.
    """
    batch = functools.partial(Batch.joined, order.fields, (), features.shared, features.own)
    looked_up = False
    read = 0 if lookup.prefetched is None else lookup.add_prefetched()
    while (outcome := attempt()) != DONE:
        if outcome == SUPERSEDED:
            raise SupersededError
        if outcome == LATE:
            raise late()
        if outcome == MISSING_ROWS:
            looked_up, vectors = True, lookup.vectors(batch(), read)
            call.give_vectors(vectors.pooled, vectors.once)
        else:
            compute_items()
    if not looked_up:
        lookup.cache.count_look(batch, read)
