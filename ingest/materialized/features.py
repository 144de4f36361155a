"""Second track of FeatureBox §3: materialized features are read and merged with computed features.

    logs  ─► source ─► join ─► extract (the remaining features) ─┐
    DIR   ─► a reader thread per partition ─► read(instances) ───┴─► Features, as if all had been computed

Rows are matched by instance id through a hash index over a bounded window of row groups, not by position.
Rows that the logs no longer have are skipped, and small differences in order are harmless.
"""

from __future__ import annotations

import threading
from collections.abc import Callable, Sequence
from dataclasses import replace
from pathlib import Path

import numpy as np
import numpy.typing as npt

from livectr.ingest import metrics
from livectr.ingest.extract.device_features import DeviceFeatures
from livectr.ingest.extract.extractor import Extract, Extractor
from livectr.ingest.extract.statistics import Statistics
from livectr.ingest.join.example_columns import Examples
from livectr.ingest.materialized.reader import Hit, PartitionReader
from livectr.ingest.materialized.store import AGAIN, Feature, Manifest, check_labels, feature_of
from livectr.ingest.pipeline import Pipeline
from livectr.ingest.plan.dag import FeaturePlan
from livectr.ingest.plan.features import Features
from livectr.system.errors import ConfigError

BYTES_TOPIC = "materialized features"
"""Label of these bytes in metrics by topic."""

I64 = npt.NDArray[np.int64]


class MaterializedFeatures:
    """Reader of the materialized features that a pipeline uses; created by `open`.

    Attributes:
        features: the features, in the order of `read`.
        names: their names, sparse features first.
        bytes_read: compressed bytes of the column chunks read so far.
    """

    def __init__(self, root: Path, manifest: Manifest, pipeline: Pipeline) -> None:
        self._root = root
        self._manifest = manifest
        mine = {feature.name: feature for feature in manifest.features}
        known = (*pipeline.plan.sparse, *pipeline.plan.dense)
        self.features = tuple(mine[name] for name in known if name in mine)
        self.names = tuple(feature.name for feature in self.features)
        # An order is about an event time plus the label window or the wait, which may have changed.
        self._shift = manifest.window_ms - pipeline.log.leaves_ms
        self._partitions: dict[int, PartitionReader] = {}
        self._lock, self._counting = threading.Lock(), threading.Lock()
        self.bytes_read = 0
        """Compressed bytes of the column chunks read so far."""

    @staticmethod
    def open(folder: str | Path, pipeline: Pipeline) -> MaterializedFeatures:
        """Open a folder; features that the pipeline lacks are not read.

        Raises:
            ConfigError: the folder is incomplete, has no feature of the pipeline, or has a feature of another
                expression.
        """
        root = Path(folder)
        check_labels(pipeline.log)
        manifest = Manifest.read(root)
        known = {**pipeline.plan.sparse, **pipeline.plan.dense}
        for feature in manifest.features:
            if feature.name in known and (now := feature_of(pipeline, feature.name)) != feature:
                became = f"{feature.expression} became {now.expression}"
                if feature.expression == now.expression:
                    became = "an operator or a column that it is made of is another one"
                raise ConfigError(
                    f"feature {feature.name!r} has changed since {root} was made ({became}); "
                    f"run `{AGAIN}` again, or leave the folder out"
                )
        materialized = MaterializedFeatures(root, manifest, pipeline)
        if not materialized.names:
            names = ", ".join(feature.name for feature in manifest.features)
            raise ConfigError(f"{root} has no feature of this pipeline; its features are {names}")
        if manifest.labelled != (pipeline.log.clicks is None):
            raise ConfigError(f"{root} was made from a log that is labelled otherwise; run `{AGAIN}` again")
        return materialized

    def read(self, examples: Examples) -> Features:
        """Materialized features of b examples, in their order; called in training order.

        Raises:
            UserError: the folder lacks an instance; the message has the command to create it again.
        """
        hits: list[Hit] = []
        with self._lock:
            for partition in np.unique(examples.partition).tolist():
                places = np.flatnonzero(examples.partition == partition)
                hits += self._partition(partition).find(
                    places,
                    examples.instance[places],
                    examples.order[places] + self._shift,
                    examples.time_ms[places],
                )
        return _assemble(self.features, len(examples), hits)

    def close(self) -> None:
        """Stop the reading threads."""
        for partition in self._partitions.values():
            partition.close()

    def _partition(self, number: int) -> PartitionReader:
        if number not in self._partitions:
            files = [file for file in self._manifest.files if file.partition == number]
            self._partitions[number] = PartitionReader(
                self._root, number, files, self.features, self._fetched, self._manifest.unreadable
            )
        return self._partitions[number]

    def _fetched(self, size: int) -> None:
        with self._counting:
            self.bytes_read += size
        metrics.read_bytes.labels(BYTES_TOPIC).inc(size)


