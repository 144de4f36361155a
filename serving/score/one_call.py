"""A request in one compiled call: of candidates to rank, or of a user's best items.

columns ─► kernels.request.score, kernels.request.select ─► scores, and the packed reply
                  │ an input of features, a row, an item's partial result or its vector is not in memory
                  └─► it is read or computed, and the call is made again with it
"""

from __future__ import annotations

import ctypes
import functools
from collections.abc import Callable
from dataclasses import dataclass
from types import MappingProxyType

import numpy as np
import numpy.typing as npt

from livectr.kernels.request.look_up import (
    DONE,
    EXPIRED,
    LATE,
    MISSING_CONTENT,
    MISSING_ROWS,
    NO_FEATURES,
    SUPERSEDED,
    TOO_MANY_PAIRS,
)
from livectr.kernels.request.score import Revenues, ScoreCall, Snapshot
from livectr.kernels.request.select import SelectCall, Selector, Wanted
from livectr.serving import metrics
from livectr.serving.calls import RequestCall
from livectr.serving.canary import SIDE
from livectr.serving.request.features import FeatureRun
from livectr.serving.request.inline_content import InlineContent
from livectr.serving.score.item_stage import ItemStage
from livectr.serving.score.look_up import VersionLookup
from livectr.serving.score.plan_stages import PlanStages, ReadingModel
from livectr.serving.score.rank_scorer import RankScorer
from livectr.serving.score.tower_scorer import TowerScorer
from livectr.serving.version.batch import Vectors
from livectr.serving.version.near_cache import SupersededError, late
from livectr.store.layout import F32

Asking = Callable[[ctypes.Structure], int]
"""Makes a compiled call, as far as memory has what it needs."""


@dataclass(frozen=True)
class Ranking:
    """Ranking of the items that another call selects.

    Args:
        plan: of the run's features.
        run: features of the ranking.
        join: joins the call that selects to that which ranks.
    """

    plan: PlanStages
    run: FeatureRun
    join: Callable[[Selector, SelectCall], Asking]


