"""Rank server: candidates → click probabilities and expected revenue, best first.

    parse ─► enrich ─► extract ─► look up ─► score
                       └──── at one version ────┘

A field is shared when its columns are equal for all candidates (the user's, the page's). Its rows and content
are looked up and pooled once.
"""

from __future__ import annotations

import time
from collections.abc import Sequence
from dataclasses import dataclass, replace
from typing import Any

import numpy as np
import numpy.typing as npt

from livectr.ingest.extract.sharing import SharedFeatures
from livectr.ingest.pipeline import Pipeline
from livectr.ingest.plan.dag import FeaturePlan
from livectr.kernels.network.forward import Kept
from livectr.kernels.network.reply import ReplyPacker
from livectr.protos import livectr_pb2 as pb
from livectr.serving import metrics
from livectr.serving.deadlines import current_call
from livectr.serving.errors import RequestError
from livectr.serving.limits import RequestLimits
from livectr.serving.options import ServeOptions
from livectr.serving.request.extract import FeaturesAt
from livectr.serving.request.lookup_rows import LookupRows, followed_rows
from livectr.serving.request.parse import (
    InlineContent,
    RequestColumns,
    RequestSchema,
    check_string,
    finite,
    parse_content,
)
from livectr.serving.request.user_prefetch import UserTables
from livectr.serving.score.explain import Explainer, check_explain
from livectr.serving.score.inputs import RankInputs
from livectr.serving.score.item_features import item_features, split_plan
from livectr.serving.score.item_stage import ItemStage
from livectr.serving.score.look_up import VersionLookup, at_one_version
from livectr.serving.score.plan_stages import PlanStages
from livectr.serving.score.scorer import (
    RankScorer,
    content_fields,
    near_cache,
    rank_scorer,
)
from livectr.serving.served.log import ServedLog
from livectr.serving.served.record import Answer
from livectr.serving.version.content import Contents
from livectr.serving.version.follower import VersionFollower
from livectr.serving.version.loader import ModelVersion, RoleSpec
from livectr.serving.version.reader import Reader
from livectr.store.layout import F32

ROLE = "rank"
_RANKED = tuple(pb.RankResponse.DESCRIPTOR.fields_by_name[name].number for name in ("index", "pctr", "ecpm"))
"""Numbers of the reply's fields that `ReplyPacker` writes."""


@dataclass(frozen=True)
class _Query:
    """Parsed request.

    Args:
        bids: f64[n].
        content: inline content.
        explain: number of the best candidates whose scores are explained.
        part: name of the candidates in the request.
    """

    request_id: str
    columns: RequestColumns
    bids: npt.NDArray[np.float64]
    content: InlineContent
    explain: int
    part: str = "candidates"

    def row_name(self, row: int) -> str:
        """Name of a candidate in the request."""
        return f"{self.part}[{row}]"


@dataclass(frozen=True)
class RankScores:
    """Logits f32[n] of features at a version, by the named model; complete: False if a row may be missing."""

    version: int
    model: str
    logits: F32
    complete: bool
    features: SharedFeatures
    explanations: Any = None

    @property
    def pctr(self) -> npt.NDArray[np.float64]:
        """Click probabilities f64[n]."""
        return 1.0 / (1.0 + np.exp(-self.logits.astype(np.float64)))


