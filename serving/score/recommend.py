"""Recommendations: the funnel in one call, at one version.

    parse ─► retrieve ─► pre-rank ─► rank ─► ecpm
             └───────── at one version ────────┘

    1. retrieve   the published catalogue, or the request's candidates, without the excluded items
    2. prerank    the best `prerank_k` by ⟨user vector, item vector⟩
    3. rank       their click probabilities
    4. ecpm       bid × pctr, or the pipeline's value, best `top_k` first

A row that is superseded in any stage starts all of them again at the next version.
"""

from __future__ import annotations

from dataclasses import dataclass, replace
from typing import Any

import numpy as np
import numpy.typing as npt
import pyarrow as pa
import pyarrow.compute as pc

from livectr.ingest.language import dtypes
from livectr.ingest.language.keys import key_of
from livectr.ingest.language.labels import CLICK
from livectr.ingest.pipeline import Pipeline
from livectr.kernels.keys.keys import U32
from livectr.kernels.request.funnel import FunnelCall, ItemArray
from livectr.kernels.request.parse import ParsedRequest
from livectr.kernels.request.score import ScoreCall, Snapshot
from livectr.kernels.request.select import SelectCall, Selector
from livectr.protos import livectr_pb2 as pb
from livectr.serving import metrics
from livectr.serving.calls import RequestCall
from livectr.serving.errors import RequestError
from livectr.serving.explore.orders import Drawn, greedy
from livectr.serving.limits import RequestLimits
from livectr.serving.options import ServeOptions
from livectr.serving.reply import Reply, mark_degraded
from livectr.serving.request.features import FeatureRun
from livectr.serving.request.inline_content import parse_content
from livectr.serving.request.lookup_rows import followed_rows
from livectr.serving.request.parse import GivenColumns, Request, RequestSchema, SelectedColumns
from livectr.serving.request.sentences import ColumnSpec
from livectr.serving.score.look_up import VersionLookup, at_one_version
from livectr.serving.score.one_call import Asking, Ranking
from livectr.serving.score.plan_stages import PlanStages
from livectr.serving.score.prerank import PreRanker, PreRankQuery, PreRankScores
from livectr.serving.score.rank import Ranker, RankQuery, RankScores
from livectr.serving.score.rank_scorer import rank_scorer
from livectr.serving.score.values import F64, CandidateWorths
from livectr.serving.served.record import Answer
from livectr.serving.version.follower import VersionFollower
from livectr.serving.version.loader import ModelVersion
from livectr.store.layout import I64

ROLE = "recommend"


@dataclass(frozen=True)
class _Query:
    """Parsed request.

    Args:
        prerank: its columns hold the whole context; its top_k is `prerank_k`, and its candidates are those
            that are not excluded.
        sent: candidates before the exclusion; None: the catalogue.
        excluded: i64[m], keys of the excluded items.
        bid_column: column of the items' look-up table; empty: every bid is 1, or the request or the
            pipeline's value says what items are worth.
    """

    prerank: PreRankQuery
    sent: int | None
    excluded: I64
    top_k: int
    bid_column: str


@dataclass(frozen=True)
class _Ranked:
    """Items that rank scored at a version, as pre-rank passed them on.

    Args:
        items: n ids or names.
        pctr: f64[n].
        values: f64[n], by which they are ordered.
        bids: f64[n], that have counted; None: each was 1.
        order: i64[k], places of those that are recommended.
        stages: RecommendStage messages.
        complete: False if a row may be missing.
        scores: of them; None: there is no item.
        drawn: order of all of them, of a side that explores; None: it is that of the values.
    """

    version: ModelVersion
    items: pa.Array
    pctr: npt.NDArray[np.float64]
    values: F64
    bids: F64 | None
    order: I64
    stages: list[Any]
    complete: bool
    scores: RankScores | None
    drawn: Drawn | None


class _Funnel:
    """Stages of a request: times, counts, and the deadline between two stages.

    Args:
        call: of the client.
    """

    def __init__(self, call: RequestCall) -> None:
        self._call = call
        self.stages: list[Any] = []

    def ended(self, name: str, items_in: int, items_out: int) -> None:
        """Note the end of a stage. Raises DeadlineError if the deadline has passed."""
        self._add(name, items_in, items_out, self._call.ended(name))

    def passed(self, selected_at: float, selected_of: int, ranked_at: float, ranked: int) -> None:
        """Note the ends of pre-rank and rank, which one call has made. Raises as `ended`.

        Args:
            selected_at: instant of time.perf_counter().
            selected_of: number of items that pre-rank had.
            ranked_at: instant, likewise.
            ranked: number of items that pre-rank gave, and rank had.
        """
        since = self._call.ends[-1][1]
        self._call.passed(("prerank", selected_at), ("rank", ranked_at))
        self._add("prerank", selected_of, ranked, selected_at - since)
        self._add("rank", ranked, ranked, ranked_at - selected_at)

    def _add(self, name: str, items_in: int, items_out: int, seconds: float) -> None:
        self.stages.append(
            pb.RecommendStage(
                name=name, items_in=items_in, items_out=items_out, microseconds=round(seconds * 1e6)
            )
        )