def _assemble(features: Sequence[Feature], rows: int, hits: Sequence[Hit]) -> Features:
    """Combine rows of groups to the features of b = `rows` examples, in the order of `features`."""
    kinds = [feature.kind for feature in features if feature.kind != "dense"]
    width = sum(feature.width for feature in features if feature.kind == "dense")
    scalars = np.empty((kinds.count("key"), rows), np.int64)
    dense, failed = np.empty((rows, width), np.float32), np.zeros(rows, bool)
    for hit in hits:
        scalars[:, hit.places] = hit.group.keys[:, hit.rows]
        dense[hit.places] = hit.group.dense[hit.rows]
        failed[hit.places] = hit.group.failed[hit.rows]
    lists = iter([_ragged(rows, hits, index) for index in range(kinds.count("keys"))])
    scalar, ones = iter(scalars), np.ones(rows, np.int64)
    fields = [(ones, next(scalar)) if kind == "key" else next(lists) for kind in kinds]
    offsets = np.zeros(len(fields) * rows + 1, np.int64)
    if fields:
        np.cumsum(np.concatenate([lengths for lengths, _ in fields]), out=offsets[1:])
    keys = np.concatenate([keys for _, keys in fields]) if fields else np.empty(0, np.int64)
    if offsets[-1] > np.iinfo(np.int32).max:
        raise ValueError(f"{offsets[-1]} keys in one batch; offsets are int32")
    return Features(rows, offsets.astype(np.int32), keys, dense, failed=failed)


def _ragged(rows: int, hits: Sequence[Hit], index: int) -> tuple[I64, I64]:
    """(lengths int64[b], keys) of a list field."""
    starts, lengths = np.zeros(rows, np.int64), np.zeros(rows, np.int64)
    base, values = 0, []
    for hit in hits:
        offsets, keys = hit.group.lists[index]
        low, high = int(hit.rows.min()), int(hit.rows.max()) + 1
        starts[hit.places] = offsets[hit.rows].astype(np.int64) - int(offsets[low]) + base
        lengths[hit.places] = offsets[hit.rows + 1] - offsets[hit.rows]
        values.append(keys[offsets[low] : offsets[high]])
        base += len(values[-1])
    ends = np.cumsum(lengths)
    gather = np.repeat(starts - (ends - lengths), lengths) + np.arange(int(ends[-1]) if rows else 0)
    return lengths, np.concatenate(values)[gather] if values else np.empty(0, np.int64)


class ExampleFeatures:
    """Features of examples: materialized features are read, the others are computed.

    Args:
        pipeline: whose features they are.
        materialized: None: all features are computed.
        extractor: makes the extractor of a plan.

    Attributes:
        pipeline: to open the example source with; its plan has the computed features only, so that no other
            columns are read.
    """

    def __init__(
        self,
        pipeline: Pipeline,
        materialized: MaterializedFeatures | None = None,
        extractor: Callable[[FeaturePlan], Extract] = Extractor,
    ) -> None:
        self.materialized = materialized
        self.pipeline = pipeline if materialized is None else pipeline.computed(materialized.names)
        plan, rest = pipeline.plan, self.pipeline.plan
        self._extract = extractor(rest) if rest.outputs else None
        if materialized is not None:
            sparse = [feature.name for feature in materialized.features if feature.kind != "dense"]
            dense = [
                (feature.name, part)
                for feature in materialized.features
                if feature.kind == "dense"
                for part in range(feature.width)
            ]
            fields = [*rest.fields, *sparse]
            self._fields = [fields.index(name) for name in plan.fields]
            numbers = [*rest.dense_names, *(_number(name, part, plan.dense_names) for name, part in dense)]
            self._dense = [numbers.index(name) for name in plan.dense_names]

    @staticmethod
    def open(
        pipeline: Pipeline,
        folder: str | None,
        extractor: Callable[[FeaturePlan], Extract] = Extractor,
    ) -> ExampleFeatures:
        """Open with the materialized features of a folder, or without (None).

        Raises:
            ConfigError: the folder does not fit.
        """
        materialized = MaterializedFeatures.open(folder, pipeline) if folder is not None else None
        return ExampleFeatures(pipeline, materialized, extractor)

    @property
    def bytes_read(self) -> dict[str, int]:
        """Bytes of materialized features read so far, named as in `SourceStats.bytes_read`."""
        return {BYTES_TOPIC: self.materialized.bytes_read} if self.materialized is not None else {}

    def features(self, examples: Examples, statistics: Statistics | None = None) -> Features | DeviceFeatures:
        """Features of the full pipeline, in its field order; called in training order.

        Materialized features are merged on the host; without any, features stay where they were computed.
        statistics: of the full pipeline; materialized features do not depend on them.
        """
        if self.materialized is None and self._extract is not None:
            return self._extract.resident(examples.columns, statistics)
        computed = _none(len(examples))
        if self._extract is not None:
            computed = self._extract(examples.columns, statistics)
        if self.materialized is None:
            return computed
        read = self.materialized.read(examples)
        merged = computed.merge(read, self._fields, self._dense)
        return replace(merged, failed=merged.failed | read.failed)

    def close(self) -> None:
        """Stop the reading threads."""
        if self.materialized is not None:
            self.materialized.close()


def _number(name: str, part: int, names: Sequence[str]) -> str:
    """Name of a dense number; a vector has name.0, name.1 and so on."""
    return name if name in names else f"{name}.{part}"


def _none(rows: int) -> Features:
    """Features of `rows` rows without fields and dense numbers."""
    return Features(
        rows,
        np.zeros(1, np.int32),
        np.empty(0, np.int64),
        np.empty((rows, 0), np.float32),
        np.empty((0, rows), np.int64),
        np.zeros(rows, bool),
    )
