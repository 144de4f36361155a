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

from livectr.guess.columns import EMPTY
from livectr.guess.facts import Facts
from livectr.guess.roles import labels
from livectr.ingest.language.dtypes import arrow_type
from livectr.logs.account import Account
from livectr.logs.csv_rows import Rows
from livectr.logs.files import Progress, log_rows
from livectr.logs.fitting import fitting
from livectr.logs.times import milliseconds
from livectr.logs.values import ABSENT, in_type, missing, valued, with_null
from livectr.simulator.partition import partitions_of
from livectr.simulator.sinks import open_sink
from livectr.system.errors import ConfigError

OF_ROLE = {"label": "0 or 1", "time": "a time"}
NEEDED = ("label", "time", "join")
PARTITIONS = 4
FILE_ROWS = 200_000
SORTED_BYTES = 1 << 30
"""Bytes of a log up to which its rows are sorted by time."""


def write_log(
    facts: Facts, topic: str, root: Path, account: Account, progress: Progress = lambda done: None
) -> None:
    """Write the log.

    Args:
        facts: guesses about the file.
        topic: name of the log's folder.
        root: folder of logs.
        account: of the file; receives kept rows, and those of which a value has no place in its column.
        progress: called with the bytes of the file that were read.

    Raises:
        ConfigError: no row is left.
    """
    sink = open_sink(f"file:{root}", {topic: PARTITIONS})
    try:
        for table in _ordered(_typed_rows(facts, account, progress), facts.time):
            for start in range(0, table.num_rows, FILE_ROWS):
                batch = table.slice(start, FILE_ROWS).combine_chunks().to_batches()[0]
                texts = [
                    (text or "").encode() for text in batch.column(facts.key).cast(pa.string()).to_pylist()
                ]
                partition = partitions_of(texts, PARTITIONS)
                for number in np.unique(partition).tolist():
                    sink.write_batch(topic, number, batch.take(pa.array(np.flatnonzero(partition == number))))
                account.kept += batch.num_rows
    finally:
        sink.close()
    if not account.kept:
        raise ConfigError(f"no row of {account.path} can be used ({'; '.join(account.first)}).")


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
        yield (
            table.take(pc.sort_indices(table.column(time)))
            if time is not None and size < SORTED_BYTES
            else table
        )


def _typed_rows(facts: Facts, account: Account, progress: Progress) -> Iterator[pa.RecordBatch]:
    seen = {name for name, use in facts.uses.items() if use.why != EMPTY}
    types = {name: OF_ROLE.get(use.role, use.dtype) for name, use in facts.kept.items()}
    needed = [name for name, use in facts.kept.items() if use.role in NEEDED]
    rules = {made.name: made.columns[0] for made in facts.sample.made if made.name == facts.label}
    types |= {name: "a value" for name in rules}
    first = 0
    for rows in log_rows(account, progress=progress):
        rows = _with_made(rows, facts)
        batch, found = rows.batch, dict[str, pa.Array]()
        for name in batch.schema.names:
            if name not in seen and _remark(account, name, rows):
                seen.add(name)
        for name, use in facts.kept.items():
            if name == facts.key and name not in batch.schema.names and len(facts.user) != 1:
                found[name] = _key(batch, facts, first)
            elif name not in batch.schema.names:
                found[name] = pa.nulls(batch.num_rows, arrow_type(use.dtype))
                if use.role == "label" and facts.empty_is_no_click:
                    found[name] = pc.fill_null(found[name], 0)
            else:
                found[name] = _typed(batch.column(name), name, facts)
        first += batch.num_rows
        yield fitting(rows, found, types, needed, account, rules).batch


def _with_made(rows: Rows, facts: Facts) -> Rows:
    """Rows with the columns that are made of others."""
    batch = rows.batch
    for made in facts.sample.made:
        if all(name in batch.schema.names for name in made.columns):
            batch = batch.append_column(made.name, made.of(batch))
    return Rows(batch, rows.places)


def _remark(account: Account, name: str, rows: Rows) -> bool:
    """Say that a column is not in the log, as no row that was looked at has it; False: nor have these."""
    given = np.flatnonzero(~np.asarray(missing(rows.batch.column(name)).to_numpy(zero_copy_only=False)))
    if not len(given):
        return False
    account.remark(
        f"{name!r} first appears in {account.where(int(rows.places[given[0]]))}, behind the rows that were "
        "looked at: it is not in the log"
    )
    return True


def _key(batch: pa.RecordBatch, facts: Facts, first: int) -> pa.Array:
    if not facts.user:
        return pa.array(np.arange(first, first + batch.num_rows))
    forms = facts.sample.forms
    values = [in_type(valued(batch.column(name), forms[name]), "string") for name in facts.user]
    parts = [pc.fill_null(texts, "") for texts in values]
    return pc.binary_join_element_wise(*parts, "|")


def _typed(values: pa.Array, name: str, facts: Facts) -> pa.Array:
    """Values in the column's type; null where a value does not fit."""
    use = facts.kept[name]
    if use.role == "label":
        found = labels(valued(values, facts.sample.forms[name]), name)[0]
        return pc.if_else(missing(values, ABSENT), 0, found) if facts.empty_is_no_click else found
    if use.role == "time":
        assert facts.form is not None
        return milliseconds(valued(values, facts.sample.forms[name]), facts.form)
    values = valued(values, facts.sample.forms[name])
    if pa.types.is_list(values.type):
        values = pc.if_else(pa.array(~with_null(values)), values, pa.scalar(None, values.type))
    return in_type(values, use.dtype)
