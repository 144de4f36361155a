"""Common-feature technique (DICM §7.2; Gai et al. 2017): examples of one user share the user's features.

The shared features exist once per batch in memory, on the wire and in compute:

    user's columns ─► group ─► a row of each group ─► common features: G rows ┐
    all columns    ──────────────────────────────────► own features:   B rows ┴─► CommonFeatures

A feature is common when it depends on nothing but the user: on the key column of the impressions, look-ups by
that column, and histories. Rows of a user form a group where their histories are equal, too: histories grow
between the user's impressions. Within a batch a user's look-up rows are equal, because all are read at once.

The groups depend on the batch's content alone: a run that is repeated or resumed makes the same groups.
"""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass, replace
from threading import Lock

import numpy as np
import numpy.typing as npt
import pyarrow as pa

from livectr.ingest.extract.device_features import DeviceFeatures
from livectr.ingest.extract.extractor import Extract, Extractor, bind_columns
from livectr.ingest.extract.statistics import Statistics, name_of
from livectr.ingest.join.example_columns import Examples
from livectr.ingest.language.expr import Expr, RecentRef, is_vector, width_of
from livectr.ingest.language.roots import roots_of
from livectr.ingest.materialized.features import ExampleFeatures
from livectr.ingest.pipeline import Pipeline
from livectr.ingest.plan.dag import FeaturePlan
from livectr.ingest.plan.features import Features
from livectr.ingest.plan.segments import segments
from livectr.kernels.keys.groups import Bytes, group_rows

I32 = npt.NDArray[np.int32]
I64 = npt.NDArray[np.int64]

WORTHWHILE = 0.5
"""Groups per row above which rows are not grouped, because grouping would cost more than it saves."""
FEW = 64
"""Rows of a batch up to which it is not grouped, for the same reason."""


@dataclass(frozen=True)
class Common:
    """Numbers of a pipeline's common features, among its sparse fields and its dense numbers, ascending."""

    fields: tuple[int, ...] = ()
    dense: tuple[int, ...] = ()

    def __bool__(self) -> bool:
        return bool(self.fields or self.dense)

    @staticmethod
    def of(pipeline: Pipeline) -> Common:
        """Find the common features of a pipeline."""
        plan = pipeline.plan
        dense: list[int] = []
        place = 0
        for node in plan.dense.values():
            width = width_of(node) if is_vector(node) else 1
            dense += range(place, place + width) if _is_common(pipeline, node) else ()
            place += width
        fields = (i for i, node in enumerate(plan.sparse.values()) if _is_common(pipeline, node))
        return Common(tuple(fields), tuple(dense))


def _is_common(pipeline: Pipeline, node: Expr) -> bool:
    roots = roots_of(node)
    return bool(roots) and all(_is_users(pipeline, root) for root in roots)


def _is_users(pipeline: Pipeline, root: Expr) -> bool:
    """Return true if a root column depends on the user alone."""
    log = pipeline.log
    by_user = {lookup.table.topic for lookup in log.lookups if lookup.keys == (log.impressions.key,)}
    ref = root.ref
    if isinstance(ref, RecentRef):
        return True
    return ref.source in by_user if ref.table else ref.column == log.impressions.key


