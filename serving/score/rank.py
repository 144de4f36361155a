"""Rank server: candidates → click probabilities and expected revenue, best first.

    parse ─► enrich ─► extract ─► look up ─► score
             └────────── at one version ─────────┘

A field is shared when its columns are equal for all candidates (the user's, the page's). Its rows and content
are looked up and pooled once.
"""

from __future__ import annotations

import functools
import time
from collections.abc import Callable, Mapping
from types import MappingProxyType
from typing import Any, NamedTuple

import numpy as np
import numpy.typing as npt

from livectr.ingest.drift.learned import Learned
from livectr.ingest.extract.sharing import SharedFeatures
from livectr.ingest.pipeline import Pipeline
from livectr.kernels.network.reply import ReplyPacker, probabilities
from livectr.kernels.request.parse import Code
from livectr.kernels.request.score import Revenues, ScoreCall, Snapshot
from livectr.protos import livectr_pb2 as pb
from livectr.serving import metrics, tracing
from livectr.serving.calls import RequestCall
from livectr.serving.canary import SIDE
from livectr.serving.explore.orders import Drawn, Explorer, greedy
from livectr.serving.limits import RequestLimits
from livectr.serving.options import ServeOptions
from livectr.serving.reply import Reply, mark_degraded
from livectr.serving.request.features import FeatureRun
from livectr.serving.request.inline_content import InlineContent, parse_content
from livectr.serving.request.lookup_rows import LookupRows, followed_rows
from livectr.serving.request.parse import Request, RequestColumns, RequestSchema
from livectr.serving.score.explain import Explainer, check_explain
from livectr.serving.score.inputs import ModelInputs
from livectr.serving.score.item_features import PlanPart, split_plan
from livectr.serving.score.item_stage import ItemStage
from livectr.serving.score.look_up import VersionLookup, at_one_version
from livectr.serving.score.one_call import Asking, score_candidates
from livectr.serving.score.plain import PlainRequests, PlainScores
from livectr.serving.score.plan_stages import PlanStages, Sources
from livectr.serving.score.rank_scorer import RankScorer, rank_scorer
from livectr.serving.score.skew import EVERY, FeatureSkew
from livectr.serving.score.values import CandidateWorths, Valuer
from livectr.serving.served.log import ServedLog
from livectr.serving.served.record import Answer
from livectr.serving.version.follower import VersionFollower
from livectr.serving.version.loader import ModelVersion
from livectr.store.layout import F32, I64

F64 = npt.NDArray[np.float64]

ROLE = "rank"
_NO_LOGITS: F32 = np.empty(0, np.float32)
_NO_VALUES: F64 = np.empty(0)
_RANKED = [
    pb.RankResponse.DESCRIPTOR.fields_by_name[name].number for name in ("index", "pctr", "ecpm", "value")
]
"""Numbers of the reply's fields that `ReplyPacker` writes; the last one with a value alone."""


class RankQuery(NamedTuple):
    """Candidates to score.

    Args:
        content: inline content.
        part: name of the candidates in the request.
    """

    columns: RequestColumns
    content: InlineContent
    part: str = "candidates"

    def row_name(self, row: int) -> str:
        """Name of a candidate in the request."""
        return f"{self.part}[{row}]"


class RankScores(NamedTuple):
    """Scores of n candidates at a version.

    Args:
        version: number of the version.
        model: name of its ranking model.
        size: n.
        logits: f32[n], of the model; none with a packed reply, if nothing else needs them.
        complete: False if a row may be missing.
        inputs: of the model, all of them; None: they were not asked for.
        features: of the candidates, all of them; None: they were not asked for.
        reply: fields of a packed reply, on the wire; empty: it is not packed yet.
        counts: i64[m + 1], click probabilities of a packed reply by the bounds of their histogram.
        total: sum of these probabilities.
        lines: scale and shift f32[n] of the logits' calibration; None: they are not calibrated.
        targets: name of a target → probabilities f64[n].
        values: name of a target → expected values f64[n], given that it comes.
    """

    version: int
    model: str
    size: int
    logits: F32
    complete: bool
    inputs: ModelInputs | None
    reply: bytes = b""
    counts: I64 | None = None
    total: float = 0.0
    lines: tuple[F32, F32] | None = None
    features: SharedFeatures | None = None
    targets: Mapping[str, F64] = MappingProxyType({})
    values: Mapping[str, F64] = MappingProxyType({})

    @property
    def pctr(self) -> F64:
        """Click probabilities f64[n]; none without logits."""
        return probabilities(self.logits, self.lines)


