"""Rows of a file as a log that a pipeline reads: DIR/<topic>/, Arrow files of four partitions by user.

Rows are sorted by time, since a file that was exported by user would teach each user's future before the next
user's past. A file too large for memory keeps its order.
"""

from __future__ import annotations

from collections.abc import Iterator
from pathlib import Path

import numpy as np
import pyarrow as pa
import pyarrow.compute as pc

from livectr.guess.facts import Facts
from livectr.guess.roles import labels
from livectr.guess.rows import Progress, format_of, read_rows
from livectr.guess.times import milliseconds
from livectr.ingest.language.dtypes import arrow_type
from livectr.logs.formats import BadRows
from livectr.simulator.partition import partitions_of
from livectr.simulator.sinks import open_sink
from livectr.system.errors import ConfigError

PARTITIONS = 4
FILE_ROWS = 200_000
SORTED_BYTES = 1 << 30
"""Bytes of a log up to which its rows are sorted by time."""


def write_log(
    facts: Facts, topic: str, root: Path, progress: Progress = lambda done: None
) -> tuple[int, BadRows]:
    """Write the log.

    Args:
        facts: guesses about the file.
        topic: name of the log's folder.
        root: folder of logs.
        progress: called with the bytes of the file that were read.

    Returns:
        Rows that were written, and those that were set aside because a value has no place in its column.

    Raises:
        ConfigError: no row is left.
    """
    bad, rows = BadRows(), 0
    sink = open_sink(f"file:{root}", {topic: PARTITIONS})
    try:
        for table in _ordered(_typed_rows(facts, bad, progress), facts.time):
            for start in range(0, table.num_rows, FILE_ROWS):
                batch = table.slice(start, FILE_ROWS).combine_chunks().to_batches()[0]
                texts = [
                    (text or "").encode() for text in batch.column(facts.key).cast(pa.string()).to_pylist()
                ]
                partition = partitions_of(texts, PARTITIONS)
                for number in np.unique(partition).tolist():
                    sink.write_batch(topic, number, batch.take(pa.array(np.flatnonzero(partition == number))))
                rows += batch.num_rows
    finally:
        sink.close()
    if not rows:
        raise ConfigError(f"no row of {facts.path} can be used ({'; '.join(bad.first)}).")
    return rows, bad


def _ordered(batches: Iterator[pa.RecordBatch], time: str | None) -> Iterator[pa.Table]:
    """The whole log, sorted by time; or batch by batch as soon as it is too large."""
    held: list[pa.RecordBatch] = []
    size = 0
    for batch in batches:
        held.append(batch)
        size += batch.nbytes
        if time is None or size > SORTED_BYTES:
            yield pa.Table.from_batches(held)
            held, size = [], SORTED_BYTES if time is not None else 0
    if held:
        table = pa.Table.from_batches(held)
        yield table.sort_by(time) if time is not None and size < SORTED_BYTES else table


def _typed_rows(facts: Facts, bad: BadRows, progress: Progress) -> Iterator[pa.RecordBatch]:
    rows = 0
    for batch in read_rows(facts.path, bad, progress):
        arrays, fits = [], np.ones(batch.num_rows, np.bool_)
        for name, use in facts.kept.items():
            if name == facts.key and name not in batch.schema.names and len(facts.user) != 1:
                array = _key(batch, facts, rows)
            elif name not in batch.schema.names:
                array = pa.nulls(batch.num_rows, arrow_type(use.dtype))
            else:
                array = _typed(batch.column(name), name, facts)
            arrays.append(array)
            fits &= _fitting(batch, name, array, facts, bad, rows)
        rows += batch.num_rows
        typed = pa.RecordBatch.from_arrays(arrays, names=list(facts.kept))
        yield typed if fits.all() else typed.filter(pa.array(fits))


def _key(batch: pa.RecordBatch, facts: Facts, first: int) -> pa.Array:
    if not facts.user:
        return pa.array(np.arange(first, first + batch.num_rows))
    parts = [pc.fill_null(batch.column(name).cast(pa.string()), "") for name in facts.user]
    return pc.binary_join_element_wise(*parts, "|")


def _typed(values: pa.Array, name: str, facts: Facts) -> pa.Array:
    """Values in the column's type; null where a value does not fit."""
    use = facts.kept[name]
    if use.role == "label":
        return labels(values, name)[0]
    if use.role == "time":
        assert facts.form is not None
        return milliseconds(values, facts.form)
    kind = arrow_type(use.dtype)
    texts = pa.types.is_string(values.type)
    if texts and not pa.types.is_string(kind) and not pa.types.is_nested(kind):
        values = pc.utf8_trim_whitespace(values)
    try:
        return values.cast(kind)
    except pa.ArrowInvalid:
        return pa.array([_one(value, kind) for value in values], kind)


def _one(value: pa.Scalar, kind: pa.DataType) -> object:
    try:
        return value.cast(kind).as_py()
    except pa.ArrowInvalid:
        return None


def _fitting(
    batch: pa.RecordBatch, name: str, array: pa.Array, facts: Facts, bad: BadRows, first: int
) -> np.ndarray[tuple[int], np.dtype[np.bool_]]:
    """bool[n], rows whose value fits; the others are set aside with a reason."""
    missing = np.asarray(array.is_null().to_numpy(zero_copy_only=False))
    if name not in batch.schema.names or not missing.any():
        return np.ones(batch.num_rows, np.bool_)
    given = batch.column(name)
    empty = np.asarray(given.is_null().to_numpy(zero_copy_only=False))
    needed = facts.kept[name].role in ("label", "time")
    wrong = missing if needed else missing & ~empty
    for row in np.flatnonzero(wrong).tolist():
        value = given[row].as_py()
        reason = f"column {name!r} is empty" if value is None else f"column {name!r} is {value!r}"
        header = format_of(facts.path) == "csv"
        bad.add(first + row + 1 + header, f"{reason}, not {facts.kept[name].dtype}", str(value))
    return ~wrong
