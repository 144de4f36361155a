"""The rank server's answers: candidates → click probabilities and expected revenue, best first.

    parse ─► facts, histories ─► features ─► rows, content at one version ─► model ─► eCPM ─► order

Fields whose columns are equal for all candidates (the user's, the page's) are looked up and pooled once, and
so is their content.
Features with running statistics are extracted with those of the version that answers.
"""

from __future__ import annotations

import time
from collections.abc import Sequence
from typing import Any

import numpy as np
import numpy.typing as npt

from livectr.ingest.extract.sharing import SharedFeatures
from livectr.ingest.pipeline import Pipeline
from livectr.ingest.plan.features import Features
from livectr.protos import livectr_pb2 as pb
from livectr.protos.store import F32, I64
from livectr.serving import metrics
from livectr.serving.errors import RequestError
from livectr.serving.limits import RequestLimits
from livectr.serving.options import ServeOptions
from livectr.serving.request.enrich import Assembler
from livectr.serving.request.extract import RequestFeatures
from livectr.serving.request.inline_content import InlineContent, parse_content
from livectr.serving.request.lookup_rows import LookupRows
from livectr.serving.request.parse import RequestSchema, check_string, finite
from livectr.serving.score.look_up import VersionLookup, at_one_version
from livectr.serving.score.scorer import RankScorer, content_fields, near_cache, sequence_fields
from livectr.serving.version.content import Contents
from livectr.serving.version.follower import VersionFollower
from livectr.serving.version.near_cache import I32, Batch, List
from livectr.serving.version.reader import Reader

ROLE = "rank"


class Ranker:
    """Answers RankRequests at the version that its follower holds."""

    def __init__(self, pipeline: Pipeline, follower: VersionFollower, options: ServeOptions) -> None:
        self._limits = limits = RequestLimits.of(options)
        self.schema = RequestSchema(pipeline, pipeline.plan.roots, limits)
        self._follower = follower
        self._features = RequestFeatures(pipeline.plan, limits)
        facts = LookupRows(follower.reader, fresh_s=options.lookup_ttl_s)
        self._assembler = Assembler(pipeline, pipeline.plan, follower.reader, facts)
        self._fields = tuple((spec.name, spec.table) for spec in pipeline.fields)
        self._sequences = sequence_fields(pipeline)
        wanted = content_fields(pipeline, ROLE)
        self._contents = {spec.name: spec.index for spec in pipeline.fields if spec.name in wanted}
        self.model = f"{type(pipeline.rank).__name__}/{pipeline.fingerprint[:12]}"

    def rank(self, request: Any, deadline: float | None) -> Any:
        """RankRequest → RankResponse. Raises AnswerError."""
        check_string(len(request.request_id), "request_id", self._limits)
        rows = self.schema.parse(request.context, request.candidates, time.time_ns() // 1_000_000)
        bids = self._bids(request.bids, rows.size)
        brought = parse_content(request.content, self._follower.contents.widths)
        columns, asked = self._assembler.columns(rows)
        features_at = self._features.of(columns, lambda i: f"candidates[{i}]")

        def answer(snapshot: VersionLookup) -> tuple[VersionLookup, F32]:
            scorer = snapshot.served.scorer
            assert isinstance(scorer, RankScorer)
            features = features_at(scorer.statistics)
            vectors, lists = self._vectors(snapshot, features)
            content = self._content(snapshot, features, brought)
            return snapshot, scorer.logits(vectors, features.own.dense, lists, content)

        snapshot, logits = at_one_version(self._follower, ROLE, deadline, answer)
        pctr = 1.0 / (1.0 + np.exp(-logits.astype(np.float64)))
        ecpm = bids * pctr
        order = np.argsort(-ecpm, kind="stable")
        metrics.CANDIDATES.labels(ROLE).inc(rows.size)
        degraded = not (asked and snapshot.asked)
        if degraded:
            metrics.DEGRADED.labels(ROLE).inc()
        return pb.RankResponse(
            request_id=request.request_id,
            version=snapshot.served.version,
            model=self.model,
            index=order.tolist(),
            pctr=pctr[order].tolist(),
            ecpm=ecpm[order].tolist(),
            degraded=degraded,
            degraded_reason=self._follower.reader.problem if degraded else "",
        )

    def _vectors(self, snapshot: VersionLookup, features: SharedFeatures) -> tuple[F32, dict[str, List]]:
        """Pooled vectors f32[n, F, D], and by name the lists that the model needs."""
        shared, own = list(features.shared_fields), list(features.own_fields)
        if not shared:
            return self._look_up(snapshot, features.own, own)
        once, lists = self._look_up(snapshot, features.shared, shared)
        rows = features.own.rows
        lists = {name: self._repeated(name, one, rows) for name, one in lists.items()}
        out = np.empty((rows, len(self._fields), once.shape[2]), np.float32)
        out[:, shared] = once
        if own:
            out[:, own], more = self._look_up(snapshot, features.own, own)
            lists |= more
        return out, lists

    def _repeated(self, field: str, one: List, rows: int) -> List:
        if len(one.values) * rows > self._limits.pairs:
            raise RequestError(
                "context",
                f"feature {field} has {len(one.values)} values, too many to be looked at from {rows} "
                f"candidates; send fewer (max_values is {self._limits.values})",
            )
        return one.repeated(rows)

    def _look_up(
        self, snapshot: VersionLookup, features: Features, chosen: Sequence[int]
    ) -> tuple[F32, dict[str, List]]:
        """The same of features of the chosen fields alone."""
        fields = tuple(self._fields[i] for i in chosen)
        sequences = tuple(i for i, (name, _) in enumerate(fields) if name in self._sequences)
        batch = Batch(fields, features.offsets, features.keys, features.rows, sequences)
        found = snapshot.vectors(batch)
        return found.pooled, {fields[i][0]: one for i, one in zip(sequences, found.lists, strict=True)}

    def _content(
        self, snapshot: VersionLookup, features: SharedFeatures, brought: InlineContent
    ) -> dict[str, List]:
        """By field, the vectors of the content that the model looks at."""
        lists: dict[str, tuple[I32, I64]] = {}
        shared = set()
        for field, number in self._contents.items():
            if number in features.shared_fields:
                shared.add(field)
                lists[field] = features.shared.field(features.shared_fields.index(number))
            else:
                lists[field] = features.own.field(features.own_fields.index(number))
        found = snapshot.content(lists, brought)
        rows = features.own.rows
        return {
            field: self._repeated(field, one, rows) if field in shared else one
            for field, one in found.items()
        }

    def _bids(self, values: Any, size: int) -> npt.NDArray[np.float64]:
        if not len(values):
            return np.ones(size)
        if len(values) != size:
            raise RequestError(
                "bids", f"holds {len(values)} values for {size} candidates; send one each or none"
            )
        bids = finite(values, "bids")
        if (bids < 0).any():
            raise RequestError("bids", f"value {int(np.argmax(bids < 0))} is negative")
        return bids


def rank_follower(pipeline: Pipeline, options: ServeOptions) -> VersionFollower:
    """A rank server's follower: every table, no item vectors."""
    return VersionFollower(
        reader=Reader(options.redis, options.namespace, pipeline.fingerprint),
        role=ROLE,
        fingerprint=pipeline.fingerprint,
        cache=lambda manifest: near_cache(pipeline, pipeline.plan.fields, manifest, options.nearcache_rows),
        build=lambda _, dense: RankScorer(pipeline, dense),
        with_items=False,
        contents=Contents(pipeline, content_fields(pipeline, ROLE), options.content),
        lost_grace_s=options.lost_grace_s,
    )
