"""Rows of a log, through decoding, joins and features, without committing anything."""

from __future__ import annotations

import json
from dataclasses import dataclass, replace
from itertools import product
from typing import Any

import numpy as np
import numpy.typing as npt
import pyarrow as pa

from livectr.ingest.chunks import TopicPartition
from livectr.ingest.dead_letters.letters import EXAMPLE, DeadLetters, Reason
from livectr.ingest.dead_letters.usable import TopicRows
from livectr.ingest.extract.extractor import Extractor
from livectr.ingest.extract.position import PlaceExtractor
from livectr.ingest.extract.targets import TargetExtractor, TargetLabels
from livectr.ingest.extract.values import ValueExtractor
from livectr.ingest.extract.weights import WeightExtractor, Weights
from livectr.ingest.extract.worths import WorthExtractor
from livectr.ingest.hints import SOME_UNMATCHED
from livectr.ingest.join.apart import Apart, apart_of
from livectr.ingest.join.example_columns import Examples
from livectr.ingest.join.examples import ExampleSource, ReadOptions
from livectr.ingest.join.stats import SourceStats
from livectr.ingest.language.dtypes import arrow_type
from livectr.ingest.pipeline import Pipeline
from livectr.kernels.stream.join import KEPT_AHEAD

Mask = npt.NDArray[np.bool_]
MOST_EVENTS = 200
"""Events that are read for each row that is wanted, before impressions that wait for clicks are released."""
SHORT_LOG = 20
"""Events left in the log for each row that is wanted, up to which the log is read to its end."""
REMEMBERED_MS = 7 * 24 * 3_600_000
"""Time for which keys are remembered to measure clicks without an impression: a clock may be hours off."""
POP_ROWS = 4096
EXAMPLE_BYTES = 200
"""Bytes of a dead letter that are shown."""


@dataclass(frozen=True)
class Letter:
    """First dead letter of its reason."""

    topic: str
    place: TopicPartition
    offset: int
    detail: str
    value: str


class FirstLetters(DeadLetters):
    """Dead letters that are counted; the first of each reason is kept."""

    def __init__(self) -> None:
        super().__init__(None)
        self.first: dict[str, Letter] = {}

    def write(
        self, place: tuple[str, int, int, int], reason: Reason, detail: str, value: bytes, *, rows: int = 1
    ) -> None:
        """See `DeadLetters.write`."""
        super().write(place, reason, detail, value, rows=rows)
        topic, partition, offset, _ = place
        text = value[:EXAMPLE_BYTES].decode(errors="replace")
        self.first.setdefault(reason.value, Letter(topic, (topic, partition), offset, detail, text))


@dataclass(frozen=True)
class Sample:
    """n examples of a log.

    Args:
        columns: roots of the plan, n rows.
        label: float32[n], 0 or 1.
        time_ms: int64[n].
        late_ms: int64[n], time by which a row came behind a later one; at most 0 where it did not.
        keys: sparse feature → its keys, and offsets int32[n + 1] into them.
        dense: float32[n, D].
        replaced: dense numbers that were not finite.
        failed: rows whose features could not be computed.
        early: impressions were released before their label window had passed.
        stats: counters of the source.
        ahead_ms: int64[n], times by which clicks were before their impressions, too much to label them.
        late_clicks: clicks that came after the window of their impression.
        apart: clicks in another partition than their impression.
        tables: look-up table → its rows.
        letters: dead letters.
        topics: topic → rows that were read, and unusable ones.
        rates: mean sampling rates of rows with a click, and without one; None: one kind is not there.
        targets: name → bool[m], usable rows with that label, of each target that is a column.
        clicked: bool[m], those of them with a click.
        worths: label → f32[m], what it is worth in these rows; {} without a value.
    """

    columns: pa.Table
    label: npt.NDArray[np.float32]
    time_ms: npt.NDArray[np.int64]
    late_ms: npt.NDArray[np.int64]
    keys: dict[str, tuple[npt.NDArray[np.int64], npt.NDArray[np.int32]]]
    dense: npt.NDArray[np.float32]
    replaced: int
    failed: int
    early: bool
    stats: SourceStats
    ahead_ms: npt.NDArray[np.int64]
    late_clicks: int
    apart: Apart
    tables: dict[str, int]
    letters: FirstLetters
    topics: dict[str, TopicRows]
    rates: tuple[float, float] | None
    targets: dict[str, Mask]
    clicked: Mask
    worths: dict[str, npt.NDArray[np.float32]]

    def __len__(self) -> int:
        return len(self.label)


