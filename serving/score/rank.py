"""Rank server: candidates → click probabilities and expected revenue, best first.

    parse ─► enrich ─► extract ─► look up ─► score
                       └──── at one version ────┘

A field is shared when its columns are equal for all candidates (the user's, the page's). Its rows and content
are looked up and pooled once.
"""

from __future__ import annotations

import functools
import time
from dataclasses import dataclass, replace
from typing import Any

import numpy as np
import numpy.typing as npt

from livectr.ingest.extract.sharing import SharedFeatures
from livectr.ingest.pipeline import Pipeline
from livectr.protos import livectr_pb2 as pb
from livectr.protos.store import F32, I64
from livectr.serving import metrics
from livectr.serving.deadlines import current_call
from livectr.serving.errors import RequestError
from livectr.serving.limits import RequestLimits
from livectr.serving.options import ServeOptions
from livectr.serving.request.early import UserTables
from livectr.serving.request.enrich import EnrichedRequest, Enricher
from livectr.serving.request.extract import FeaturesAt, RequestFeatures
from livectr.serving.request.lookup_rows import LookupRows, followed_rows
from livectr.serving.request.parse import (
    InlineContent,
    RequestColumns,
    RequestSchema,
    check_string,
    finite,
    parse_content,
)
from livectr.serving.score.explain import Explainer, check_explain
from livectr.serving.score.inputs import FieldVectors, RankInputs
from livectr.serving.score.look_up import VersionLookup, at_one_version
from livectr.serving.score.scorer import RankScorer, compile_rows, content_fields, near_cache, rank_scorer
from livectr.serving.served.log import ServedLog
from livectr.serving.served.record import Answer
from livectr.serving.version.content import Contents
from livectr.serving.version.follower import VersionFollower
from livectr.serving.version.loader import ModelVersion, RoleSpec
from livectr.serving.version.near_cache import I32, Batch, RaggedVectors
from livectr.serving.version.reader import Reader

ROLE = "rank"


