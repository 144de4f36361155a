"""Pre-rank server: the best few of many items, by ⟨user vector, item vector⟩.

    parse ─► enrich ─► extract ─► look up ─► score
                       └──── at one version ────┘

A version holds the item vectors as a matrix. An item without a vector is newer than the version, or in no
table. The item tower of the version scores it from its features, so it can be selected too.
"""

from __future__ import annotations

import time
from collections.abc import Callable
from dataclasses import dataclass, field, replace
from typing import Any

import numpy as np
import pyarrow as pa

from livectr.ingest.language.keys import key_of
from livectr.ingest.pipeline import Pipeline
from livectr.ingest.plan.dag import FeaturePlan
from livectr.kernels.keys.keys import U32
from livectr.kernels.network.retrieval import Query, Selection, compile_retrieval, top
from livectr.protos import livectr_pb2 as pb
from livectr.serving import metrics
from livectr.serving.deadlines import current_call
from livectr.serving.errors import RequestError
from livectr.serving.limits import RequestLimits
from livectr.serving.options import ServeOptions
from livectr.serving.request.enrich import EnrichedRequest, Enricher
from livectr.serving.request.extract import FeaturesAt, RequestFeatures
from livectr.serving.request.lookup_rows import LookupQuery, LookupRows, followed_rows
from livectr.serving.request.lookup_table import LookupRoot
from livectr.serving.request.parse import (
    InlineContent,
    RequestColumns,
    RequestSchema,
    check_string,
    parse_content,
    strings,
)
from livectr.serving.request.user_prefetch import UserTables
from livectr.serving.score.look_up import VersionLookup, at_one_version
from livectr.serving.score.scorer import (
    TowerFeatures,
    TowerScorer,
    content_fields,
    near_cache,
    tower_features,
    tower_scorer,
)
from livectr.serving.version.content import Contents
from livectr.serving.version.follower import VersionFollower
from livectr.serving.version.id_vectors import IdVectors
from livectr.serving.version.loader import RoleSpec
from livectr.serving.version.near_cache import Batch, RaggedVectors
from livectr.serving.version.prefetch import PrefetchKeys
from livectr.serving.version.reader import Reader
from livectr.store.layout import F32, I64
from livectr.system.errors import ConfigError

ROLE = "prerank"


@dataclass(frozen=True)
class PreRankQuery:
    """Parsed request.

    Args:
        candidates: ids or names of n items; None: the whole catalogue.
        keys: i64[n], their keys.
        content: inline content.
        excluded: u32[m], ascending rows of the scored version's catalogue that are not wanted.
    """

    request_id: str
    columns: RequestColumns
    top_k: int
    candidates: pa.Array | None
    keys: I64 | None
    content: InlineContent
    excluded: U32 = field(default_factory=lambda: np.empty(0, np.uint32))


@dataclass(frozen=True)
class _Inputs:
    """Inputs of a tower: vectors f32[n, F, D], dense f32[n, Dd], content vectors by field."""

    vectors: F32
    dense: F32
    content: dict[str, RaggedVectors]


@dataclass(frozen=True)
class PreRankScores:
    """Best m of the items at a version, best first.

    Args:
        size: number of the items.
        best: their positions in the candidates, or in the catalogue, and their scores.
        keys: i64[m], their keys.
        unknown: items without a published vector.
        complete: False if a row may be missing.
    """

    version: int
    size: int
    best: Selection
    keys: I64
    unknown: int
    complete: bool


class _Tower:
    """Stages enrich, extract and look up for the features of a tower."""

    def __init__(
        self,
        pipeline: Pipeline,
        own: TowerFeatures,
        reader: Reader,
        lookup_rows: LookupRows,
        limits: RequestLimits,
    ) -> None:
        plan = pipeline.plan
        content_only = tuple(name for name in own.images if name not in own.fields)
        self.plan = FeaturePlan(
            {name: plan.sparse[name] for name in (*own.fields, *content_only)},
            {name: plan.dense[name] for name in own.dense},
        )
        self._pooled = range(len(own.fields))
        self._images = {name: self.plan.fields.index(name) for name in own.images}
        self._features = RequestFeatures(self.plan, limits)
        self._enricher = Enricher(pipeline, self.plan, reader, lookup_rows)
        tables = {spec.name: spec.table for spec in pipeline.fields}
        self._fields = tuple((name, tables[name]) for name in own.fields)

    def enrich(self, columns: RequestColumns, prefetch: PrefetchKeys | None = None) -> EnrichedRequest:
        return self._enricher.enrich(columns, prefetch)

    def extract(self, request: EnrichedRequest, row_name: Callable[[int], str]) -> FeaturesAt:
        return self._features.extract(request, row_name)

    def look_up(self, lookup: VersionLookup, features_at: FeaturesAt, inline: InlineContent) -> _Inputs:
        # All features are in `own`: a single row shares with no other, and items share nothing.
        features = features_at(_scorer(lookup).statistics).own
        pooled = features.select_fields(self._pooled)
        images = {name: features.field(index) for name, index in self._images.items()}
        content = lookup.content(images, inline)
        batch = Batch(self._fields, pooled.offsets, pooled.keys, pooled.rows)
        return _Inputs(lookup.vectors(batch).pooled, features.dense, content)


