"""A request in one compiled call: of candidates to rank, or of a user's best items.

columns ─► kernels.request.score, kernels.request.select ─► scores, and the packed reply
                  │ an input of features, a row, an item's partial result or its vector is not in memory
                  └─► it is read or computed, and the call is made again with it
"""

from __future__ import annotations

import functools
from collections.abc import Callable

import numpy as np
import numpy.typing as npt

from livectr.kernels.request.look_up import (
    DONE,
    LATE,
    MISSING_ROWS,
    NO_FEATURES,
    SUPERSEDED,
    CompiledSnapshot,
)
from livectr.kernels.request.score import Revenues, ScoreCall
from livectr.kernels.request.select import SelectCall, Wanted
from livectr.serving import metrics
from livectr.serving.calls import RequestCall
from livectr.serving.canary import SIDE
from livectr.serving.request.features import FeatureRun
from livectr.serving.score.item_stage import ItemStage
from livectr.serving.score.look_up import VersionLookup
from livectr.serving.score.plan_stages import PlanStages
from livectr.serving.score.rank_scorer import RankScorer
from livectr.serving.score.tower_scorer import TowerScorer
from livectr.serving.version.near_cache import SupersededError, late
from livectr.store.layout import F32


def score_candidates(
    lookup: VersionLookup,
    scorer: RankScorer,
    plan: PlanStages,
    run: FeatureRun,
    items: ItemStage | None,
    client: RequestCall,
    revenues: Revenues | None,
    bids: int = 0,
) -> tuple[ScoreCall, bool]:
    """Score n candidates at a version.

    Args:
        lookup: version that answers.
        scorer: ranking model of the version.
        plan: of the run's features; without those of the items, if there are `items`.
        run: features of the candidates.
        items: has the partial results of the candidates' items; None: none are kept.
        client: call that is answered.
        revenues: form of the reply; None: none is packed.
        bids: address of f64[n], for the reply.

    Returns:
        The call, which has the results; False if look-up rows of items may be missing.

    Raises:
        AnswerError: the status that the client receives.
        SupersededError: a row is newer than the version.
    """
    order = plan.order(run.split.shared_fields, run.split.own_fields, ())
    snapshot = scorer.snapshot(lookup.version, lookup.cache, order)
    store = None if items is None else items.partials(lookup)
    partials = None if store is None else store.partials
    call = ScoreCall(run, client.deadline, partials, revenues, bids)
    complete, computed = True, False

    def compute_items() -> None:
        nonlocal complete, computed
        assert items is not None and store is not None
        values = run.columns.candidates[items.column]
        found, complete = items.completed(lookup, store, values, call.item_keys, call.kept, run.row_name)
        call.give_kept(found)
        computed = True

    _answer(lookup, plan, run, client, snapshot, call, compute_items)
    if store is not None and not computed:
        client.counts.append((metrics.ITEM_PARTIALS, ("kept", SIDE.get()), run.columns.size))
    return call, complete


def select_items(
    lookup: VersionLookup,
    scorer: TowerScorer,
    plan: PlanStages,
    run: FeatureRun,
    more: F32 | None,
    client: RequestCall,
    wanted: Wanted,
    vectors: Callable[[npt.NDArray[np.bool_]], tuple[F32, bool]],
) -> tuple[SelectCall, bool]:
    """Select a user's best items at a version.

    Args:
        lookup: version that answers.
        scorer: towers of the version.
        plan: of the run's features.
        run: features of the user.
        more: f32[n], inputs of the user tower besides fields; None: the dense features alone.
        client: call that is answered.
        wanted: items.
        vectors: gives the vectors f32[m, out] of those candidates, bool[n], that have none; and False if
            look-up rows of them may be missing.

    Returns:
        The call, which has the results; False if look-up rows of items may be missing.

    Raises:
        AnswerError: the status that the client receives.
        SupersededError: a row is newer than the version.
    """
    snapshot = scorer.snapshot(
        lookup.version, lookup.cache, plan.order(run.split.shared_fields, run.split.own_fields, ())
    )
    call = SelectCall(snapshot, run, more, client.deadline, wanted)
    complete = True

    def compute_items() -> None:
        nonlocal complete
        found, complete = vectors(call.unknown)
        call.give_items(found)

    _answer(lookup, plan, run, client, snapshot, call, compute_items)
    return call, complete


def _answer(
    lookup: VersionLookup,
    plan: PlanStages,
    run: FeatureRun,
    client: RequestCall,
    snapshot: CompiledSnapshot,
    call: ScoreCall | SelectCall,
    compute_items: Callable[[], None],
) -> None:
    """Make a call until it has all that it needs; rows that are not in memory are read.

    Args:
        lookup: version that answers.
        plan: of the run's features.
        run: features of the request.
        client: gets the ends of the stages.
        snapshot: that answers.
        call: gets the rows that are read.
        compute_items: gives the call what it misses of items.

    Raises:
        As `score_candidates`.
    """
    looked_up = False
    read = 0 if lookup.prefetched is None else lookup.add_prefetched()
    while (outcome := snapshot.answer(call.words)) != DONE:
        if outcome == SUPERSEDED:
            raise SupersededError
        if outcome == LATE:
            raise late()
        if outcome == NO_FEATURES:
            plan.read(lookup, run)
            read += 0 if lookup.prefetched is None else lookup.add_prefetched()
        elif outcome == MISSING_ROWS:
            looked_up, vectors = True, lookup.vectors(plan.batch(run), read)
            call.give_vectors(vectors.pooled, vectors.once)
        else:
            compute_items()
    if not looked_up:
        lookup.cache.count_look(functools.partial(plan.batch, run), read)
    words, features = call.words, run.call
    client.ends += (
        ("enrich", features.enriched_at),
        ("extract", features.extracted_at),
        ("look_up", words.looked_up_at),
        ("score", words.scored_at),
    )
