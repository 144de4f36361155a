"""Stages enrich, extract and look up: a request's columns become the inputs of a model.

The same three stages give the inputs of a whole ranking model, of its items' part, and of both towers.
"""

from __future__ import annotations

import functools
from collections.abc import Callable, Collection, Mapping
from dataclasses import dataclass
from typing import Protocol

from livectr.ingest.extract.sharing import SharedFeatures
from livectr.ingest.extract.statistics import Statistics
from livectr.ingest.pipeline import Pipeline
from livectr.ingest.plan.features import Features
from livectr.kernels.request.pooled import FieldPlace
from livectr.serving.errors import RequestError
from livectr.serving.limits import RequestLimits
from livectr.serving.request.features import FeatureRun, RequestFeatures
from livectr.serving.request.inline_content import InlineContent
from livectr.serving.request.lookup_rows import LookupRows
from livectr.serving.request.parse import RequestColumns
from livectr.serving.score.inputs import FieldVectors, ModelInputs
from livectr.serving.score.item_features import PlanPart
from livectr.serving.score.look_up import VersionLookup
from livectr.serving.version.batch import I32, Batch, RaggedVectors
from livectr.serving.version.loader import ModelVersion
from livectr.serving.version.prefetch import PrefetchKeys, UserTables
from livectr.serving.version.reader import Reader
from livectr.store.layout import I64

MOST_ORDERS = 256
"""Sets of shared fields whose order is remembered; clients choose which fields are shared."""


class ReadingModel(Protocol):
    """Model of a version, by what it reads.

    Attributes:
        statistics: running statistics of the pipeline's features.
        sequences: fields of which it reads the vector of each key.
        content: fields of which it reads the content.
    """

    @property
    def statistics(self) -> Statistics:
        """Running statistics of the pipeline's features."""

    @property
    def sequences(self) -> tuple[str, ...]:
        """Fields of which the model reads the vector of each key."""

    @property
    def content(self) -> Collection[str]:
        """Fields of which the model reads the content."""


@dataclass(frozen=True)
class Sources:
    """Sources that every stage of a server reads from.

    Args:
        limits: upper bounds of a request.
        reader: of Redis.
        lookup_rows: cache of look-up rows.
    """

    pipeline: Pipeline
    limits: RequestLimits
    reader: Reader
    lookup_rows: LookupRows


@dataclass(frozen=True, eq=False)
class FieldOrder:
    """Order of a batch's fields: shared ones first. There is one object for each order of a `PlanStages`.

    Args:
        fields: pairs (field name, table name).
        sequences: places in `fields` of the fields that the model reads as sequences.
        shared, own: numbers in the pipeline of the shared fields, and of the others.
        places: name → place of the field, also of those whose content alone is read.
    """

    fields: tuple[tuple[str, str], ...]
    sequences: tuple[int, ...]
    shared: tuple[int, ...]
    own: tuple[int, ...]
    places: Mapping[str, FieldPlace]


def not_timed(*ends: tuple[str, float]) -> None:
    """Ends of stages that nobody times."""


