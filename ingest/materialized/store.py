"""Files of materialized features: written once and read by every training run (FeatureBox §3).

    DIR/manifest.json                       the features, their expressions and log, and every file
    DIR/partition=<p>/part-<seq>.parquet    rows in the training order of partition p

Columns of a part: instance int64, order int64, time_ms int64 as in `ingest.join.example_columns.Examples`;
failed bool, rows that could not be extracted; then a column for each feature. A scalar sparse field is int64
keys, a sparse field with many keys list<int64>, a dense number float32, a dense vector a fixed-size list of
float32.
"""

from __future__ import annotations

import hashlib
import json
from collections.abc import Sequence
from dataclasses import asdict, dataclass, fields
from pathlib import Path
from typing import Any, Literal

import pyarrow as pa

from livectr.ingest.join.label_kind import LEAST_DEDUP_MS
from livectr.ingest.language import dtypes
from livectr.ingest.language.expr import ColumnRef, Expr, RecentRef
from livectr.ingest.language.roots import roots_of
from livectr.ingest.language.streams import View
from livectr.ingest.pipeline import Pipeline
from livectr.system.errors import ConfigError

MANIFEST = "manifest.json"
FORMAT = 1
GROUP_ROWS = 8_192
"""Rows of a row group, the unit of reading."""
META = ("instance", "order", "time_ms", "failed")
AGAIN = "livectr features materialize"


def check_labels(log: View) -> None:
    """Refuse a log whose impressions come again for labels beside the click. Raises ConfigError."""
    if log.more_labels:
        names = ", ".join(repr(label.name) for label in log.more_labels)
        raise ConfigError(
            f"materialized features have a row for each example, but impressions come again for {names}; "
            "train without materialized features"
        )


@dataclass(frozen=True)
class Feature:
    """Materialized feature.

    Args:
        name: of the feature.
        kind: "key" (one key per row), "keys" (a list), "dense".
        width: numbers per row of a dense feature, else 1.
        digest: SHA-256 of all that the values depend on (see `feature_of`).
        expression: as text, for messages.
    """

    name: str
    kind: Literal["key", "keys", "dense"]
    width: int
    digest: str
    expression: str

    @property
    def arrow(self) -> pa.DataType:
        """Arrow type of its column."""
        if self.kind == "dense":
            return pa.float32() if self.width == 1 else pa.list_(_item(pa.float32()), self.width)
        return pa.int64() if self.kind == "key" else pa.list_(_item(pa.int64()))


@dataclass(frozen=True)
class PartFile:
    """Parquet file below DIR."""

    path: str
    partition: int
    rows: int
    bytes: int


@dataclass(frozen=True)
class Manifest:
    """Content of a folder of materialized features.

    Args:
        features: in the order of columns.
        pipeline: path of the pipeline file.
        source: URL of the log.
        livectr: version of the program.
        labelled: instances are record numbers (`labelled()`), not keys of the events.
        window_ms: time after which the label join lets an impression go; an order is approximately an event
            time plus this.
        unreadable: rows that became dead letters.
        rows: total.
        least: smallest (instance, time_ms) over all rows, each by itself; None without rows.
        greatest: greatest (instance, time_ms).
        files: all part files.
    """

    features: tuple[Feature, ...]
    pipeline: str
    source: str
    livectr: str
    labelled: bool
    window_ms: int
    unreadable: int
    rows: int
    least: tuple[int, int] | None
    greatest: tuple[int, int] | None
    files: tuple[PartFile, ...]

    def write(self, root: Path) -> None:
        """Write the manifest to a folder."""
        values = {"format": FORMAT, **asdict(self)}
        (root / MANIFEST).write_text(json.dumps(values, indent=2) + "\n")

    @staticmethod
    def read(root: Path) -> Manifest:
        """Read and check a folder.

        Raises:
            ConfigError: the folder is no complete store, or a file is missing or truncated.
        """
        if not root.is_dir():
            raise ConfigError(f"there is no folder {root} with materialized features; make it with `{AGAIN}`")
        try:
            values: dict[str, Any] = json.loads((root / MANIFEST).read_text())
        except FileNotFoundError:
            raise ConfigError(
                f"{root} has no {MANIFEST}: it is half-made or no folder of materialized features; "
                f"delete it and run `{AGAIN}` again"
            ) from None
        except ValueError:
            values = {}
        if values.pop("format", None) != FORMAT or set(values) != {field.name for field in fields(Manifest)}:
            raise ConfigError(f"{root / MANIFEST} is not of this version's form; run `{AGAIN}` again")
        values["features"] = tuple(Feature(**feature) for feature in values["features"])
        values["files"] = tuple(PartFile(**file) for file in values["files"])
        for end in ("least", "greatest"):
            values[end] = tuple(values[end]) if values[end] is not None else None
        manifest = Manifest(**values)
        for file in manifest.files:
            path = root / file.path
            if not path.is_file() or path.stat().st_size != file.bytes:
                raise ConfigError(f"{path} is missing or cut short; delete {root} and run `{AGAIN}` again")
        return manifest


def feature_of(pipeline: Pipeline, name: str) -> Feature:
    """Feature of a pipeline as it would be materialized.

    Its digest covers what the expression says (`Expr.meaning`), the paths of JSON fields, the look-up
    columns, and for histories the conditions under which a click counts.
    """
    plan = pipeline.plan
    node = plan.sparse.get(name)
    if node is not None:
        return Feature(
            name, "keys" if dtypes.is_list(node.dtype) else "key", 1, _digest(pipeline, node), str(node)
        )
    node = plan.dense[name]
    width = sum(part == name or part.rpartition(".")[0] == name for part in plan.dense_names)
    return Feature(name, "dense", width, _digest(pipeline, node), str(node))


def schema_of(features: Sequence[Feature]) -> pa.Schema:
    """Schema of a part file; no column has nulls."""
    kinds = dict.fromkeys(META, pa.int64()) | {"failed": pa.bool_()}
    kinds |= {feature.name: feature.arrow for feature in features}
    return pa.schema([pa.field(name, kind, nullable=False) for name, kind in kinds.items()])


def partition_folder(partition: int) -> str:
    """Name of a partition's folder."""
    return f"partition={partition}"


def _item(kind: pa.DataType) -> pa.Field:
    return pa.field("element", kind, nullable=False)


def _digest(pipeline: Pipeline, node: Expr) -> str:
    """SHA-256 of an expression and of the origins of its roots."""
    log = pipeline.log
    on = {lookup.table.topic: (*lookup.keys, lookup.table.key) for lookup in log.lookups}
    origins = []
    for root in roots_of(node):
        ref = root.ref
        origin: list[object] = [root.name]
        if isinstance(ref, ColumnRef) and ref.table:
            origin += on[ref.source]
        else:
            stream = next(stream for stream in pipeline.streams if stream.topic == ref.source)
            origin += [stream.json_fields.get(ref.column), stream.fill.get(ref.column)]
            if isinstance(ref, RecentRef):  # clicks count that pass the filter and are no duplicates
                passing = stream.filter.meaning if stream.filter is not None else None
                remembered_ms = max(log.window_ms, log.clock_slack_ms, LEAST_DEDUP_MS)
                origin += [passing, log.on, remembered_ms, ref.passing]
                origin += [(stream.json_fields.get(c), stream.fill.get(c)) for c in ref.columns]
        origins.append(origin)
    return hashlib.sha256(repr((node.meaning, origins)).encode()).hexdigest()