def read_sample(pipeline: Pipeline, source: str, rows: int) -> Sample:
    """Read the first rows of a log, up to its end at the start, each once and with its final label.

    A log is judged alike whatever way its labels are learned in (`delayed=`).

    Args:
        pipeline: its columns, joins and features.
        source: `kafka://HOST:PORT` or `file:DIR`. No offsets are committed, and no dead letters are kept.
        rows: examples that are wanted; fewer where the log ends.

    Raises:
        ConfigError: the log is not there, or a feature does not compile.
        ConnectError: no broker answers.
    """
    if pipeline.log.provisional:
        pipeline = replace(pipeline, log=replace(pipeline.log, delayed="wait", wait_ms=0))
    letters = FirstLetters()
    extract = Extractor(pipeline.plan, engine="calls")  # a few rows
    read = _read(pipeline, source, rows, letters)
    parts, stats, ahead_ms, late_clicks = read.parts, read.stats, read.ahead_ms, read.stats.late_clicks
    if pipeline.log.clicks is not None and _unexplained(stats, len(ahead_ms), pipeline.log.clicks.topic):
        longer = replace(pipeline, log=replace(pipeline.log, dedup_ms=REMEMBERED_MS))
        again = _read(longer, source, rows, FirstLetters())
        ahead_ms, late_clicks = again.ahead_ms, again.stats.late_clicks
    kept = [part for part in parts if len(part)]
    judged = _judge(pipeline, kept, letters)
    leaves_ms = pipeline.log.leaves_ms
    none_batch = _no_columns(pipeline)
    none = pa.Table.from_batches([none_batch])
    plain = [_plain(part.columns.select(none.column_names)) for part in kept]
    columns = pa.concat_tables(plain) if kept else none
    features = extract(columns.combine_chunks().to_batches()[0] if len(columns) else none_batch)
    return Sample(
        columns=columns,
        label=_joined([part.label for part in kept], np.float32),
        time_ms=_joined([part.time_ms for part in kept], np.int64),
        late_ms=_joined([part.order - leaves_ms - part.time_ms for part in kept], np.int64),
        keys=_keys_of(pipeline, features),
        dense=features.dense,
        replaced=extract.replaced,
        failed=int(np.count_nonzero(features.failed)),
        early=read.early,
        stats=stats,
        ahead_ms=ahead_ms,
        late_clicks=late_clicks,
        apart=read.apart,
        tables=read.tables,
        letters=letters,
        topics=letters.rows.topics(),
        rates=judged.rates,
        targets=judged.targets,
        clicked=judged.clicked,
        worths=judged.worths,
    )


@dataclass(frozen=True)
class _Read:
    """Examples of a log, and what a source knows after them; see `Sample`."""

    parts: list[Any]
    early: bool
    stats: SourceStats
    ahead_ms: npt.NDArray[np.int64]
    apart: Apart
    tables: dict[str, int]


def _read(pipeline: Pipeline, source: str, rows: int, letters: FirstLetters) -> _Read:
    options = ReadOptions(until_end=True, min_usable=0.0)
    examples = ExampleSource(pipeline.learned, source, options, rank=0, world=1, dead_letters=letters)
    try:
        parts: list[Any] = []
        found, early = 0, False
        while found < rows:
            examples.poll(0.0 if examples.ended else 0.05)
            if sum(examples.stats.events.values()) > MOST_EVENTS * rows and not examples.ended:
                early = True
                examples.finish()
            order, _ = examples.orders(POP_ROWS)
            bound = len(order) if examples.ended else int(np.searchsorted(order, examples.frontier))
            settled = min(bound, rows - found)
            if settled:
                parts.append(examples.pop(settled).without_finals())
                found += len(parts[-1])
            elif examples.ended:
                break
        while not examples.ended and examples.behind <= SHORT_LOG * rows:
            examples.poll(0.05)  # the end of a short log is near: then every click has its impression or none
        tables = {topic: len(table.rows()[0]) for topic, table in examples.tables.items()}
        apart = apart_of(examples.sampled)
        return _Read(parts, early, examples.stats, examples.ahead_ms, apart, tables)
    finally:
        examples.close()


@dataclass(frozen=True)
class _Judged:
    """See `Sample`."""

    rates: tuple[float, float] | None
    targets: dict[str, Mask]
    clicked: Mask
    worths: dict[str, npt.NDArray[np.float32]]