class Ranker:
    """Answers RankRequests at the version that its follower serves.

    Args:
        lookup_rows: cache of look-up rows; None: an own one.

    Attributes:
        served: log of what is served; None: none is kept.
        explorer: draws orders; None: the order always is that of the values.
        plain: answers plain requests without the interpreter; None: each request is logged, traced or ordered
            here, or reads histories, or values are of more than clicks.
        valuer: finds what candidates are worth; None: their bids times click probabilities are their values.
    """

    def __init__(
        self,
        pipeline: Pipeline,
        follower: VersionFollower,
        options: ServeOptions,
        lookup_rows: LookupRows | None = None,
    ) -> None:
        limits = RequestLimits.of(options)
        self.schema = RequestSchema(pipeline, pipeline.plan.roots, limits)
        self._follower = follower
        rows = lookup_rows or followed_rows(follower, options.lookup_ttl_s)
        sources = Sources(pipeline, limits, follower.reader, rows)
        everything = PlanPart(pipeline.plan, tuple(range(len(pipeline.fields))))
        self._whole = self._rest = PlanStages(sources, everything, rank_scorer)
        self._items: ItemStage | None = None
        split = split_plan(pipeline) if options.item_partials_mb else None
        if split is not None:
            self._rest = PlanStages(sources, split.rest, rank_scorer, split.column)
            self._items = ItemStage(
                split.column,
                PlanStages(sources, split.items, rank_scorer),
                follower,
                max_bytes=options.item_partials_mb << 20,
                ttl_s=options.lookup_ttl_s,
            )
        self._fingerprint = pipeline.fingerprint[:12]
        self._first = type(pipeline.rank).__name__
        self._explainer = Explainer(pipeline)
        self.valuer = Valuer.of(pipeline, rows)
        self._pack = ReplyPacker(*_RANKED if self.valuer is not None else _RANKED[:3])
        self._revenues = Revenues(self._pack, metrics.SERVED_PCTR.bounds)
        self.served = ServedLog.of(pipeline, options)
        self.explorer = Explorer.of(options.explore_options)
        self._skew = FeatureSkew(pipeline)
        self.plain: PlainRequests | None = None
        by_clicks = self.valuer is None or self.valuer.by_clicks
        here = self.served is not None or self.explorer is not None or tracing.TRACER is not None
        if by_clicks and not here and not self._whole.features.reads_histories:
            needs_bids = self.valuer is not None
            self.plain = PlainRequests(
                ROLE, pipeline, follower, self.schema.reader, rows, needs_bids=needs_bids
            )

    def rank(self, request: Request, call: RequestCall) -> Reply:
        """Answer a RankRequest: parse → enrich → extract → look up → score.

        Args:
            request: as the schema reads it.
            call: of the client.

        Returns:
            RankResponse, whose numbers all come from the same version.

        Raises:
            AnswerError: the status that the client receives.
        """
        query, explain = self._query(request), request.explain
        call.ends.append(("parse", time.perf_counter()))
        logged = self.served is not None and self.served.wants(request.request_id)
        sampled = not explain and not request.version and request.sample % EVERY == 0
        learned: Learned | None = None
        explorer = self.explorer if request.request_id else None

        worths: CandidateWorths | None = None

        def answer(lookup: VersionLookup) -> tuple[RankScores, Any]:
            nonlocal worths, learned
            learned = rank_scorer(lookup.version).learned if sampled else None
            if self.valuer is not None:
                worths = self.valuer.of_request(request, query.columns)
            if explain:
                scores = self._in_stages(lookup, query, call)
            else:
                bids = request.bids_at if worths is None else worths.bids_at
                if explorer is not None:
                    bids = 0  # the order is not that of the packed reply
                counted = learned is not None
                scores = self.scores(lookup, query, call, bids, logged=logged or counted)
            if not explain:
                return scores, None
            best = greedy(_values(request, scores, worths))[:explain].tolist()
            scorer = rank_scorer(lookup.version)
            assert scores.inputs is not None
            explained = self._explainer.explain(
                lookup, scorer, scores.inputs, (scores.logits, scores.lines), best
            )
            call.ended("explain")
            return scores, explained

        if explain:
            with self._explainer.place():
                scores, explained = at_one_version(self._follower, call, answer, request.version)
        else:
            scores, explained = at_one_version(self._follower, call, answer, request.version)
        drawn = None
        if explorer is not None:
            drawn = explorer.draw(request.request_id, _values(request, scores, worths))
        reply = self._reply(request, scores, explained, call, worths, drawn)
        if logged and self.served is not None:
            self.served.offer(_answer(request, query, scores, worths, drawn))
        if learned is not None and scores.features is not None:
            first = np.argmax(_values(request, scores, worths)) if drawn is None else drawn.order[0]
            self._skew.add(scores.features, int(first), request.now_ms, learned)
        call.ends.append(("respond", end := time.perf_counter()))
        if call.deadline is not None and end >= call.deadline:
            call.check("respond", call.ends)
        return reply

    def scores(
        self,
        lookup: VersionLookup,
        query: RankQuery,
        call: RequestCall,
        bids: int = 0,
        *,
        logged: bool = False,
        select: Callable[[PlanStages, FeatureRun, Snapshot, ScoreCall], Asking] | None = None,
    ) -> RankScores:
        """Score candidates at a version: enrich → extract → look up → score.

        Args:
            lookup: version that answers.
            query: parsed request.
            call: of the client.
            bids: address of f64[n], for a packed reply; 0: no reply is packed.
            logged: the features are needed, too, with those of the items: their partial results are not
                enough.
            select: selects the candidates, which are `SelectedColumns`, in the same compiled call; it needs
                `in_one_call`.

        Raises:
            AnswerError: the status that the client receives.
            SupersededError: a row is newer than the version.
        """
        version, items = lookup.version, self._items
        scorer = version.scorers["rank"]
        assert isinstance(scorer, RankScorer)
        if logged or (items is not None and not query.columns.has_candidate(items.column)):
            items = None  # no partial results
        if not scorer.in_one_call:
            return self._in_stages(lookup, query, call)
        plan = self._whole if items is None else self._rest
        run = plan.features.begin(query.columns, scorer.statistics, query.row_name)
        join = None if select is None else functools.partial(select, plan, run)
        revenues = self._revenues if bids else None
        scored, complete = score_candidates(
            lookup, scorer, plan, run, items, call, revenues, bids, query.content, join
        )
        count, reply = scorer.other_count, scored.reply() if bids else b""
        logits, lines = (
            (_NO_LOGITS, None) if bids and not (logged or count) else (scored.logits, scored.lines)
        )
        others = scored.others(count) if count else None
        targets = {} if others is None else scorer.targets(others, logits, lines)
        values = {} if others is None else scorer.values(others)
        features = run.features() if logged else None
        plainly = bids and not logged and select is None
        if self.plain is not None and plainly and isinstance(query.columns, Request):
            self._offer(self.plain, query.columns, lookup, scorer, plan, run)
        read, read_at = plan.features.end(run)
        call.read_live(read_at, version.manifest.created_ms)
        complete, size = complete and lookup.complete and read, query.columns.size
        known = version.manifest.version, scorer.name, size, logits, complete, None
        packed = reply, scored.counts, scored.words.total
        return RankScores(*known, *packed, lines, features, targets, values)

    def _offer(
        self,
        plain: PlainRequests,
        request: Request,
        lookup: VersionLookup,
        scorer: RankScorer,
        plan: PlanStages,
        run: FeatureRun,
    ) -> None:
        """Offer a request that was answered in one compiled call, unless its reply has targets."""
        if type(scorer).targets is not RankScorer.targets:
            return

        def scores() -> PlainScores:
            order = plan.order(run.split.shared_fields, run.split.own_fields, scorer.sequences)
            snapshot = scorer.snapshot(lookup.version, lookup.cache, order)
            fields, every = self._revenues.words[0], 0 if scorer.learned is None else EVERY
            return PlainScores(snapshot, order, fields, scorer.name, pb.RankResponse, every)

        store = self._items.partials(lookup) if self._items is not None and plan is self._rest else None
        plain.offer(request, lookup, plan, run, scores, store)

    def _in_stages(self, lookup: VersionLookup, query: RankQuery, call: RequestCall) -> RankScores:
        """Score with inputs that are explained, or by a model of which torch computes a part; as `scores`."""
        plan, scorer = self._whole, rank_scorer(lookup.version)
        inputs = plan.inputs(lookup, query.columns, query.content, query.row_name, call.passed)
        call.ended("look_up")
        logits = scorer.logits(inputs.vectors, inputs.dense, inputs.lists, inputs.content)
        call.ended("score")
        call.read_live(inputs.read_at, lookup.version.manifest.created_ms)
        complete = inputs.complete and lookup.complete
        lines = scorer.lines(*plan.ordered(inputs.features))
        others = scorer.others_of(inputs)
        targets, values = scorer.targets(others, logits, lines), scorer.values(others)
        known = lookup.version.number, scorer.name, len(logits), logits, complete, inputs
        return RankScores(*known, lines=lines, features=inputs.features, targets=targets, values=values)

    def close(self) -> None:
        """Write what is left of the served log."""
        if self.served is not None:
            self.served.close()

    def model_of(self, version: ModelVersion | None) -> str:
        """Name of a version's ranking model: its class and the pipeline's fingerprint.

        The role of a challenger that was promoted stands before it. Before the first version it is the name
        of the first champion.
        """
        return f"{self._first}/{self._fingerprint}" if version is None else rank_scorer(version).name

    # ── stages ───────────────────────────────────────────────────────────────────────────────────────

    def _query(self, request: Request) -> RankQuery:
        columns = request if request.code == Code.GOOD else request.columns
        if request.explain:
            check_explain(request.explain)
        widths = self._follower.contents.widths
        return RankQuery(columns, parse_content(request.content, widths) if request.contents else {})

    def _reply(
        self,
        request: Request,
        scores: RankScores,
        explained: Any,
        call: RequestCall,
        worths: CandidateWorths | None,
        drawn: Drawn | None,
    ) -> Reply:
        call.counts.append((metrics.CANDIDATES, (ROLE, SIDE.get()), scores.size))
        message = pb.RankResponse(
            request_id=request.request_id, version=scores.version, model=scores.model, explanations=explained
        )
        fields = b""
        if scores.counts is not None:
            fields, call.pctr = scores.reply, (scores.counts, scores.total)
        else:
            pctr = scores.pctr
            metrics.observe_pctr(ROLE, pctr)
            if drawn is not None:
                _add_in_order(message, pctr, drawn, valued=worths is not None)
            else:
                values = None if worths is None else worths.values(pctr, scores.targets, scores.values)
                fields = self._pack(pctr, request.bids, values)
        if scores.targets:
            best = greedy(_values(request, scores, worths)) if drawn is None else drawn.order
            for name, probability in scores.targets.items():
                value = scores.values.get(name, _NO_VALUES)
                message.targets.add(
                    name=name, probability=probability[best], value=value[best] if len(value) else ()
                )
        if not scores.complete or (worths is not None and not worths.complete):
            mark_degraded(message, ROLE, self._follower.reader.problem)
        return Reply(message, fields)