class Recommender:
    """Answers RecommendRequests at the version that its follower serves.

    Args:
        preranker, ranker: over the same follower and cache of look-up rows.

    Attributes:
        schema: columns of the context.
        item: column of the items.
    """

    def __init__(
        self,
        pipeline: Pipeline,
        follower: VersionFollower,
        options: ServeOptions,
        preranker: PreRanker,
        ranker: Ranker,
    ) -> None:
        assert pipeline.items is not None  # PreRanker has checked it
        self._items = pipeline.items
        self._follower = follower
        self._preranker = preranker
        self._ranker = ranker
        self._limits = RequestLimits.of(options)
        name = preranker.item_column
        dtype = pipeline.log.impressions.columns[name]
        self.item = ColumnSpec(name, dtype, pb.PLACEMENT_CANDIDATE, required=False)
        self._item_type = dtypes.arrow_type(dtype)
        self.schema = RequestSchema(
            pipeline, pipeline.plan.roots, self._limits, pb.RecommendRequest, item_column=name
        )

    def recommend(self, request: Request, call: RequestCall) -> Reply:
        """Answer a RecommendRequest: parse → retrieve → prerank → rank → ecpm.

        Args:
            request: as the schema reads it.
            call: of the client.

        Returns:
            RecommendResponse, whose numbers all come from the same version.

        Raises:
            AnswerError: the status that the client receives.
        """
        query = self._query(request)
        call.ended("parse")
        served = self._ranker.served
        logged = served is not None and served.wants(request.request_id)
        explorer = self._ranker.explorer if request.request_id else None

        def answer(lookup: VersionLookup) -> _Ranked:
            funnel = _Funnel(call)
            wanted, excluded = query.prerank, self._retrieve(lookup, query, funnel)
            if len(excluded):
                wanted = replace(wanted, excluded=excluded)
            scored: RankScores | None
            if size := self._size_in_one_call(lookup, wanted):
                scores, scored = self._in_one_call(lookup, wanted, size, call, funnel, logged=logged)
                items, keys, complete = pa.array(scores.keys), scores.keys, True
            else:
                scores = self._preranker.scores(lookup, wanted, call.inner("prerank"))
                items, keys, complete = self._choose(query, scores)
                funnel.ended("prerank", scores.size, len(keys))
                scored = self._rank(lookup, query, items, call, logged=logged)
                funnel.ended("rank", len(keys), len(keys))
            complete = complete and scores.complete
            pctr = np.empty(0) if scored is None else scored.pctr
            bids = wanted.bids
            if bids is not None and wanted.candidates is not None:
                bids = bids[scores.best.positions]
            worths = self._worths(query.bid_column, keys, bids)
            values = pctr
            if worths is not None and scored is not None:
                values = worths.values(pctr, scored.targets, scored.values)
            drawn = None if explorer is None else explorer.draw(request.request_id, values)
            order = (greedy(values) if drawn is None else drawn.order)[: query.top_k]
            funnel.ended("ecpm", len(keys), len(order))
            return _Ranked(
                lookup.version,
                items,
                pctr,
                values,
                None if worths is None else worths.bids,
                order,
                funnel.stages,
                complete and (worths is None or worths.complete) and (scored is None or scored.complete),
                scored,
                drawn,
            )

        ranked = at_one_version(self._follower, call, answer, request.version)
        reply = self._reply(request.request_id, ranked)
        if logged and served is not None and ranked.scores is not None:
            served.offer(self._answer(request, query, ranked, ranked.scores))
        call.ended("respond")
        return reply

    # ── stages ───────────────────────────────────────────────────────────────────────────────────────

    def _query(self, request: Request) -> _Query:
        request = request.columns
        self._check_counts(request)
        self._check_bid_column(request.bid_column, bids=request.bids_size)
        content = parse_content(request.content, self._follower.contents.widths)
        candidates = self._preranker.check_items(request.items)
        unwanted = self._preranker.check_items(request.excluded, "excluded_")
        excluded = np.empty(0, np.int64) if unwanted is None else key_of(unwanted)
        keys, sent = None, None
        if candidates is not None:
            self._check_fits(candidates)
            keys, sent = key_of(candidates), len(candidates)
        bids = None
        if request.bids_size or self._ranker.valuer is not None:
            bids = self._preranker.check_bids(request)
        if candidates is not None and keys is not None and len(excluded):
            wanted = ~np.isin(keys, excluded)
            keys, candidates = keys[wanted], candidates.filter(pa.array(wanted))
            bids = None if bids is None else bids[wanted]
        prerank = PreRankQuery(
            request.request_id, request, request.prerank_k, candidates, keys, content, bids
        )
        return _Query(prerank, sent, excluded, request.top_k, request.bid_column)

    def _retrieve(self, lookup: VersionLookup, query: _Query, funnel: _Funnel) -> U32:
        """Excluded rows u32[m] of the catalogue, ascending; none if the request has candidates."""
        keys = query.prerank.keys
        if keys is not None:
            funnel.ended("retrieve", query.sent or 0, len(keys))
            return query.prerank.excluded
        items = lookup.version.items
        size, excluded = 0, query.prerank.excluded
        if items is not None:
            size = len(items)
            if len(query.excluded):
                rows, known = items.find(query.excluded)
                excluded = np.unique(rows[known])
        funnel.ended("retrieve", size, size - len(excluded))
        return excluded

    def _size_in_one_call(self, lookup: VersionLookup, query: PreRankQuery) -> int:
        """Number of items to rank in the compiled call that selects them; 0: there are two calls, or none."""
        whole = rank_scorer(lookup.version).in_one_call
        if not whole or self._item_type not in (pa.int64(), pa.int32()):
            return 0
        catalogue = lookup.version.items
        size = 0 if catalogue is None else len(catalogue) - len(query.excluded)
        return min(query.top_k, size if query.keys is None else len(query.keys))

    def _in_one_call(
        self,
        lookup: VersionLookup,
        query: PreRankQuery,
        size: int,
        call: RequestCall,
        funnel: _Funnel,
        *,
        logged: bool,
    ) -> tuple[PreRankScores, RankScores]:
        """Select the best `size` items of a user, and score them, in one compiled call.

        `logged` as in `Ranker.scores`.
        """
        array = ItemArray(size, narrow=self._item_type == pa.int32())
        assert isinstance(query.columns, Request)
        columns = SelectedColumns(query.columns, self.item.name, array, size)
        towers, heads = call.inner("prerank"), call.inner("rank")
        selected: list[PreRankScores] = []

        def select(plan: PlanStages, run: FeatureRun, snapshot: Snapshot, score: ScoreCall) -> Asking:
            funnels: list[FunnelCall] = []

            def join(selector: Selector, select: SelectCall) -> Asking:
                funnels.append(FunnelCall(selector, select, snapshot, score, array))
                return funnels[0].first

            ranking = Ranking(plan, run, join)
            selected.append(self._preranker.scores(lookup, query, towers, ranking=ranking))
            columns.keys = selected[0].keys
            return funnels[0].second

        candidates = RankQuery(columns, query.content, "items")
        scored = self._ranker.scores(lookup, candidates, heads, logged=logged, select=select)
        (scores,) = selected
        funnel.passed(towers.ends[-1][1], scores.size, heads.ends[-1][1], len(scores.keys))
        return scores, scored

    def _choose(self, query: _Query, scores: PreRankScores) -> tuple[pa.Array, I64, bool]:
        """Best items of pre-rank: as values of the item column, and their keys.

        An item of the catalogue whose name is unknown cannot be ranked, and is left out. The last result is
        False if that may be a loss.
        """
        keys = scores.keys
        if not self._preranker.named:
            return pa.array(keys).cast(self._item_type), keys, True
        names, complete = self._preranker.names(query.prerank, scores)
        if query.prerank.candidates is None:
            known = pc.binary_length(names).to_numpy(zero_copy_only=False) > 0
            names, keys = names.filter(pa.array(known)), keys[known]
        return names, keys, complete

    def _rank(
        self, lookup: VersionLookup, query: _Query, items: pa.Array, call: RequestCall, *, logged: bool
    ) -> RankScores | None:
        """Scores of n items; None: no items. `logged` as in `Ranker.scores`."""
        if not len(items):
            return None
        context = query.prerank.columns
        assert isinstance(context, Request)
        columns = GivenColumns(len(items), context.context, {self.item.name: items}, context.now_ms)
        candidates = RankQuery(columns, query.prerank.content, "items")
        return self._ranker.scores(lookup, candidates, call.inner("rank"), logged=logged)

    def _worths(self, column: str, keys: I64, bids: F64 | None) -> CandidateWorths | None:
        """Worths of items with these bids f64[n], or those of the pipeline's value, or of a column.

        A bid of a row that is unknown, negative or not finite is 0. None: every bid is 1.
        """
        if self._ranker.valuer is not None:
            return self._ranker.valuer.of_keys(len(keys), keys, bids)
        if bids is not None:
            return CandidateWorths({CLICK: bids})
        if not column or not len(keys):
            return None
        values, complete = self._preranker.item_values(column, keys)
        found = values.cast(pa.float64()).to_numpy(zero_copy_only=False)
        return CandidateWorths({CLICK: np.where(np.isfinite(found) & (found > 0), found, 0.0)}, complete)

    def _reply(self, request_id: str, ranked: _Ranked) -> Reply:
        metrics.CANDIDATES.labels(ROLE).inc(ranked.stages[0].items_in)
        order = ranked.order
        pctr, values = ranked.pctr[order], ranked.values[order]
        metrics.observe_pctr(ROLE, pctr)
        valued = self._ranker.valuer is not None
        response = pb.RecommendResponse(
            request_id=request_id,
            version=ranked.version.number,
            model=self._ranker.model_of(ranked.version),
            prerank_model=self._preranker.model,
            pctr=pctr.tolist(),
            ecpm=(1000 * values if valued else values).tolist(),
            value=values.tolist() if valued else (),
            stages=ranked.stages,
        )
        items = response.names if self._preranker.named else response.ids
        items.SetInParent()
        items.values.extend(ranked.items.take(pa.array(order)).to_pylist())
        if ranked.drawn is not None:
            response.exploration.explored = ranked.drawn.explored
            response.exploration.propensity.extend(ranked.drawn.propensity[: len(order)])
        if not ranked.complete:
            mark_degraded(response, ROLE, self._follower.reader.problem)
        return Reply(response)

    def _answer(self, request: Request, query: _Query, ranked: _Ranked, scores: RankScores) -> Answer:
        """Answer to a RecommendRequest, for the served log.

        It has the items of the reply. A side that explores logs all that rank scored: other orders have them.
        """
        drawn = ranked.drawn
        rows = ranked.order if drawn is None else np.arange(len(ranked.items))
        if drawn is not None:
            drawn = replace(drawn, propensity=drawn.propensity[: len(ranked.order)])
        assert scores.features is not None  # a request of the log is answered with them
        return Answer(
            role=ROLE,
            request_id=request.request_id,
            version=scores.version,
            model=scores.model,
            time_ms=query.prerank.columns.now_ms,
            context=request.message.context,
            candidates={self.item.name: ranked.items.take(pa.array(rows)).to_pylist()},
            bids=() if ranked.bids is None else ranked.bids[rows].tolist(),
            pctr=ranked.pctr[rows],
            features=scores.features,
            rows=rows,
            values=None if self._ranker.valuer is None and drawn is None else ranked.values[rows],
            drawn=drawn,
        )

    # ── parts of the stages ──────────────────────────────────────────────────────────────────────────

    def _check_counts(self, parsed: ParsedRequest) -> None:
        for name, most, limit in (
            ("prerank_k", self._limits.top_k, "max_top_k"),
            ("prerank_k", self._limits.candidates, "max_candidates"),
            ("top_k", parsed.prerank_k, "prerank_k"),
        ):
            value = getattr(parsed, name)
            if value < 1:
                raise RequestError(name, "must be at least 1")
            if value > most:
                raise RequestError(name, f"is {value}, but may be at most {most} ({limit})")

    def _check_fits(self, candidates: pa.Array) -> None:
        try:
            candidates.cast(self._item_type)
        except pa.ArrowInvalid:
            raise RequestError("ids", f"holds a number that does not fit {self.item.dtype}") from None

    def _check_bid_column(self, name: str, *, bids: int) -> None:
        if not name:
            return
        if bids or self._ranker.valuer is not None:
            by = "`bids` of the request" if bids else "the pipeline's value"
            raise RequestError("bid_column", f"is given, but {by} says what items are worth; leave it out")
        numbers = [column for column, dtype in self._items.columns.items() if dtype in dtypes.NUMBERS]
        if name not in numbers:
            known = ", ".join(numbers) or "none"
            raise RequestError(
                "bid_column", f"{name[:100]} is no numeric column of {self._items.topic}; it has {known}"
            )


def recommender(
    pipeline: Pipeline, follower: VersionFollower, options: ServeOptions
) -> tuple[PreRanker, Ranker, Recommender]:
    """Answers of a server of recommendations; its stages share one cache of look-up rows.

    Raises:
        ConfigError: the pipeline has no pre-rank model.
    """
    rows = followed_rows(follower, options.lookup_ttl_s)
    preranker = PreRanker(pipeline, follower, options, rows)
    ranker = Ranker(pipeline, follower, options, rows)
    return preranker, ranker, Recommender(pipeline, follower, options, preranker, ranker)
