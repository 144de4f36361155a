"""Materialization: features of a log's examples are computed once and written to Parquet in training order.

    source ─► label join ─► look-ups ─► extraction of the chosen features ─► a Parquet writer per partition

All files are written beside the target folder, which is renamed at the end: an existing target is complete.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass
from importlib.metadata import version
from pathlib import Path

import numpy as np
import pyarrow as pa
import pyarrow.parquet as pq

from livectr.ingest.dead_letters.letters import DeadLetters
from livectr.ingest.dead_letters.usable import judge
from livectr.ingest.extract.extractor import Extractor
from livectr.ingest.join.example_columns import Examples
from livectr.ingest.join.examples import ExampleSource, ReadOptions
from livectr.ingest.language.roots import needs_counts, needs_statistics
from livectr.ingest.materialized.parts import Part, built
from livectr.ingest.materialized.store import (
    GROUP_ROWS,
    META,
    Feature,
    Manifest,
    PartFile,
    check_labels,
    feature_of,
    partition_folder,
    schema_of,
)
from livectr.ingest.pipeline import Pipeline
from livectr.ingest.plan.features import Features
from livectr.system.errors import ConfigError

PART_ROWS = 128 * GROUP_ROWS
"""Rows of a part file."""
POP_ROWS = 8_192


def choose(pipeline: Pipeline, names: Sequence[str] | None) -> tuple[Feature, ...]:
    """Features to materialize, in the pipeline's order.

    Args:
        pipeline: whose features are chosen.
        names: of features; None: all that depend neither on running statistics nor on counters.

    Raises:
        ConfigError: a feature cannot be materialized.
    """
    known = {**pipeline.plan.sparse, **pipeline.plan.dense}
    wanted = set(known if names is None else names)
    if unknown := sorted(wanted - set(known)):
        raise ConfigError(f"there is no feature {unknown[0]!r}; the pipeline's are {', '.join(known)}")
    counted = [name for name in known if name in wanted and needs_counts(known[name])]
    if names is not None and counted:
        raise ConfigError(f"feature {counted[0]!r} depends on counters, which training keeps; leave it out")
    running = [name for name in known if name in wanted and needs_statistics(known[name])]
    if names is not None and running:
        raise ConfigError(
            f"feature {running[0]!r} depends on running statistics, which training learns; leave it out"
        )
    if reserved := wanted.intersection(META):
        raise ConfigError(
            f"feature {min(reserved)!r} is named like a column of the store; give it another name"
        )
    chosen = tuple(
        feature_of(pipeline, name) for name in known if name in wanted.difference(running, counted)
    )
    if not chosen:
        raise ConfigError("there is no feature to materialize: all depend on running statistics or counters")
    return chosen


@dataclass(frozen=True)
class Progress:
    """Progress of a materialization.

    Attributes:
        rows: written.
        events: read.
        behind: approximate count of unread records.
    """

    rows: int
    events: int
    behind: int


@dataclass(frozen=True)
class Materialization:
    """Features to compute, and where they go.

    Args:
        source: `kafka://…` or `file:…`.
        target: folder to create.
        features: see `choose`.
        pipeline_file: path of the pipeline, for the manifest.
        part: partitions to read (ingest.materialized.parts).
    """

    source: str
    target: Path
    features: Sequence[Feature]
    pipeline_file: str
    part: Part = Part()


def materialize(
    pipeline: Pipeline,
    job: Materialization,
    dead_letters: DeadLetters,
    progress: Callable[[Progress], None] = lambda progress: None,
) -> Manifest:
    """Compute the features of every example of a log, up to its end at the start.

    Args:
        pipeline: whose features are computed.
        job: features, source and target.
        dead_letters: receives bad records.
        progress: called after each batch.

    Raises:
        ConfigError: the target exists, or the log cannot be read.
        DataError: too few rows of the log are usable.
    """
    check_labels(pipeline.log)
    selected = pipeline.select([feature.name for feature in job.features])
    extract = Extractor(selected.plan)
    if job.target.exists():
        raise ConfigError(f"{job.target} exists; delete it or name another folder")
    with built(job.target) as folder:
        examples = ExampleSource(
            selected,
            job.source,
            ReadOptions(until_end=True),
            rank=job.part.index,
            world=job.part.count,
            dead_letters=dead_letters,
        )
        writers: dict[int, _Writer] = {}
        rows, ends = 0, _Ends()
        try:
            for batch in until_end(examples):
                values = extract(batch.columns)
                ends.add(batch)
                table = columns_of(batch, values, job.features)
                for partition in np.unique(batch.partition).tolist():
                    if partition not in writers:
                        writers[partition] = _Writer(folder, partition, table.schema)
                    writers[partition].write(table.filter(pa.array(batch.partition == partition)))
                rows += len(batch)
                progress(Progress(rows, sum(examples.stats.events.values()), examples.behind))
                judge(dead_letters.rows, dead_letters.place, final=False)
            judge(dead_letters.rows, dead_letters.place, final=True)
        finally:
            examples.close()
        files = [file for number in sorted(writers) for file in writers[number].close()]
        log = pipeline.log
        manifest = Manifest(
            features=tuple(job.features),
            pipeline=job.pipeline_file,
            source=job.source,
            livectr=version("livectr"),
            labelled=log.clicks is None,
            window_ms=log.leaves_ms,
            unreadable=dead_letters.counts.total(),
            rows=rows,
            least=ends.least,
            greatest=ends.greatest,
            files=tuple(files),
        )
        if manifest.labelled and manifest.unreadable:
            raise ConfigError(
                f"{manifest.unreadable} records of {job.source} cannot be read, and instances of a "
                "labelled() log are numbered by its records; take them out of the log (see its dead letters)"
            )
        manifest.write(folder)
    return manifest


def columns_of(examples: Examples, values: Features, features: Sequence[Feature]) -> pa.RecordBatch:
    """Rows of a store for b examples: their positions and features.

    Args:
        examples: b examples.
        values: their features.
        features: in the order of fields and dense numbers in `values`.
    """
    rows = len(examples)
    places = (examples.instance, examples.order, examples.time_ms, values.failed)
    arrays = [pa.array(column) for column in places]
    field = number = 0
    for feature in features:
        if feature.kind == "dense":
            block = values.dense[:, number : number + feature.width].ravel()
            array = pa.array(block)
            if feature.width > 1:
                array = pa.FixedSizeListArray.from_arrays(array, type=feature.arrow)
            number += feature.width
        else:
            offsets, keys = values.field(field) if rows else (np.zeros(1, np.int32), values.keys)
            array = pa.array(keys)
            if feature.kind == "keys":
                array = pa.ListArray.from_arrays(pa.array(offsets), array, type=feature.arrow)
            field += 1
        arrays.append(array)
    return pa.RecordBatch.from_arrays(arrays, schema=schema_of(features))


class _Ends:
    """Smallest and greatest instance and time_ms, each by itself."""

    def __init__(self) -> None:
        self.least: tuple[int, int] | None = None
        self.greatest: tuple[int, int] | None = None

    def add(self, examples: Examples) -> None:
        columns = (examples.instance, examples.time_ms)
        low, high = [int(values.min()) for values in columns], [int(values.max()) for values in columns]
        least, greatest = self.least or low, self.greatest or high
        self.least = min(low[0], least[0]), min(low[1], least[1])
        self.greatest = max(high[0], greatest[0]), max(high[1], greatest[1])


class _Writer:
    """Writer of the part files of a partition."""

    def __init__(self, root: Path, partition: int, schema: pa.Schema) -> None:
        self._root, self._partition, self._schema = root, partition, schema
        self._folder = root / partition_folder(partition)
        self._folder.mkdir()
        self._waiting: list[pa.RecordBatch] = []
        self._rows = 0  # waiting rows
        self._file: pq.ParquetWriter | None = None
        self._file_rows = 0
        self._done: list[PartFile] = []

    def write(self, batch: pa.RecordBatch) -> None:
        self._waiting.append(batch)
        self._rows += batch.num_rows
        if self._rows >= GROUP_ROWS:
            self._flush(self._rows // GROUP_ROWS * GROUP_ROWS)

    def close(self) -> list[PartFile]:
        """Write the waiting rows; return all files."""
        if self._rows:
            self._flush(self._rows)
        self._end_file()
        return self._done

    def _flush(self, rows: int) -> None:
        """Write the first waiting rows as row groups."""
        table = pa.Table.from_batches(self._waiting)
        self._waiting = table.slice(rows).to_batches()
        self._rows -= rows
        for start in range(0, rows, GROUP_ROWS):
            group = table.slice(start, min(GROUP_ROWS, rows - start))
            if self._file is None:
                self._file, self._file_rows = self._open(), 0
            self._file.write_table(group, row_group_size=GROUP_ROWS)
            self._file_rows += group.num_rows
            if self._file_rows >= PART_ROWS:
                self._end_file()

    def _path(self) -> Path:
        return self._folder / f"part-{len(self._done):05d}.parquet"

    def _open(self) -> pq.ParquetWriter:
        return pq.ParquetWriter(
            self._path(),
            self._schema,
            compression="zstd",
            write_statistics=["order", "time_ms"],
            store_schema=True,
        )

    def _end_file(self) -> None:
        if self._file is None:
            return
        self._file.close()
        self._file = None
        path = self._path()
        name = str(path.relative_to(self._root))
        self._done.append(PartFile(name, self._partition, self._file_rows, path.stat().st_size))


def until_end(source: ExampleSource) -> Iterator[Examples]:
    """All examples of a source that reads to its end, in training order."""
    while True:
        source.poll(0.0 if source.ended else 0.05)
        ended, frontier = source.ended, source.frontier
        while True:
            order, _ = source.orders(POP_ROWS)
            settled = len(order) if ended else int(np.searchsorted(order, frontier))
            if settled < POP_ROWS and not (ended and settled):
                break
            yield source.pop(settled)
        if ended:
            return