def _judge(pipeline: Pipeline, parts: list[Examples], letters: FirstLetters) -> _Judged:
    """Weights and targets of rows; writes dead letters of those that cannot be used."""
    extractors: list[tuple[Reason, WeightExtractor | TargetExtractor | PlaceExtractor]] = []
    if (weights := pipeline.example_weights) is not None:
        extractors.append((Reason.BAD_WEIGHT, WeightExtractor(weights)))
    if pipeline.targets:
        extractors.append((Reason.BAD_TARGET, TargetExtractor(pipeline.targets)))
    if pipeline.shown is not None:
        extractors.append((Reason.BAD_POSITION, PlaceExtractor(pipeline.shown)))
    valued = ValueExtractor(pipeline.targets) if pipeline.valued else None
    topic, rates, words = pipeline.log.impressions.topic, list[npt.NDArray[np.float32]](), list[Any]()
    known = [np.zeros(len(part.label), np.bool_) for part in parts]
    for (part, failed), (reason, extract) in product(zip(parts, known, strict=True), extractors):
        found = (
            extract(part.columns, part.final, part.words)
            if isinstance(extract, TargetExtractor)
            else extract(part.columns)
        )
        if isinstance(found, TargetLabels) and valued is not None:
            found.wrong.update(valued(part.columns, found.words).wrong)
        if isinstance(found, Weights):
            rates.append(np.stack([part.label, found.values[:, 1]]))
        elif isinstance(found, TargetLabels):
            words.append(found.words)
        for sentence, rows in found.wrong.items():
            wrong = rows & ~failed  # a row is told of once
            failed |= rows
            if wrong.any():
                letters.rows.add(topic, 0, {sentence: int(np.count_nonzero(wrong))})
            for row in np.flatnonzero(wrong).tolist():
                place = (topic, int(part.partition[row]), EXAMPLE, int(part.instance[row]))
                values = json.dumps(part.columns.slice(row, 1).to_pylist()[0], default=repr)
                letters.write(place, reason, sentence, values.encode())
    usable = ~_joined(known, np.bool_)
    came = _joined(words, np.int64)[usable] if words else np.empty(0, np.int64)
    label, rate = np.concatenate([np.empty((2, 0), np.float32), *rates], axis=1)
    worths = dict[str, npt.NDArray[np.float32]]()
    if pipeline.worths is not None:
        labels = pipeline.worths.labels
        of_rows = WorthExtractor(pipeline.worths, pipeline.worths.plan, labels)
        of_all = np.concatenate(
            [np.empty((0, len(labels)), np.float32), *(of_rows(part.columns) for part in parts)]
        )
        worths = dict(zip(labels, of_all[usable].T, strict=True))
    return _Judged(
        (float(rate[label > 0].mean()), float(rate[label == 0].mean()))
        if label.any() and not label.all()
        else None,
        {
            one.name: (came >> t & 1).astype(np.bool_)
            for t, one in enumerate(pipeline.targets)
            if one.label is not None
        },
        _joined([part.label for part in parts], np.float32)[usable] > 0,
        worths,
    )


def _unexplained(stats: SourceStats, ahead: int, clicks: str) -> bool:
    """True if more clicks met no impression than is usual, and few were seen to be before theirs."""
    unmatched = stats.unmatched_clicks + stats.waiting_clicks
    return unmatched > SOME_UNMATCHED * stats.events.get(clicks, 0) and 2 * ahead < min(unmatched, KEPT_AHEAD)


def _no_columns(pipeline: Pipeline) -> pa.RecordBatch:
    """Columns of the plan's roots, without rows."""
    fields = [(root.name, arrow_type(root.dtype)) for root in pipeline.plan.roots]
    schema = pa.schema(fields)
    return pa.RecordBatch.from_arrays([pa.array([], kind) for kind in schema.types], schema=schema)


def _plain(batch: pa.RecordBatch) -> pa.Table:
    """Columns of one type in every batch: look-ups may be dictionary-encoded or not."""
    arrays = [c.dictionary_decode() if pa.types.is_dictionary(c.type) else c for c in batch.columns]
    return pa.Table.from_arrays(arrays, names=batch.schema.names)


def _joined(parts: list[Any], kind: Any) -> Any:
    return np.concatenate([*parts, np.empty(0, kind)]).astype(kind)


def _keys_of(pipeline: Pipeline, features: Any) -> dict[str, Any]:
    found = {}
    for number, name in enumerate(pipeline.plan.sparse):
        offsets, keys = features.field(number) if features.rows else (np.zeros(1, np.int32), features.keys)
        found[name] = keys, offsets
    return found