class Ranker:
    """Answers RankRequests at the version that its follower serves.

    Args:
        lookup_rows: cache of look-up rows; None: an own one.

    Attributes:
        served: log of what is served; None: none is kept.
    """

    def __init__(
        self,
        pipeline: Pipeline,
        follower: VersionFollower,
        options: ServeOptions,
        lookup_rows: LookupRows | None = None,
    ) -> None:
        self._limits = limits = RequestLimits.of(options)
        self.schema = RequestSchema(pipeline, pipeline.plan.roots, limits)
        self._follower = follower
        rows = lookup_rows or followed_rows(follower, options.lookup_ttl_s)

        def stages(plan: FeaturePlan, fields: Sequence[int]) -> PlanStages:
            return PlanStages(pipeline, plan, fields, limits, follower.reader, rows)

        self._whole = self._rest = stages(pipeline.plan, range(len(pipeline.fields)))
        self._items: ItemStage | None = None
        split = split_plan(pipeline) if options.item_partials_mb else None
        if split is not None:
            self._rest = stages(split.rest, split.rest_fields)
            items = stages(split.items, split.item_fields)
            self._items = ItemStage(
                split.column,
                items,
                follower,
                max_bytes=options.item_partials_mb << 20,
                ttl_s=options.lookup_ttl_s,
            )
        self._users = UserTables(pipeline)
        self._fingerprint = pipeline.fingerprint[:12]
        self._first = type(pipeline.rank).__name__
        self._explainer = Explainer(pipeline)
        self._pack = ReplyPacker(*_RANKED)
        self.served = ServedLog.of(pipeline, options)

    def rank(self, request: Any, deadline: float | None) -> Any:
        """Answer a RankRequest: parse → enrich → extract → look up → score.

        Args:
            deadline: instant of time.monotonic(), or None.

        Returns:
            RankResponse, whose numbers all come from the same version.

        Raises:
            AnswerError: the status that the client receives.
        """
        clock = metrics.StageClock(ROLE)
        query = self._parse(request)
        clock.ended("parse")
        version, cache = self._follower.served()
        prefetch = self._users.missing(query.columns, version.manifest, cache)
        served = self.logs(query.request_id)
        stages = self._stages(query, whole=served or query.explain > 0)
        enriched = stages.enrich(query.columns, prefetch)
        clock.ended("enrich")
        features_at = stages.extract(enriched, query.row_name)
        clock.ended("extract")

        def score(lookup: VersionLookup) -> RankScores:
            lookup.add(enriched.prefetched)
            inputs, kept, complete = self._look_up(lookup, stages, features_at, query)
            clock.ended("look_up")
            scores = self._score(lookup, inputs, kept)
            clock.ended("score")
            metrics.observe_live(ROLE, enriched.read_at, lookup.version.manifest.created_ms)
            if query.explain:
                worst = -query.bids * scores.pctr
                best = np.argsort(worst, kind="stable")[: query.explain].tolist()
                explained = self._explainer.explain(lookup, _scorer(lookup), inputs, scores.logits, best)
                scores = replace(scores, explanations=explained)
                clock.ended("explain")
            return replace(scores, complete=scores.complete and complete)

        with self._explainer.place(query.explain):
            scores = at_one_version(self._follower, ROLE, deadline, score, pinned=request.version)
        response = self._response(query, scores, degraded=not (enriched.complete and scores.complete))
        if served and self.served is not None:
            self.served.offer(_answer(request, query, scores))
        clock.ended("respond")
        return response

    def scores(
        self, lookup: VersionLookup, columns: RequestColumns, inline: InlineContent, *, served: bool = False
    ) -> RankScores:
        """Score candidates at a locked version: enrich → extract → look up → score.

        Args:
            served: the features are for the served log.

        Raises:
            AnswerError: the status that the client receives.
        """
        call = current_call()
        query = _Query("", columns, np.empty(0), inline, 0, "items")
        stages = self._stages(query, whole=served)
        enriched = stages.enrich(columns)
        call.check("enrich")
        features_at = stages.extract(enriched, query.row_name)
        call.check("extract")
        inputs, kept, complete = self._look_up(lookup, stages, features_at, query)
        call.check("look_up")
        scores = self._score(lookup, inputs, kept)
        metrics.observe_live(ROLE, enriched.read_at, lookup.version.manifest.created_ms)
        return replace(scores, complete=scores.complete and enriched.complete and complete)

    def logs(self, request_id: str) -> bool:
        """Return true if a request is one of the served log; all its features are needed then."""
        return self.served is not None and self.served.wants(request_id)

    def close(self) -> None:
        """Write what is left of the served log."""
        if self.served is not None:
            self.served.close()

    def model_of(self, version: ModelVersion | None) -> str:
        """Name of a version's ranking model: its class and the pipeline's fingerprint, after the role of a
        challenger that was promoted. Before the first version: of the first champion.
        """
        if version is None:
            return f"{self._first}/{self._fingerprint}"
        scorer, champion = rank_scorer(version), version.manifest.champion
        role = "" if champion == "rank" else f"{champion}:"
        return f"{role}{scorer.model}/{self._fingerprint}"

    # ── stages ───────────────────────────────────────────────────────────────────────────────────────

    def _parse(self, request: Any) -> _Query:
        check_string(len(request.request_id), "request_id", self._limits)
        check_explain(request.explain)
        columns = self.schema.parse(request.context, request.candidates, time.time_ns() // 1_000_000)
        bids = _parse_bids(request.bids, columns.size)
        content = parse_content(request.content, self._follower.contents.widths)
        return _Query(request.request_id, columns, bids, content, request.explain)

    def _stages(self, query: _Query, *, whole: bool) -> PlanStages:
        """Stages of the features that are not the items', or of all features."""
        apart = self._items is not None and self._items.column in query.columns.candidates
        return self._rest if apart and not whole else self._whole

    def _look_up(
        self, lookup: VersionLookup, stages: PlanStages, features_at: FeaturesAt, query: _Query
    ) -> tuple[RankInputs, Kept | None, bool]:
        """Inputs of the model; the items' partial results if they are apart, and if these are complete."""
        inputs = stages.look_up(lookup, features_at, query.content)
        if stages is self._whole or self._items is None:
            return inputs, None, True
        items = query.columns.candidates[self._items.column]
        return inputs, *self._items.kept(lookup, items, query.row_name)

    def _score(self, lookup: VersionLookup, inputs: RankInputs, kept: Kept | None) -> RankScores:
        logits = _scorer(lookup).logits(inputs.vectors, inputs.dense, inputs.lists, inputs.content, kept)
        model = self.model_of(lookup.version)
        return RankScores(lookup.version.number, model, logits, lookup.complete, inputs.features)

    # ── parts of the stages ──────────────────────────────────────────────────────────────────────────

    def _response(self, query: _Query, scores: RankScores, *, degraded: bool) -> Any:
        pctr = scores.pctr
        metrics.CANDIDATES.labels(ROLE).inc(query.columns.size)
        metrics.observe_pctr(ROLE, pctr)
        if degraded:
            metrics.DEGRADED.labels(ROLE).inc()
        response = pb.RankResponse(
            request_id=query.request_id,
            version=scores.version,
            model=scores.model,
            degraded=degraded,
            degraded_reason=self._follower.reader.problem if degraded else "",
            explanations=scores.explanations,
        )
        response.MergeFromString(self._pack(pctr, query.bids))
        return response


def _scorer(lookup: VersionLookup) -> RankScorer:
    return rank_scorer(lookup.version)


def _answer(request: Any, query: _Query, scores: RankScores) -> Answer:
    """Answer to a RankRequest, for the served log."""
    return Answer(
        role=ROLE,
        request_id=query.request_id,
        version=scores.version,
        model=scores.model,
        time_ms=query.columns.now_ms,
        context=request.context,
        candidates=request.candidates,
        bids=request.bids,
        pctr=scores.pctr,
        features=scores.features,
    )


def _parse_bids(values: Any, size: int) -> npt.NDArray[np.float64]:
    if not len(values):
        return np.ones(size)
    if len(values) != size:
        raise RequestError("bids", f"holds {len(values)} values for {size} candidates; send one each or none")
    bids = finite(values, "bids")
    if bids.min() < 0:
        raise RequestError("bids", f"value {int(np.argmax(bids < 0))} is negative")
    return bids


def rank_follower(pipeline: Pipeline, options: ServeOptions) -> VersionFollower:
    """Follower of a rank server: every table, no item vectors."""
    items = item_features(pipeline)
    spec = RoleSpec(
        role=ROLE,
        fingerprint=pipeline.fingerprint,
        contents=Contents(pipeline, content_fields(pipeline, ROLE), options.content),
        with_items=False,
        near_cache=lambda m: near_cache(pipeline, pipeline.plan.fields, m, options.near_cache_rows),
        scorer=lambda manifest, dense: RankScorer(pipeline, dense, manifest.champion, items),
        leaves_ms=pipeline.log.leaves_ms,
        contenders=tuple(pipeline.contenders),
    )
    reader = Reader(options.redis, options.namespace, pipeline.fingerprint)
    return VersionFollower(reader, spec, options.lost_grace_s, options.max_stale_s)
