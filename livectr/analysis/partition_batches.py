"""Batches of one partition and a fixed number of rows, whatever arrives together."""

from __future__ import annotations

from collections.abc import Iterable, Iterator
from dataclasses import fields
from typing import Any

import numpy as np
import numpy.typing as npt
import pyarrow as pa

from livectr.ingest.join.example_columns import Examples

BATCH_ROWS = 8_192
ARRAYS = tuple(field.name for field in fields(Examples) if field.name != "columns")
"""Arrays of a batch; those that are None in one are in all of a log."""


def by_partition(examples: Iterable[Examples], rows: int = BATCH_ROWS) -> Iterator[Examples]:
    """Regroup examples.

    Args:
        examples: in training order; each may have rows of several partitions.
        rows: of a batch; the last batch of a partition has fewer.

    Returns:
        Batches of one partition each, in the partition's sequence. They depend on the partition alone.
    """
    waiting: dict[int, list[Examples]] = {}
    for arrived in examples:
        for partition in np.unique(arrived.partition).tolist():
            own = waiting.setdefault(partition, [])
            own.append(_taken(arrived, partition))
            if sum(map(len, own)) >= rows:
                joined = _joined(own)
                whole = len(joined) // rows * rows
                for start in range(0, whole, rows):
                    yield _sliced(joined, start, start + rows)
                waiting[partition] = [_sliced(joined, whole, len(joined))]
    for partition in sorted(waiting):
        joined = _joined(waiting[partition])
        if len(joined):
            yield joined


def _taken(examples: Examples, partition: int) -> Examples:
    """Examples of a partition. Dictionaries of look-up tables differ between batches, so they go."""
    at = np.flatnonzero(examples.partition == partition)
    columns = examples.columns.take(pa.array(at))
    plain = [
        column.dictionary_decode() if pa.types.is_dictionary(column.type) else column
        for column in columns.columns
    ]
    batch = pa.RecordBatch.from_arrays(plain, names=columns.schema.names)
    return Examples(batch, **{name: values[at] for name, values in _arrays(examples).items()})


def _joined(parts: list[Examples]) -> Examples:
    columns = pa.concat_batches([part.columns for part in parts])
    arrays = [_arrays(part) for part in parts]
    return Examples(
        columns, **{name: np.concatenate([values[name] for values in arrays]) for name in arrays[0]}
    )


def _sliced(examples: Examples, start: int, end: int) -> Examples:
    columns = examples.columns.slice(start, end - start)
    return Examples(columns, **{name: values[start:end] for name, values in _arrays(examples).items()})


def _arrays(examples: Examples) -> dict[str, npt.NDArray[Any]]:
    """Name → array of a batch."""
    return {name: values for name in ARRAYS if (values := getattr(examples, name)) is not None}