class PlanStages:
    """Stages of requests for a part of a pipeline's features; shared fields are looked up and pooled once.

    Args:
        part: the features.
        model: model of a version that reads them.
        item_column: column of the candidates whose keys are wanted, too.

    Attributes:
        features: of the part.
        order: gives the order of the fields of some features, by the numbers of the shared fields, the
            numbers of the others, and the fields that a model reads as sequences, which need not be there;
            without fields whose content alone is read.
        most_pairs: largest number of values of a context's list, times rows that look at it.
    """

    def __init__(
        self,
        sources: Sources,
        part: PlanPart,
        model: Callable[[ModelVersion], ReadingModel],
        item_column: str | None = None,
    ) -> None:
        pipeline, plan = sources.pipeline, part.plan
        self.roots = plan.roots
        self._limits = sources.limits
        self.most_pairs = sources.limits.pairs
        self._model = model
        self.features = RequestFeatures(
            pipeline, plan, sources.reader, sources.lookup_rows, sources.limits, item_column
        )
        self._numbers = part.fields
        tables = {spec.name: spec.table for spec in pipeline.fields}
        self._fields = tuple((name, tables[name]) for name in plan.fields[: len(part.fields)])
        self._index = {name: index for index, name in enumerate(plan.fields)}
        self._users = UserTables(pipeline, [name for name, _ in self._fields])
        self.order = functools.lru_cache(MOST_ORDERS)(self._order_of)

    def read(
        self, lookup: VersionLookup, run: FeatureRun, beside: tuple[PlanStages, FeatureRun] | None = None
    ) -> None:
        """Read what the features of a run miss. Raises AnswerError.

        Args:
            lookup: version that answers.
            run: whose call has failed.
            beside: another run for the same user, which gets its histories, too.
        """
        other = None if beside is None else (beside[0].features, beside[1])
        lookup.prefetched = self.features.read(run, functools.partial(self._prefetch, lookup), other)

    def _prefetch(self, lookup: VersionLookup, user: I64) -> PrefetchKeys | None:
        return self._users.missing(user, lookup.version.manifest, lookup.cache)

    def inputs(
        self,
        lookup: VersionLookup,
        columns: RequestColumns,
        inline: InlineContent,
        row_name: Callable[[int], str],
        passed: Callable[..., object] = not_timed,
    ) -> ModelInputs:
        """Enrich, extract and look up n rows at a version.

        Args:
            lookup: version that answers.
            columns: of a parsed request, n rows.
            inline: content that the request carries.
            row_name: name in the request of the row with a given index, for error messages.
            passed: told the ends of the stages "enrich" and "extract".

        Raises:
            AnswerError: the status that the client receives.
            SupersededError: a row is newer than the version.
        """
        model = self._model(lookup.version)
        prefetch = functools.partial(self._prefetch, lookup)
        extracted = self.features.extract(columns, model.statistics, row_name, prefetch)
        lookup.prefetched = extracted.prefetched
        passed(*zip(("enrich", "extract"), extracted.ends, strict=True))
        features = extracted.features
        vectors, lists = self._vectors(lookup, features, model.sequences)
        content = self.content(lookup, features, model.content, inline)
        return ModelInputs(
            features, vectors, features.own.dense, lists, content, extracted.complete, extracted.read_at
        )

    def batch(self, run: FeatureRun, model: ReadingModel) -> Batch:
        """Batch of the keys of a run's features, with the sequences that a model reads."""
        order, features = self.ordered(run.features(), model.sequences)
        return Batch.joined(order.fields, order.sequences, features.shared, features.own)

    def ordered(
        self, features: SharedFeatures, sequences: tuple[str, ...] = ()
    ) -> tuple[FieldOrder, SharedFeatures]:
        """Order of the fields of a batch, and their features: without fields whose content alone is read."""
        if len(self._fields) < len(self._index):
            features = self._looked_up(features)
        return self.order(features.shared_fields, features.own_fields, sequences), features

    def _vectors(
        self, lookup: VersionLookup, features: SharedFeatures, sequences: tuple[str, ...]
    ) -> tuple[FieldVectors, dict[str, RaggedVectors]]:
        """Pooled vectors of all fields, and by field the lists that the model reads."""
        order, features = self.ordered(features, sequences)
        batch = Batch.joined(order.fields, order.sequences, features.shared, features.own)
        vectors = lookup.vectors(batch)
        lists = {}
        for i, part in zip(batch.sequences, vectors.lists, strict=True):
            name = batch.fields[i][0]
            lists[name] = self._broadcast(name, part, batch.rows) if i < batch.once else part
        return FieldVectors(vectors.pooled, order.own, vectors.once, order.shared), lists

    def _looked_up(self, features: SharedFeatures) -> SharedFeatures:
        """Features without the fields of which only the content is read."""
        count = len(self._fields)

        def part(features: Features, numbers: tuple[int, ...]) -> tuple[Features, tuple[int, ...]]:
            places = [place for place, number in enumerate(numbers) if number < count]
            return features.select_fields(places), tuple(numbers[place] for place in places)

        shared, shared_fields = part(features.shared, features.shared_fields)
        own, own_fields = part(features.own, features.own_fields)
        return SharedFeatures(shared, own, shared_fields, own_fields)

    def _order_of(self, shared: tuple[int, ...], own: tuple[int, ...], read: tuple[str, ...]) -> FieldOrder:
        """Order of the fields of some features.

        Args:
            shared: numbers in the plan of the shared fields.
            own: numbers in the plan of the other fields.
            read: fields that the model reads as sequences.
        """
        names, count = list(self._index), len(self._fields)
        places = {
            names[number]: FieldPlace(is_shared, place)
            for is_shared, numbers in ((True, shared), (False, own))
            for place, number in enumerate(numbers)
        }
        shared, own = (tuple(i for i in numbers if i < count) for numbers in (shared, own))
        fields = tuple(self._fields[i] for i in (*shared, *own))
        return FieldOrder(
            fields,
            tuple(place for place, (name, _) in enumerate(fields) if name in read),
            tuple(self._numbers[i] for i in shared),
            tuple(self._numbers[i] for i in own),
            places,
        )

    def content(
        self,
        lookup: VersionLookup,
        features: SharedFeatures,
        fields: Collection[str],
        inline: InlineContent,
    ) -> dict[str, RaggedVectors]:
        """Content vectors of the fields whose content the model reads."""
        lists: dict[str, tuple[I32, I64]] = {}
        shared = set()
        for field in fields:
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
        if size * rows > self.most_pairs:
            raise self.too_many(field, size, rows)
        return vectors.broadcast(rows)

    def too_many(self, field: str, size: int, rows: int) -> RequestError:
        """Error of a context's list of `size` values that is too long for so many rows."""
        return RequestError(
            "context",
            f"feature {field} has {size} values, too many to be looked at from {rows} "
            f"candidates; send fewer (max_values is {self._limits.values})",
        )