@dataclass(frozen=True)
class _Query:
    """Parsed request.

    Args:
        bids: f64[n].
        content: inline content.
        explain: number of the best candidates whose scores are explained.
    """

    request_id: str
    columns: RequestColumns
    bids: npt.NDArray[np.float64]
    content: InlineContent
    explain: int


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
        self._features = RequestFeatures(pipeline.plan, limits)
        lookup_rows = lookup_rows or followed_rows(follower, options.lookup_ttl_s)
        self._enricher = Enricher(pipeline, pipeline.plan, follower.reader, lookup_rows)
        self._users = UserTables(pipeline)
        self._fields = tuple((spec.name, spec.table) for spec in pipeline.fields)
        self._index = {spec.name: spec.index for spec in pipeline.fields}
        self._fingerprint = pipeline.fingerprint[:12]
        self._first = type(pipeline.rank).__name__
        self._explainer = Explainer(pipeline)
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
        early = self._users.missing(query.columns, version.manifest, cache)
        enriched = self._enricher.enrich(query.columns, early)
        clock.ended("enrich")
        features_at = self._extract(enriched, "candidates")
        clock.ended("extract")

        def score(lookup: VersionLookup) -> RankScores:
            lookup.add(enriched.early)
            inputs = self._look_up(lookup, features_at, query.content)
            clock.ended("look_up")
            scores = self._score(lookup, inputs)
            clock.ended("score")
            metrics.observe_live(ROLE, enriched.read_at, lookup.version.manifest.created_ms)
            if query.explain:
                best = _order(query.bids * scores.pctr)[: query.explain].tolist()
                explained = self._explainer.explain(lookup, _scorer(lookup), inputs, scores.logits, best)
                scores = replace(scores, explanations=explained)
                clock.ended("explain")
            return scores

        with self._explainer.place(query.explain):
            scores = at_one_version(self._follower, ROLE, deadline, score, pinned=request.version)
        response = self._response(query, scores, degraded=not (enriched.complete and scores.complete))
        if self.served is not None and self.served.wants(query.request_id):
            self.served.offer(_answer(request, query, scores))
        clock.ended("respond")
        return response

    def scores(self, lookup: VersionLookup, columns: RequestColumns, inline: InlineContent) -> RankScores:
        """Score candidates at a locked version: enrich → extract → look up → score.

        Raises:
            AnswerError: the status that the client receives.
        """
        call = current_call()
        enriched = self._enricher.enrich(columns)
        call.check("enrich")
        features_at = self._extract(enriched, "items")
        call.check("extract")
        inputs = self._look_up(lookup, features_at, inline)
        call.check("look_up")
        scores = self._score(lookup, inputs)
        metrics.observe_live(ROLE, enriched.read_at, lookup.version.manifest.created_ms)
        return replace(scores, complete=scores.complete and enriched.complete)

    def close(self) -> None:
        """Write what is left of the served log."""
        if self.served is not None:
            self.served.close()

    def model_of(self, version: ModelVersion | None) -> str:
        """Name of a version's ranking model: its class and the pipeline's fingerprint, after the role of a
        challenger that was promoted. Before the first version: of the first champion."""
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

    def _extract(self, request: EnrichedRequest, part: str) -> FeaturesAt:
        return self._features.extract(request, lambda i: f"{part}[{i}]")

    def _look_up(self, lookup: VersionLookup, features_at: FeaturesAt, inline: InlineContent) -> RankInputs:
        features = features_at(_scorer(lookup).statistics)
        vectors, lists = self._vectors(lookup, features)
        content = self._content(lookup, features, inline)
        return RankInputs(features, vectors, features.own.dense, lists, content)

    def _score(self, lookup: VersionLookup, inputs: RankInputs) -> RankScores:
        logits = _scorer(lookup).logits(inputs.vectors, inputs.dense, inputs.lists, inputs.content)
        model = self.model_of(lookup.version)
        return RankScores(lookup.version.number, model, logits, lookup.complete, inputs.features)

    # ── parts of the stages ──────────────────────────────────────────────────────────────────────────

    def _response(self, query: _Query, scores: RankScores, *, degraded: bool) -> Any:
        pctr = scores.pctr
        ecpm = query.bids * pctr
        order = _order(ecpm)
        metrics.CANDIDATES.labels(ROLE).inc(query.columns.size)
        metrics.SERVED_PCTR.observe(pctr, ROLE)
        if degraded:
            metrics.DEGRADED.labels(ROLE).inc()
        return pb.RankResponse(
            request_id=query.request_id,
            version=scores.version,
            model=scores.model,
            index=order.tolist(),
            pctr=pctr[order].tolist(),
            ecpm=ecpm[order].tolist(),
            degraded=degraded,
            degraded_reason=self._follower.reader.problem if degraded else "",
            explanations=scores.explanations,
        )

    def _vectors(
        self, lookup: VersionLookup, features: SharedFeatures
    ) -> tuple[FieldVectors, dict[str, RaggedVectors]]:
        """Pooled vectors of all fields, and by field the lists that the model reads."""
        shared, own = features.shared_fields, features.own_fields
        read = _scorer(lookup).sequences
        fields, sequences = _shape(self._fields, (*shared, *own), read)
        batch = Batch.joined(fields, sequences, features.shared, features.own)
        vectors = lookup.vectors(batch)
        lists = {}
        for i, part in zip(batch.sequences, vectors.lists, strict=True):
            name = batch.fields[i][0]
            lists[name] = self._broadcast(name, part, batch.rows) if i < batch.once else part
        return FieldVectors(vectors.pooled, own, vectors.once, shared), lists

    def _content(
        self, lookup: VersionLookup, features: SharedFeatures, inline: InlineContent
    ) -> dict[str, RaggedVectors]:
        """Content vectors of the fields whose content the model reads."""
        lists: dict[str, tuple[I32, I64]] = {}
        shared = set()
        for field in _scorer(lookup).content:
            index = self._index[field]
            if index in features.shared_fields:
                shared.add(field)
                lists[field] = features.shared.field(features.shared_fields.index(index))
            else:
                lists[field] = features.own.field(features.own_fields.index(index))
        content = lookup.content(lists, inline)
        rows = features.own.rows
        return {
            field: self._broadcast(field, vectors, rows) if field in shared else vectors
            for field, vectors in content.items()
        }

    def _broadcast(self, field: str, vectors: RaggedVectors, rows: int) -> RaggedVectors:
        """Share a context's list among all candidates. Raises RequestError beyond the limit of pairs."""
        size = len(vectors.values)
        if size * rows > self._limits.pairs:
            raise RequestError(
                "context",
                f"feature {field} has {size} values, too many to be looked at from {rows} "
                f"candidates; send fewer (max_values is {self._limits.values})",
            )
        return vectors.broadcast(rows)


@functools.lru_cache(maxsize=256)  # clients choose which fields are shared
def _shape(
    fields: tuple[tuple[str, str], ...], order: tuple[int, ...], read: tuple[str, ...]
) -> tuple[tuple[tuple[str, str], ...], tuple[int, ...]]:
    """Fields in the given order, and the indices of those of which the model reads each key's vector."""
    ordered = tuple(fields[i] for i in order)
    return ordered, tuple(i for i, (name, _) in enumerate(ordered) if name in read)


def _scorer(lookup: VersionLookup) -> RankScorer:
    return rank_scorer(lookup.version)


def _order(ecpm: npt.NDArray[np.float64]) -> npt.NDArray[np.intp]:
    """Places of the candidates, best expected revenue first."""
    return np.argsort(-ecpm, kind="stable")


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
    if (bids < 0).any():
        raise RequestError("bids", f"value {int(np.argmax(bids < 0))} is negative")
    return bids


def rank_follower(pipeline: Pipeline, options: ServeOptions) -> VersionFollower:
    """Follower of a rank server: every table, no item vectors."""
    spec = RoleSpec(
        role=ROLE,
        fingerprint=pipeline.fingerprint,
        contents=Contents(pipeline, content_fields(pipeline, ROLE), options.content),
        with_items=False,
        near_cache=lambda m: near_cache(pipeline, pipeline.plan.fields, m, options.near_cache_rows),
        scorer=lambda manifest, dense: RankScorer(pipeline, dense, manifest.champion),
        leaves_ms=pipeline.log.leaves_ms,
        contenders=tuple(pipeline.contenders),
    )
    compile_rows(pipeline)
    reader = Reader(options.redis, options.namespace, pipeline.fingerprint)
    return VersionFollower(reader, spec, options.lost_grace_s, options.max_stale_s)
