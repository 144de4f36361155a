"""Look up → score → reply of candidates in one compiled call, for models that are compiled as a whole.

features ─► kernels.request.score ─► logits, and the packed reply
                  │ a row or an item's partial result is not in memory
                  └─► it is read or computed, and the call is made again with it
"""

from __future__ import annotations

import functools
from collections.abc import Callable
from dataclasses import dataclass

import pyarrow as pa

from livectr.ingest.extract.sharing import SharedFeatures
from livectr.ingest.language.keys import key_of
from livectr.kernels.request.score import DONE, LATE, MISSING_ROWS, SUPERSEDED, Items, Revenues, ScoreCall
from livectr.serving import metrics
from livectr.serving.deadlines import current_call
from livectr.serving.score.item_stage import ItemStage
from livectr.serving.score.look_up import VersionLookup
from livectr.serving.score.plan_stages import FieldOrder
from livectr.serving.score.rank_scorer import rank_scorer
from livectr.serving.version.batch import Batch
from livectr.serving.version.near_cache import SupersededError, late


@dataclass(frozen=True)
class RequestItems:
    """Items of a request's candidates.

    Args:
        stage: has their partial results.
        values: of the item column.
        row_name: name in the request of the row with a given index, for error messages.
    """

    stage: ItemStage
    values: pa.Array
    row_name: Callable[[int], str]


def score_candidates(
    lookup: VersionLookup,
    order: FieldOrder,
    features: SharedFeatures,
    items: RequestItems | None,
    revenues: Revenues | None,
) -> tuple[ScoreCall, bool]:
    """Score n candidates at a version.

    Args:
        lookup: version that answers.
        order: of the features' fields.
        features: of the candidates; without those of the items, if there are `items`.
        items: of the candidates; None: no partial result is kept.
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
    if items is not None:
        store = items.stage.partials(lookup)
        kept = Items(store.partials, key_of(items.values))
    call = ScoreCall(snapshot, shared, own, own.dense, current_call().deadline, kept, revenues)
    batch = functools.partial(Batch.joined, order.fields, (), shared, own)
    complete, computed, looked_up = True, False, False
    read = 0 if lookup.prefetched is None else lookup.add_prefetched()
    while (outcome := snapshot.score(call)) != DONE:
        if outcome == SUPERSEDED:
            raise SupersededError
        if outcome == LATE:
            raise late()
        if outcome == MISSING_ROWS:
            looked_up, vectors = True, lookup.vectors(batch(), read)
            call.give_vectors(vectors.pooled, vectors.once)
        else:
            assert items is not None and store is not None and kept is not None
            found, complete = items.stage.completed(
                lookup, store, items.values, kept.keys, call.kept, items.row_name
            )
            call.give_kept(found)
            computed = True
    if not looked_up:
        lookup.cache.count_look(batch, read)
    if kept is not None and not computed:
        metrics.ITEM_PARTIALS.labels("kept").inc(len(kept.keys))
    return call, complete
