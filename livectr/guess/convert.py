"""Rows of a file as a log that a pipeline reads: DIR/<topic>/, Arrow files of four partitions by user.

Rows are sorted by time, since a file that was exported by user would teach each user's future before the next
user's past. A file too large for memory keeps its order.
"""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import replace
from pathlib import Path
from typing import Any

import numpy as np
import numpy.typing as npt
import pyarrow as pa
import pyarrow.compute as pc

from livectr.guess.columns import EMPTY, EVERY, shortened
from livectr.guess.facts import Facts, own_fill
from livectr.guess.roles import labels
from livectr.ingest.language.dtypes import arrow_type
from livectr.logs.account import Account
from livectr.logs.csv_rows import Rows
from livectr.logs.files import Progress, log_rows
from livectr.logs.fitting import fitting
from livectr.logs.times import milliseconds
from livectr.logs.values import ABSENT, are_lists, in_type, missing, valued, with_null
from livectr.simulator.partition import partitions_of
from livectr.simulator.sinks import open_sink
from livectr.system.errors import ConfigError

OF_ROLE = {"label": "0 or 1", "time": "a time"}
NEEDED = ("label", "time", "join")
BEHIND = "behind the rows that were looked at"
PARTITIONS = 4
FILE_ROWS = 200_000
SORTED_BYTES = 1 << 30
"""Bytes of a log up to which its rows are sorted by time."""


def write_log(
    facts: Facts, topic: str, root: Path, account: Account, progress: Progress = lambda done: None
) -> Facts:
    """Write the log.

    Args:
        facts: guesses about the file.
        topic: name of the log's folder.
        root: folder of logs.
        account: of the file; receives kept rows, and those of which a value has no place in its column.
        progress: called with the bytes of the file that were read.

    Returns:
        The guesses, with fills of columns that are empty in rows behind those that were looked at alone.

    Raises:
        ConfigError: no row is left.
    """
    sink = open_sink(f"file:{root}", {topic: PARTITIONS})
    fills = dict(facts.fills)
    try:
        for table in _ordered(_typed_rows(facts, account, progress, fills), facts.time):
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
    return replace(facts, fills=fills)


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


def _typed_rows(
    facts: Facts, account: Account, progress: Progress, fills: dict[str, Any]
) -> Iterator[pa.RecordBatch]:
    """Rows of the log; `fills` receives those of columns that are empty here and were not in the sample."""
    seen = {name for name, use in facts.uses.items() if not use.why.startswith(EVERY)}
    table = facts.sample.table
    full = {name for name in facts.kept if name in table.column_names and not table.column(name).null_count}
    plain = {
        name for name in facts.kept if name in table.column_names and not are_lists(table.column(name)).any()
    }
    types = {name: OF_ROLE.get(use.role, use.dtype) for name, use in facts.kept.items()}
    needed = [name for name, use in facts.kept.items() if use.role in NEEDED]
    rules = {made.name: made.columns[0] for made in facts.sample.made if made.name == facts.label}
    types |= {name: "a value" for name in rules}
    first = 0
    for rows in log_rows(account, progress=progress):
        rows = _with_made(rows, facts)
        batch, found = rows.batch, dict[str, pa.Array]()
        for name in batch.schema.names:
            if name not in seen and _remark(account, name, rows, facts):
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
                if name in plain and pa.types.is_string(found[name].type):
                    lists = pa.array(are_lists(found[name]))
                    found[name] = pc.if_else(lists, pa.scalar(None, pa.string()), found[name])
        first += batch.num_rows
        fits = fitting(rows, found, types, needed, account, rules)
        for name in sorted(full):
            if _remark_empty(account, name, fits, facts, fills):
                full.remove(name)
        yield fits.batch


def _with_made(rows: Rows, facts: Facts) -> Rows:
    """Rows with the columns that are made of others."""
    batch = rows.batch
    for made in facts.sample.made:
        if all(name in batch.schema.names for name in made.columns):
            batch = batch.append_column(made.name, made.of(batch))
    return Rows(batch, rows.places)


def _remark(account: Account, name: str, rows: Rows, facts: Facts) -> bool:
    """Say that a column is left out which varies behind the sample alone; False: here it does not, either."""
    column, does = rows.batch.column(name), "first appears"
    other = ~np.asarray(missing(column).to_numpy(zero_copy_only=False))
    if name in facts.uses and facts.uses[name].why != EMPTY:
        value = in_type(facts.sample.table.column(name).slice(0, 1), "string")[0]
        same = pc.equal(in_type(valued(column, facts.sample.forms[name]), "string"), value)
        other &= ~np.asarray(pc.fill_null(same, True).to_numpy(zero_copy_only=False))
        does = f"is first another than {shortened(value)}"
    if (first := _first(account, rows, other)) is None:
        return False
    account.remark(f"{name!r} {does} in {first}, {BEHIND}: it is not in the log")
    return True


def _remark_empty(account: Account, name: str, rows: Rows, facts: Facts, fills: dict[str, Any]) -> bool:
    """Say that a column is empty behind the sample alone, and give it a fill; False: nor is it here."""
    empty = rows.batch.column(name).is_null(nan_is_null=True)
    if (first := _first(account, rows, np.asarray(empty.to_numpy(zero_copy_only=False)))) is None:
        return False
    if (fill := fills.get(name, own_fill(facts.kept[name]))) is not None:
        fills[name] = fill
        account.remark(f"{name!r} is first empty in {first}, {BEHIND}: its fill is {fill!r}")
    return True


def _first(account: Account, rows: Rows, which: npt.NDArray[np.bool_]) -> str | None:
    """Place of the first row of bool[n], for a person; None: all are False."""
    found = np.flatnonzero(which)
    return account.where(int(rows.places[found[0]])) if len(found) else None


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
