"""The pre-rank server's answers: the best few of many ads, by ⟨user vector, ad vector⟩.

The ads' vectors come with a version as one matrix. An ad without one (it is newer than the version, or in no
table) is scored from its features with the version's item tower, so it can win a place too.
"""

from __future__ import annotations

import time
from collections.abc import Callable
from typing import Any

import numpy as np
import numpy.typing as npt
import pyarrow as pa

from livectr.ingest.extract.statistics import Statistics
from livectr.ingest.language.keys import key_of
from livectr.ingest.pipeline import Pipeline
from livectr.ingest.plan.dag import FeaturePlan
from livectr.kernels.errors import ConfigError
from livectr.protos import livectr_pb2 as pb
from livectr.protos.store import F32, I64
from livectr.serving import metrics
from livectr.serving.errors import RequestError
from livectr.serving.limits import RequestLimits
from livectr.serving.options import ServeOptions
from livectr.serving.request.enrich import Assembler
from livectr.serving.request.extract import RequestFeatures
from livectr.serving.request.inline_content import InlineContent, parse_content
from livectr.serving.request.lookup_rows import LookupQuery, LookupRows, lookup_columns
from livectr.serving.request.parse import RequestSchema, Rows, check_string, strings
from livectr.serving.score.look_up import VersionLookup, at_one_version
from livectr.serving.score.scorer import (
    TowerFeatures,
    TowerScorer,
    content_fields,
    near_cache,
    tower_features,
)
from livectr.serving.version.content import Contents
from livectr.serving.version.follower import VersionFollower
from livectr.serving.version.id_vectors import IdVectors
from livectr.serving.version.near_cache import I32, Batch
from livectr.serving.version.reader import Reader

ROLE = "prerank"

_Inputs = tuple[Batch, F32, dict[str, tuple[I32, I64]]]
"""Keys, dense features f32[B, Dd], and by field the lists of ids of content."""


class _Side:
    """One tower's features: from request columns to the batch that its fields pool."""

    def __init__(
        self,
        pipeline: Pipeline,
        own: TowerFeatures,
        follower: VersionFollower,
        facts: LookupRows,
        limits: RequestLimits,
    ) -> None:
        whole = pipeline.plan
        looked_at = tuple(name for name in own.images if name not in own.fields)
        self.plan = FeaturePlan(
            {name: whole.sparse[name] for name in (*own.fields, *looked_at)},
            {name: whole.dense[name] for name in own.dense},
        )
        self._pooled = range(len(own.fields))
        self._images = {name: self.plan.fields.index(name) for name in own.images}
        self._features = RequestFeatures(self.plan, limits)
        self._assembler = Assembler(pipeline, self.plan, follower.reader, facts)
        tables = {spec.name: spec.table for spec in pipeline.fields}
        self._fields = tuple((name, tables[name]) for name in own.fields)

    def inputs(self, rows: Rows, name: Callable[[int], str]) -> tuple[Callable[[Statistics], _Inputs], bool]:
        """What the tower takes of the rows, given a version's statistics; whether Redis was asked for what
        they need. name: of a row in the request, for the RequestError of one that cannot be extracted."""
        columns, asked = self._assembler.columns(rows)
        features_at = self._features.of(columns, name)

        def at(statistics: Statistics) -> _Inputs:
            found = features_at(statistics).own  # one row shares with nobody, items share nothing
            pooled = found.select_fields(self._pooled)
            images = {name: found.field(number) for name, number in self._images.items()}
            return Batch(self._fields, pooled.offsets, pooled.keys, pooled.rows), found.dense, images

        return at, asked


