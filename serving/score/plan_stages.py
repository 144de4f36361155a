"""Stages enrich, extract and look up for the features of a plan, a ranking model's or a part of them."""

from __future__ import annotations

import functools
from collections.abc import Callable, Sequence

from livectr.ingest.extract.sharing import SharedFeatures
from livectr.ingest.pipeline import Pipeline
from livectr.ingest.plan.dag import FeaturePlan
from livectr.serving.errors import RequestError
from livectr.serving.limits import RequestLimits
from livectr.serving.request.enrich import EnrichedRequest, Enricher
from livectr.serving.request.extract import FeaturesAt, RequestFeatures
from livectr.serving.request.lookup_rows import LookupRows
from livectr.serving.request.parse import InlineContent, RequestColumns
from livectr.serving.score.inputs import FieldVectors, RankInputs
from livectr.serving.score.look_up import VersionLookup
from livectr.serving.score.scorer import rank_scorer
from livectr.serving.version.near_cache import I32, Batch, RaggedVectors
from livectr.serving.version.prefetch import PrefetchKeys
from livectr.serving.version.reader import Reader
from livectr.store.layout import I64


class PlanStages:
    """Stages of requests for some of a pipeline's features; shared fields are looked up and pooled once.

    Args:
        plan: of the features.
        fields: numbers of its fields in the pipeline.
    """

    def __init__(
        self,
        pipeline: Pipeline,
        plan: FeaturePlan,
        fields: Sequence[int],
        limits: RequestLimits,
        reader: Reader,
        lookup_rows: LookupRows,
    ) -> None:
        self._limits = limits
        self._enricher = Enricher(pipeline, plan, reader, lookup_rows)
        self._features = RequestFeatures(plan, limits)
        self._numbers = tuple(fields)
        tables = {spec.name: spec.table for spec in pipeline.fields}
        self._fields = tuple((name, tables[name]) for name in plan.fields)
        self._index = {name: index for index, name in enumerate(plan.fields)}

    def enrich(self, columns: RequestColumns, prefetch: PrefetchKeys | None = None) -> EnrichedRequest:
        """See `Enricher.enrich`."""
        return self._enricher.enrich(columns, prefetch)

    def extract(self, request: EnrichedRequest, row_name: Callable[[int], str]) -> FeaturesAt:
        """See `RequestFeatures.extract`."""
        return self._features.extract(request, row_name)

    def look_up(self, lookup: VersionLookup, features_at: FeaturesAt, inline: InlineContent) -> RankInputs:
        """Look up the features of n rows.

        Args:
            inline: content that the request carries.

        Raises:
            AnswerError: the status that the client receives.
        """
        scorer = rank_scorer(lookup.version)
        features = features_at(scorer.statistics)
        read = tuple(name for name in scorer.sequences if name in self._index)
        vectors, lists = self._vectors(lookup, features, read)
        content = self._content(lookup, features, inline)
        return RankInputs(features, vectors, features.own.dense, lists, content)

    def _vectors(
        self, lookup: VersionLookup, features: SharedFeatures, read: tuple[str, ...]
    ) -> tuple[FieldVectors, dict[str, RaggedVectors]]:
        """Pooled vectors of all fields, and by field the lists that the model reads."""
        shared, own = features.shared_fields, features.own_fields
        fields, sequences = _shape(self._fields, (*shared, *own), read)
        batch = Batch.joined(fields, sequences, features.shared, features.own)
        vectors = lookup.vectors(batch)
        lists = {}
        for i, part in zip(batch.sequences, vectors.lists, strict=True):
            name = batch.fields[i][0]
            lists[name] = self._broadcast(name, part, batch.rows) if i < batch.once else part
        own_numbers, shared_numbers = (tuple(self._numbers[i] for i in part) for part in (own, shared))
        return FieldVectors(vectors.pooled, own_numbers, vectors.once, shared_numbers), lists

    def _content(
        self, lookup: VersionLookup, features: SharedFeatures, inline: InlineContent
    ) -> dict[str, RaggedVectors]:
        """Content vectors of the fields whose content the model reads."""
        lists: dict[str, tuple[I32, I64]] = {}
        shared = set()
        for field in rank_scorer(lookup.version).content:
            index = self._index.get(field)
            if index is None:
                continue
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