class PreRanker:
    """Answers PreRankRequests at the version that its follower serves.

    Args:
        lookup_rows: cache of look-up rows; None: an own one.

    Attributes:
        named: whether items are known by strings.
        item_column: column of the impression stream that names the item.

    Raises:
        ConfigError: the pipeline has no pre-rank model.
    """

    def __init__(
        self,
        pipeline: Pipeline,
        follower: VersionFollower,
        options: ServeOptions,
        lookup_rows: LookupRows | None = None,
    ) -> None:
        if pipeline.items is None:
            raise ConfigError("pre-rank needs items=, the look-up table of the items")
        self._items = pipeline.items
        self.item_column = next(
            lk.on for lk in pipeline.log.lookups if lk.table.topic == pipeline.items.topic
        )
        self.named = pipeline.items.columns[pipeline.items.key] == "string"
        self._follower = follower
        self._limits = limits = RequestLimits.of(options)
        reader = follower.reader
        self._lookup_rows = rows = lookup_rows or followed_rows(follower, options.lookup_ttl_s)
        compile_retrieval()
        user = tower_features(pipeline, "user")
        self._users = UserTables(pipeline, user.fields)
        self._user = _Tower(pipeline, user, reader, rows, limits)
        self._item = _Tower(pipeline, tower_features(pipeline, "item"), reader, rows, limits)
        self.schema = RequestSchema(pipeline, self._user.plan.roots, limits, only_context=True)
        self.model = f"{type(pipeline.prerank).__name__}/{pipeline.fingerprint[:12]}"

    def prerank(self, request: Any, deadline: float | None) -> Any:
        """Answer a PreRankRequest: parse → enrich → extract → look up → score.

        Args:
            deadline: instant of time.monotonic(), or None.

        Returns:
            PreRankResponse, whose numbers all come from the same version.

        Raises:
            AnswerError: the status that the client receives.
        """
        clock = metrics.StageClock(ROLE)
        query = self._parse(request)
        clock.ended("parse")
        score = self.prepare(query, clock)
        scores = at_one_version(self._follower, ROLE, deadline, score, pinned=request.version)
        response = self._response(query, scores)
        clock.ended("respond")
        return response

    def prepare(
        self, query: PreRankQuery, clock: metrics.StageClock | None = None
    ) -> Callable[[VersionLookup], PreRankScores]:
        """Enrich and extract the user's features, before a version is locked.

        Args:
            clock: told the end of every stage.

        Returns:
            Function that looks up and scores the candidates at a locked version.

        Raises:
            AnswerError: the status that the client receives.
        """
        ended = clock.ended if clock is not None else current_call().check
        version, cache = self._follower.served()
        prefetch = self._users.missing(query.columns, version.manifest, cache)
        enriched = self._user.enrich(query.columns, prefetch)
        ended("enrich")
        features_at = self._user.extract(enriched, lambda _: "context")
        ended("extract")

        def score(lookup: VersionLookup) -> PreRankScores:
            lookup.add(enriched.prefetched)
            inputs = self._user.look_up(lookup, features_at, query.content)
            ended("look_up")
            scores = self._score(lookup, inputs, query)
            ended("score")
            metrics.observe_live(ROLE, enriched.read_at, lookup.version.manifest.created_ms)
            return replace(scores, complete=scores.complete and enriched.complete)

        return score

    # ── stages ───────────────────────────────────────────────────────────────────────────────────────

    def _parse(self, request: Any) -> PreRankQuery:
        columns = self.schema.parse_context(request.context, time.time_ns() // 1_000_000)
        check_string(len(request.request_id), "request_id", self._limits)
        if request.top_k < 1:
            raise RequestError("top_k", "must be at least 1")
        if request.top_k > self._limits.top_k:
            raise RequestError(
                "top_k",
                f"is {request.top_k}; this server gives at most {self._limits.top_k} items (max_top_k)",
            )
        candidates = self.parse_items(request, "candidates")
        content = parse_content(request.content, self._follower.contents.widths)
        keys = None if candidates is None else key_of(candidates)
        return PreRankQuery(request.request_id, columns, request.top_k, candidates, keys, content)

    def _score(self, lookup: VersionLookup, inputs: _Inputs, query: PreRankQuery) -> PreRankScores:
        scorer, version = _scorer(lookup), lookup.version
        user = scorer.user(inputs.vectors, inputs.dense, inputs.content)[0]
        items = version.items or IdVectors.empty(len(user))
        wanted = Query(user, scorer.bias, query.top_k)
        keys, candidates, complete, number = query.keys, query.candidates, lookup.complete, version.number
        if keys is None or candidates is None:
            size, best = len(items) - len(query.excluded), items.best(wanted, query.excluded)
            return PreRankScores(number, size, best, items.ids[best.positions], 0, complete)
        scores, unknown, found = items.best_of(keys, wanted)
        if found is not None:
            return PreRankScores(number, len(keys), found, keys[found.positions], 0, complete)
        cold, rows_complete = self._cold_vectors(lookup, candidates.filter(pa.array(unknown)), query.content)
        scores[unknown] = cold @ user + wanted.bias
        best = top(scores, query.top_k)
        return PreRankScores(
            number, len(keys), best, keys[best.positions], len(cold), complete and rows_complete
        )

    # ── parts of the stages ──────────────────────────────────────────────────────────────────────────

    def parse_items(self, request: Any, part: str) -> pa.Array | None:
        """Item ids or names of a request's oneof as an array; None: it is not set."""
        kind = request.WhichOneof(part)
        if kind is None:
            return None
        expected = "names" if self.named else "ids"
        if not kind.endswith(expected):
            dtype, prefix = (
                self._items.columns[self._items.key],
                kind.removesuffix("names").removesuffix("ids"),
            )
            raise RequestError(kind, f"the items are known by {dtype}; send {prefix}{expected}")
        values = getattr(request, kind).values
        if not len(values) and part == "candidates":
            raise RequestError(kind, "is empty: send at least one item, or leave the field out for all")
        if len(values) > (most := self._limits.candidates):
            raise RequestError(
                kind, f"holds {len(values)} items; this server takes at most {most} (max_candidates)"
            )
        if self.named:
            return strings(values, "string", kind, self._limits)
        return pa.array(np.array(values, np.int64))

    def _cold_vectors(
        self, lookup: VersionLookup, items: pa.Array, inline: InlineContent
    ) -> tuple[F32, bool]:
        """Vectors f32[m, out] of m items without a published vector, from their features.

        The second result is False if look-up rows may be missing.
        """
        enriched = self._item.enrich(RequestColumns(len(items), {}, {self.item_column: items}, 0))
        features_at = self._item.extract(enriched, lambda i: f"item {items[i]}")
        inputs = self._item.look_up(lookup, features_at, inline)
        current_call().check("look_up")
        vectors = _scorer(lookup).items(inputs.vectors, inputs.dense, inputs.content)
        return vectors, enriched.complete

    def _response(self, query: PreRankQuery, scores: PreRankScores) -> Any:
        best, complete = scores.best, scores.complete
        metrics.CANDIDATES.labels(ROLE).inc(scores.size)
        response = pb.PreRankResponse(
            request_id=query.request_id,
            version=scores.version,
            model=self.model,
            index=[] if query.keys is None else best.positions.tolist(),
            score=best.scores.tolist(),
            unknown=scores.unknown,
        )
        if not self.named:
            response.ids.values.extend(scores.keys.tolist())
        else:
            names, names_complete = self.names(query, scores)
            response.names.values.extend(names)
            complete = complete and names_complete
        if not complete:
            response.degraded, response.degraded_reason = True, self._follower.reader.problem
            metrics.DEGRADED.labels(ROLE).inc()
        return response

    def names(self, query: PreRankQuery, scores: PreRankScores) -> tuple[list[str], bool]:
        """Names of the best items, of the catalogue from their look-up rows: "" for a missing row.

        Returns:
            The names; False if rows may be missing.
        """
        if query.candidates is not None:
            return query.candidates.take(pa.array(scores.best.positions)).to_pylist(), True
        names, complete = self.item_values(self._items.key, scores.keys)
        return [name or "" for name in names.to_pylist()], complete

    def item_values(self, column: str, keys: I64) -> tuple[pa.Array, bool]:
        """Column of the items' look-up rows, null for a missing row; False if rows may be missing."""
        root = self._items[column]
        result = self._lookup_rows.find([LookupQuery(self._items, keys)])
        return result.rows[0].columns([LookupRoot.of(root)])[root.name], result.complete


def _scorer(lookup: VersionLookup) -> TowerScorer:
    return tower_scorer(lookup.version)


def prerank_follower(pipeline: Pipeline, options: ServeOptions) -> VersionFollower:
    """Follower of a pre-rank server: the towers' tables, and the item vectors."""
    fields = (*tower_features(pipeline, "user").fields, *tower_features(pipeline, "item").fields)
    spec = RoleSpec(
        role=ROLE,
        fingerprint=pipeline.fingerprint,
        contents=Contents(pipeline, content_fields(pipeline, ROLE), options.content),
        with_items=True,
        near_cache=lambda manifest: near_cache(pipeline, fields, manifest, options.near_cache_rows),
        scorer=lambda manifest, dense: TowerScorer(pipeline, dense, manifest.champion),
        leaves_ms=pipeline.log.leaves_ms,
    )
    reader = Reader(options.redis, options.namespace, pipeline.fingerprint)
    return VersionFollower(reader, spec, options.lost_grace_s, options.max_stale_s)