@dataclass(frozen=True)
class CommonFeatures:
    """Features of B rows in G groups. Each part is on the host or on a device.

    Args:
        common: G rows, the common fields and dense numbers of each group.
        own: B rows, the other fields and dense numbers.
        index: int32[B], group of each row; every group has a row.
        observed: int64[S, B], as in Features.
        failed: bool[B], as in Features.
    """

    common: Features | DeviceFeatures
    own: Features | DeviceFeatures
    index: I32
    observed: I64
    failed: npt.NDArray[np.bool_]

    def __len__(self) -> int:
        return len(self.index)

    @property
    def rows(self) -> int:
        """Number of rows B."""
        return len(self.index)

    @property
    def groups(self) -> int:
        """Number of groups G."""
        return self.common.rows

    def ids(self) -> CommonFeatures:
        """The same rows and groups on the host, without dense numbers."""
        return replace(self, common=self.common.ids(), own=self.own.ids())

    def host(self) -> CommonFeatures:
        """The same rows and groups on the host."""
        return replace(self, common=self.common.host(), own=self.own.host())

    def take(self, rows: I64) -> CommonFeatures:
        """Gather rows in the given order, with their groups."""
        used, index = np.unique(self.index[rows], return_inverse=True)
        return CommonFeatures(
            self.common.take(used),
            self.own.take(rows),
            index.astype(np.int32),
            self.observed[:, rows],
            self.failed[rows],
        )

    @staticmethod
    def of(features: Features, common: Common) -> CommonFeatures | Features:
        """Group the rows of features by their common features.

        Features without common features, or with too many groups to be worthwhile, are returned unchanged.
        """
        rows, numbers = features.rows, features.dense[:, list(common.dense)]
        if not common or not rows:
            return features
        starts = (features.offsets[f * rows : (f + 1) * rows + 1] for f in common.fields)
        keys = [Bytes(features.keys, offsets) for offsets in starts]
        index, first = group_rows([*keys, *map(Bytes, numbers.T)], rows)
        if len(first) > WORTHWHILE * rows:
            return features
        others = [f for f in range(features.fields) if f not in common.fields]
        own_dense = [d for d in range(features.dense.shape[1]) if d not in common.dense]
        return CommonFeatures(
            replace(features.select_fields(common.fields).take(first), dense=numbers[first]),
            replace(features.select_fields(others), dense=np.ascontiguousarray(features.dense[:, own_dense])),
            index,
            features.observed,
            features.failed,
        )

    def plain(self, common: Common) -> Features:
        """Copy the common features to each row, on the host."""
        shared, own = self.common.host(), self.own.host()
        dense = shared.dense.shape[1] + own.dense.shape[1]
        order = [
            _merged(common.fields, shared.fields + own.fields),
            _merged(common.dense, dense) if dense else [],  # of `ids` there are none
        ]
        merged = shared.take(self.index).merge(own, *order)
        return Features(self.rows, merged.offsets, merged.keys, merged.dense, self.observed, self.failed)


AnyFeatures = Features | DeviceFeatures | CommonFeatures
"""Features of a batch; `ids` and `host` bring them to the host."""


def _merged(common: tuple[int, ...], count: int) -> list[int]:
    """For each of `count` features its number among the common features and then the others."""
    others = [i for i in range(count) if i not in common]
    return np.argsort([*common, *others]).tolist()  # type: ignore[no-any-return]


def segments_of(field: int, common: Common, features: AnyFeatures) -> I64:
    """Key int64[B] of a field for each row (ingest.plan.segments), on the host."""
    if not isinstance(features, CommonFeatures):
        return segments(features.ids(), field)
    if field in common.fields:
        return segments(features.common.ids(), common.fields.index(field))[features.index]
    return segments(features.own.ids(), field - sum(other < field for other in common.fields))


@dataclass(frozen=True)
class _Sides:
    """Extractors of the common features and of the others.

    observed: for each statistic of the full plan, its number among the others' and among the common features'
    statistics, or None.
    """

    common: Extract
    own: Extract
    observed: tuple[tuple[int | None, int | None], ...]


def sharing(
    pipeline: Pipeline, track: ExampleFeatures, extractor: Callable[[FeaturePlan], Extract]
) -> Callable[[Examples, Statistics | None], AnyFeatures]:
    """Extraction of examples with shared common features, with the results of `track.features`.

    Computed features are computed once a group; features that are read are grouped afterwards. At most FEW
    examples are not grouped.

    Args:
        pipeline: whose features are extracted.
        track: materialized features, if any.
        extractor: makes the extractor of the plan, and of a part of it.
    """
    grouped = CommonExtractor(pipeline, extractor(pipeline.plan), extractor)
    common = Common.of(pipeline)

    def features(examples: Examples, statistics: Statistics | None) -> AnyFeatures:
        if len(examples) <= FEW:
            return track.features(examples, statistics)
        if track.materialized is None:
            return grouped.features(examples, statistics)
        return CommonFeatures.of(track.features(examples, statistics).host(), common)

    return features


