"""State of a source for a changed pipeline on the same log: other features, columns, look-ups or histories.

Positions, clocks, joins and histories stay. Impressions that wait for their label, and examples that are
ready, were read for the features of before: a column that these did not read is null in them, as in a record
that lacks it. A history that is new begins empty.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, replace
from functools import reduce

import pyarrow as pa

from livectr.ingest.join.log_words import LOG, log_words
from livectr.ingest.join.payload import Payload, lookup_column
from livectr.ingest.join.state import PartitionState, SourceState
from livectr.ingest.language import dtypes
from livectr.ingest.language.keys import key_of
from livectr.ingest.pipeline import Pipeline
from livectr.kernels.keys.keys import combine_keys
from livectr.system.errors import MismatchError

WAITING = ("payload", "ready")
"""Tables of a partition's state that hold rows of impressions; of a label's join behind its name."""


@dataclass(frozen=True)
class Continued:
    """State for a changed pipeline.

    Attributes:
        state: of the same partitions.
        lacking: root of the features → waiting rows in which it is null.
    """

    state: SourceState
    lacking: Mapping[str, int]


def continued(state: SourceState, pipeline: Pipeline) -> Continued:
    """Fit a state to a pipeline.

    Args:
        state: of any partitions.
        pipeline: whose log must be that of the state.

    Raises:
        MismatchError: streams, keys, times, windows or waits are others; names them.
    """
    payload, words = Payload(pipeline), log_words(pipeline)
    lacking: dict[str, int] = {}
    partitions = {}
    for number, partition in state.partitions.items():
        _check(partition, words)
        tables = dict(partition.tables)
        for name in (name for name in tables if name.rpartition(".")[2] in WAITING):
            tables[name] = _fitted(tables[name], pipeline, payload, lacking)
        values = {**partition.values, LOG: words}
        partitions[number] = PartitionState(values, tables, partition.known)
    return Continued(replace(state, partitions=partitions), lacking)


def _check(partition: PartitionState, ours: Mapping[str, object]) -> None:
    theirs = partition.values.get(LOG, {"topics": [*partition.values["merge"]["topics"]]})
    wrong = [
        f"{name} ({theirs[name]!r} there, {ours[name]!r} here)"
        for name in ours
        if name in theirs and theirs[name] != ours[name]
    ]
    if wrong:
        raise MismatchError(
            f"the log of the run is another one: {', '.join(wrong)}; a run continues on the same streams, "
            "with the same join: give them back, or start with parts of the model alone (warm_parts=full)"
        )


def _fitted(rows: pa.Table, pipeline: Pipeline, payload: Payload, lacking: dict[str, int]) -> pa.Table:
    """Rows with all columns of the payload; columns of their own that it lacks stay."""
    count = len(rows)
    if not count:  # it may have no columns either
        return rows
    roots = (*pipeline.request_roots, *pipeline.amounts.values())
    kinds = {root.name: dtypes.arrow_type(root.dtype) for root in roots}
    columns = {payload.roots[name]: name for name in payload.roots}
    for field in payload.schema:
        name = field.name
        if name in rows.column_names:
            continue
        if name in kinds:
            lacking[name] = lacking.get(name, 0) + count
            values = pa.nulls(count, field.type)
        elif name in payload.histories:
            values = pa.array([[]] * count, field.type)
        else:  # key of a look-up
            (lookup,) = (each for each in payload.lookups if lookup_column(each.table.topic) == name)
            keys = []
            for column in lookup.keys:
                root = columns.get(column)
                if root is not None and root in rows.column_names:
                    held = rows.column(root).combine_chunks()
                else:
                    lacking[f"{pipeline.log.impressions.topic}.{column}"] = count
                    held = pa.nulls(count, dtypes.arrow_type(pipeline.log.impressions.columns[column]))
                keys.append(key_of(held))
            values = pa.array(reduce(combine_keys, keys))
        rows = rows.append_column(name, values)
    return rows