def score_candidates(
    lookup: VersionLookup,
    scorer: RankScorer,
    plan: PlanStages,
    run: FeatureRun,
    items: ItemStage | None,
    client: RequestCall,
    revenues: Revenues | None,
    bids: int = 0,
    inline: InlineContent = MappingProxyType({}),
    join: Callable[[Snapshot, ScoreCall], Asking] | None = None,
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
        inline: content that the request carries.
        join: joins the call to another, which gives the items; None: it is by itself.

    Returns:
        The call, which has the results; False if look-up rows of items may be missing.

    Raises:
        AnswerError: the status that the client receives.
        SupersededError: a row is newer than the version.
    """
    order = plan.order(run.split.shared_fields, run.split.own_fields, scorer.sequences)
    snapshot = scorer.snapshot(lookup.version, lookup.cache, order)
    store = None if items is None else items.partials(lookup)
    partials = None if store is None else store.partials
    call = ScoreCall(run, client.deadline, partials, revenues, bids, plan.most_pairs)
    complete, computed = True, False

    def give_rows(vectors: Vectors) -> None:
        call.give_vectors(vectors.pooled, vectors.once)
        if order.sequences:
            call.give_lists(scorer.sequence_vectors(order, vectors.lists))

    def find(outcome: int) -> None:
        nonlocal complete, computed
        if outcome == EXPIRED:
            client.check("score")
            raise late()
        if outcome == TOO_MANY_PAIRS:
            name = scorer.lists[call.words.list].field
            raise plan.too_many(name, call.words.listed, run.call.rows)
        if outcome == MISSING_CONTENT:
            content = plan.content(lookup, run.features(), scorer.content, inline)
            call.give_lists([content[each.field].values if each.content else None for each in scorer.lists])
            return
        assert items is not None and store is not None
        values = run.columns.candidates[items.column]
        found, complete = items.completed(lookup, store, values, call.item_keys, call.kept, run.row_name)
        call.give_kept(found)
        computed = True

    answer = snapshot.answer if join is None else join(snapshot, call)
    _answer(lookup, plan, run, scorer, client, answer, call, give_rows, find)
    if store is not None and not computed:
        client.counts.append((metrics.ITEM_PARTIALS, ("kept", SIDE.get()), run.columns.size))
    return call, complete


def select_items(
    lookup: VersionLookup,
    scorer: TowerScorer,
    plan: PlanStages,
    run: FeatureRun,
    client: RequestCall,
    wanted: Wanted,
    vectors: Callable[[npt.NDArray[np.bool_]], tuple[F32, F32 | None, bool]],
    inline: InlineContent = MappingProxyType({}),
    ranking: Ranking | None = None,
) -> tuple[SelectCall, bool]:
    """Select a user's best items at a version.

    Args:
        lookup: version that answers.
        scorer: towers of the version.
        plan: of the run's features.
        run: features of the user.
        client: call that is answered.
        wanted: items.
        vectors: gives the vectors f32[m, out] of those candidates, bool[n], that have none; their worths
            f32[m], where items have some; and False if look-up rows of them may be missing.
        inline: content that the request carries.
        ranking: of the items, which the same compiled call begins; None: they are not ranked.

    Returns:
        The call, which has the results; False if look-up rows of items may be missing.

    Raises:
        AnswerError: the status that the client receives.
        SupersededError: a row is newer than the version.
    """
    reads = scorer.reads["user"]
    order = plan.order(run.split.shared_fields, run.split.own_fields, reads.sequences)
    snapshot = scorer.snapshot(lookup.version, lookup.cache, order)
    call = SelectCall(snapshot, run, client.deadline, wanted)
    complete = True

    def find(outcome: int) -> None:
        nonlocal complete
        if outcome == MISSING_CONTENT:
            content = plan.content(lookup, run.features(), reads.content, inline)
            call.give_lists([content[each.field].values for each in scorer.lists])
        else:
            found, worths, complete = vectors(call.unknown)
            call.give_items(found, worths if call.by_rows else None)

    def give_rows(vectors: Vectors) -> None:
        call.give_vectors(vectors.pooled, vectors.once)

    answer = snapshot.answer if ranking is None else ranking.join(snapshot, call)
    beside = None if ranking is None else (ranking.plan, ranking.run)
    _answer(lookup, plan, run, reads, client, answer, call, give_rows, find, beside)
    return call, complete


def _answer(
    lookup: VersionLookup,
    plan: PlanStages,
    run: FeatureRun,
    model: ReadingModel,
    client: RequestCall,
    answer: Asking,
    call: ScoreCall | SelectCall,
    give_rows: Callable[[Vectors], None],
    find: Callable[[int], None],
    beside: tuple[PlanStages, FeatureRun] | None = None,
) -> None:
    """Make a call until it has all that it needs; rows that are not in memory are read.

    Args:
        lookup: version that answers.
        plan: of the run's features.
        run: features of the request.
        model: that reads the features.
        client: gets the ends of the stages.
        answer: makes the call.
        call: its arguments and results.
        give_rows: gives it rows that were read.
        find: gives it what another outcome says is missing.
        beside: run of another plan, whose histories are read with those of this one.

    Raises:
        As `score_candidates`.
    """
    looked_up, features = False, run.call
    read = 0 if lookup.prefetched is None else lookup.add_prefetched()
    try:
        while (outcome := answer(call.words)) != DONE:
            if outcome == SUPERSEDED:
                raise SupersededError
            if outcome == LATE:
                raise late()
            if outcome == NO_FEATURES:
                plan.read(lookup, run, beside)
                read += 0 if lookup.prefetched is None else lookup.add_prefetched()
            elif outcome == MISSING_ROWS:
                looked_up = True
                give_rows(lookup.vectors(plan.batch(run, model), read))
            else:
                find(outcome)
    finally:
        if features.extracted:  # an attempt that fails has these stages, too
            client.ends += ("enrich", features.enriched_at), ("extract", features.extracted_at)
    if not looked_up:
        lookup.cache.count_look(functools.partial(plan.batch, run, model), read)
    words = call.words
    client.ends += ("look_up", words.looked_up_at), ("score", words.scored_at)