def _values(request: Request, scores: RankScores, worths: CandidateWorths | None) -> F64:
    """Values f64[n] of candidates, by which they are ordered."""
    if worths is None:
        return request.bids * scores.pctr
    return worths.values(scores.pctr, scores.targets, scores.values)


def _add_in_order(message: Any, pctr: F64, drawn: Drawn, *, valued: bool) -> None:
    """Add candidates with probabilities f64[n] to a RankResponse, in a drawn order."""
    values = drawn.values[drawn.order]
    message.index.extend(drawn.order)
    message.pctr.extend(pctr[drawn.order])
    message.ecpm.extend(1000 * values if valued else values)
    if valued:
        message.value.extend(values)
    message.exploration.explored = drawn.explored
    message.exploration.propensity.extend(drawn.propensity)


def _answer(
    request: Request,
    query: RankQuery,
    scores: RankScores,
    worths: CandidateWorths | None,
    drawn: Drawn | None,
) -> Answer:
    """Answer to a RankRequest, for the served log."""
    assert scores.features is not None  # a request of the log is answered with them
    return Answer(
        role=ROLE,
        request_id=request.request_id,
        version=scores.version,
        model=scores.model,
        time_ms=query.columns.now_ms,
        context=request.message.context,
        candidates=request.message.candidates,
        bids=request.message.bids if worths is None else worths.bids.tolist(),
        pctr=scores.pctr,
        features=scores.features,
        values=None if worths is None and drawn is None else _values(request, scores, worths),
        drawn=drawn,
    )