class CommonExtractor:
    """Extracts a pipeline's features, with common features once a group; thread-safe.

    Args:
        pipeline: whose features are extracted.
        full: extractor of the full plan, for batches with few examples a user and pipelines without common
            features.
        extractor: makes the other extractors, for the first batch that can use them.
    """

    def __init__(
        self,
        pipeline: Pipeline,
        full: Extract,
        extractor: Callable[[FeaturePlan], Extract] = Extractor,
    ) -> None:
        self._plan = plan = pipeline.plan
        self._full, self._compile = full, extractor
        self._compiled: _Sides | None = None
        self._compiling = Lock()
        self._common = {
            name for name, node in (*plan.sparse.items(), *plan.dense.items()) if _is_common(pipeline, node)
        }
        self._roots = roots_of(
            *(node for name, node in plan.sparse.items() if name in self._common),
            *(node for name, node in plan.dense.items() if name in self._common),
        )
        self._apart = tuple(root for root in self._roots if _tells_apart(root))

    @property
    def groups(self) -> bool:
        """True when some feature is common."""
        return bool(self._common)

    def features(self, examples: Examples, statistics: Statistics | None = None) -> AnyFeatures:
        """Features of examples, as `ingest.materialized.features.ExampleFeatures`."""
        return self(examples.columns, examples.user, statistics)

    def __call__(self, batch: pa.RecordBatch, user: I64, statistics: Statistics | None = None) -> AnyFeatures:
        """Features of a batch of the plan's root columns. user: int64[B], key of each row's user."""
        if not self.groups or not batch.num_rows:
            return self._full.resident(batch, statistics)
        index, first = self.group(batch, user)
        if len(first) > WORTHWHILE * len(index):
            return self._full.resident(batch, statistics)
        sides = self._sides
        states = [
            None if statistics is None else statistics.of(side.plan) for side in (sides.common, sides.own)
        ]
        roots = batch.select([root.name for root in self._roots])
        common = sides.common.resident(roots.take(pa.array(first)), states[0])
        own = sides.own.resident(batch, states[1])
        observed = np.empty((len(sides.observed), len(index)), np.int64)
        for words, (row, group_row) in zip(observed, sides.observed, strict=True):
            words[:] = own.observed[row] if row is not None else common.observed[group_row][index]
        return CommonFeatures(common, own, index, observed, own.failed | common.failed[index])

    def compile(self) -> None:
        """Compile the extractors of the common features and of the others now, not with the first batch."""
        if self.groups:
            _ = self._sides

    @property
    def _sides(self) -> _Sides:
        with self._compiling:  # batches that are extracted at the same time
            self._compiled = self._compiled or self._compile_sides()
            return self._compiled

    def _compile_sides(self) -> _Sides:
        plans = []
        for side in (True, False):
            parts = (
                {name: node for name, node in nodes.items() if (name in self._common) is side}
                for nodes in (self._plan.sparse, self._plan.dense)
            )
            plans.append(FeaturePlan(*parts))
        numbers = [{name_of(node): i for i, node in enumerate(plan.statistics)} for plan in plans]
        names = [name_of(node) for node in self._plan.statistics]
        observed = tuple((numbers[1].get(name), numbers[0].get(name)) for name in names)
        return _Sides(self._compile(plans[0]), self._compile(plans[1]), observed)

    def group(self, batch: pa.RecordBatch, user: I64) -> tuple[I32, I32]:
        """Group of each row, int32[B], and a row of each group, int32[G]."""
        columns = [Bytes(user)]
        for column in bind_columns(batch, self._apart):
            columns += _bytes_of(column)
        return group_rows(columns, batch.num_rows)


def _tells_apart(root: Expr) -> bool:
    """Return true if a root may differ between rows of one user key.

    These are histories, and the key column itself: the key is its hash, and 0 for null.
    """
    return isinstance(root.ref, RecentRef) or not root.ref.table


def _bytes_of(column: pa.Array) -> list[Bytes]:
    """Bytes of a column of integers, strings or lists of integers, and of its null mask."""
    parts = []
    if column.null_count:
        parts.append(Bytes(column.is_null().to_numpy(zero_copy_only=False)))
    if pa.types.is_list(column.type):
        return [*parts, Bytes(column.values.to_numpy(), column.offsets.to_numpy())]
    if pa.types.is_integer(column.type):
        return [*parts, Bytes((column.fill_null(0) if column.null_count else column).to_numpy())]
    _, offsets, text = column.buffers()
    places = np.frombuffer(offsets, np.int32)[column.offset :]
    return [*parts, Bytes(np.frombuffer(text or b"", np.uint8), places)]