class PreRanker:
    """Answers PreRankRequests at the version that its follower holds.

    Raises ConfigError for a pipeline without pre-rank model.
    """

    def __init__(self, pipeline: Pipeline, follower: VersionFollower, options: ServeOptions) -> None:
        if pipeline.items is None:
            raise ConfigError("pre-rank needs items=, the look-up table of what is ranked")
        self._items = pipeline.items
        self._on = next(lk.on for lk in pipeline.log.lookups if lk.table.topic == pipeline.items.topic)
        self._named = pipeline.items.columns[pipeline.items.key] == "string"
        self._follower = follower
        self._limits = limits = RequestLimits.of(options)
        self._facts = LookupRows(follower.reader, fresh_s=options.lookup_ttl_s)
        self._user = _Side(pipeline, tower_features(pipeline, "user"), follower, self._facts, limits)
        self._item = _Side(pipeline, tower_features(pipeline, "item"), follower, self._facts, limits)
        self.schema = RequestSchema(pipeline, self._user.plan.roots, limits, only_context=True)
        self.model = f"{type(pipeline.prerank).__name__}/{pipeline.fingerprint[:12]}"

    def prerank(self, request: Any, deadline: float | None) -> Any:
        """PreRankRequest → PreRankResponse. Raises AnswerError."""
        rows = self.schema.parse_context(request.context, time.time_ns() // 1_000_000)
        check_string(len(request.request_id), "request_id", self._limits)
        if request.top_k < 1:
            raise RequestError("top_k", "must be at least 1")
        if request.top_k > self._limits.top_k:
            raise RequestError(
                "top_k",
                f"is {request.top_k}; this server gives at most {self._limits.top_k} items (max_top_k)",
            )
        candidates = self._candidates(request)
        brought = parse_content(request.content, self._follower.contents.widths)
        keys = None if candidates is None else key_of(candidates)
        user_at, asked = self._user.inputs(rows, lambda _: "context")

        def answer(snapshot: VersionLookup) -> _Answer:
            scorer = snapshot.served.scorer
            assert isinstance(scorer, TowerScorer)
            batch, dense, images = user_at(scorer.statistics)
            content = snapshot.content(images, brought)
            user = scorer.user(snapshot.vectors(batch).pooled, dense, content)[0]
            items = snapshot.served.items or IdVectors.none(len(user))
            if keys is None or candidates is None:
                return _Answer(snapshot, items.ids, items.vectors @ user + scorer.bias, 0, True)
            return self._score(snapshot, scorer, items, user, candidates, keys, brought)

        found = at_one_version(self._follower, ROLE, deadline, answer)
        best = top(found.scores, request.top_k)
        metrics.CANDIDATES.labels(ROLE).inc(len(found.scores))
        asked = asked and found.asked
        response = pb.PreRankResponse(
            request_id=request.request_id,
            version=found.snapshot.served.version,
            model=self.model,
            index=[] if keys is None else best.tolist(),
            score=found.scores[best].tolist(),
            unknown=found.unknown,
        )
        if not self._named:
            response.ids.values.extend(found.keys[best].tolist())
        elif candidates is not None:
            response.names.values.extend(candidates.take(pa.array(best)).to_pylist())
        else:
            names, known = self._names(found.keys[best])
            response.names.values.extend(names)
            asked = asked and known
        if not asked:
            response.degraded, response.degraded_reason = True, self._follower.reader.problem
            metrics.DEGRADED.labels(ROLE).inc()
        return response

    def _candidates(self, request: Any) -> pa.Array | None:
        """The item ids as an array of the items table's key type; None for the whole catalogue."""
        kind = request.WhichOneof("candidates")
        if kind is None:
            return None
        wanted = "names" if self._named else "ids"
        if kind != wanted:
            dtype = self._items.columns[self._items.key]
            raise RequestError(kind, f"the items are known by {dtype}; send {wanted}")
        values = getattr(request, kind).values
        if not len(values):
            raise RequestError(kind, "is empty: send at least one item, or leave the field out for all")
        if len(values) > (most := self._limits.candidates):
            raise RequestError(
                kind, f"holds {len(values)} items; this server takes at most {most} (max_candidates)"
            )
        if self._named:
            return strings(values, "string", kind, self._limits)
        return pa.array(np.array(values, np.int64))

    def _score(
        self,
        snapshot: VersionLookup,
        scorer: TowerScorer,
        items: IdVectors,
        user: F32,
        candidates: pa.Array,
        keys: I64,
        brought: InlineContent,
    ) -> _Answer:
        at, known = items.find(keys)
        asked = True
        scores = np.empty(len(keys), np.float32)
        if known.all():
            scores[:] = items.vectors[at] @ user
        else:
            scores[known] = items.vectors[at[known]] @ user
            cold = candidates.filter(pa.array(~known))
            rows = Rows(len(cold), {}, {self._on: cold}, 0)
            items_at, asked = self._item.inputs(rows, lambda i: f"item {cold[i]}")
            batch, dense, images = items_at(scorer.statistics)
            content = snapshot.content(images, brought)
            scores[~known] = scorer.items(snapshot.vectors(batch).pooled, dense, content) @ user
        return _Answer(snapshot, keys, scores + scorer.bias, int((~known).sum()), asked and snapshot.asked)

    def _names(self, keys: I64) -> tuple[list[str], bool]:
        """Names of items by their keys, from their look-up rows ("" for one that has none any more), and
        whether Redis was asked."""
        root = self._items[self._items.key]
        found = self._facts.find([LookupQuery(self._items, keys)])
        names = lookup_columns(self._items, found.rows[0], [root])[root.name]
        return [name or "" for name in names.to_pylist()], found.asked


class _Answer:
    """Scores f32[n] of items with keys i64[n], at the snapshot's version."""

    def __init__(self, snapshot: VersionLookup, keys: I64, scores: F32, unknown: int, asked: bool) -> None:
        self.snapshot = snapshot
        self.keys = keys
        self.scores = scores
        self.unknown = unknown
        self.asked = asked and snapshot.asked


def top(scores: F32, k: int) -> npt.NDArray[np.int64]:
    """Positions i64[min(k, n)] of the greatest scores f32[n], greatest first, equal ones by position."""
    n = len(scores)
    if k < n:
        edge = np.partition(scores, n - k)[n - k]
        above, level = np.flatnonzero(scores > edge), np.flatnonzero(scores == edge)
        chosen = np.sort(np.concatenate([above, level[: k - len(above)]]))
    else:
        chosen = np.arange(n)
    return chosen[np.argsort(-scores[chosen], kind="stable")]


def prerank_follower(pipeline: Pipeline, options: ServeOptions) -> VersionFollower:
    """A pre-rank server's follower: the towers' tables, and the item vectors."""
    fields = (*tower_features(pipeline, "user").fields, *tower_features(pipeline, "item").fields)
    return VersionFollower(
        reader=Reader(options.redis, options.namespace, pipeline.fingerprint),
        role=ROLE,
        fingerprint=pipeline.fingerprint,
        cache=lambda manifest: near_cache(pipeline, fields, manifest, options.nearcache_rows),
        build=lambda _, dense: TowerScorer(pipeline, dense),
        with_items=True,
        contents=Contents(pipeline, content_fields(pipeline, ROLE), options.content),
        lost_grace_s=options.lost_grace_s,
    )
