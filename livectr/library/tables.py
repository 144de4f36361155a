"""Rows of a caller as Arrow, by the columns that a pipeline's features need."""

from __future__ import annotations

from collections import Counter
from collections.abc import Iterable, Mapping, Sequence
from functools import reduce
from pathlib import Path
from typing import Any

import numpy as np
import numpy.typing as npt
import pyarrow as pa
import pyarrow.parquet as pq

from livectr.ingest.dead_letters.complaints import (
    empty,
    no_time,
    not_finite,
    null_inside,
    repeated_column,
    wrong_unit,
)
from livectr.ingest.decode.arrow_rows import UnusableError, concat_rows, conform, no_rows
from livectr.ingest.decode.clean import holey, nan_as_null
from livectr.ingest.language.dtypes import element, is_list
from livectr.ingest.language.event_times import EARLIEST_MS, LATEST_MS, milliseconds
from livectr.ingest.language.keys import key_of
from livectr.ingest.language.streams import Stream
from livectr.ingest.pipeline import Pipeline, load_pipeline
from livectr.kernels.keys.keys import combine_keys
from livectr.library.arrays import array_of
from livectr.system.errors import ConfigError, reason_of
from livectr.system.texts import visible


def to_pipeline(pipeline: Pipeline | str | Path) -> Pipeline:
    """A pipeline, or that of a pipeline file. Raises ConfigError."""
    if isinstance(pipeline, Pipeline):
        return pipeline
    if isinstance(pipeline, str | Path):
        return load_pipeline(pipeline)
    raise ConfigError(f"the pipeline is a {type(pipeline).__name__}; give a Pipeline or the path of its file")


def to_table(rows: Any, name: str) -> pa.Table:
    """Rows of any kind as an Arrow table.

    Args:
        rows: Arrow table or record batch, pandas or Polars DataFrame, any object with `__arrow_c_stream__`, a
            list of dicts, a dict of columns, or the path of a Parquet file.
        name: of the argument, for messages.

    Raises:
        ConfigError: it is none of these, or its values have no Arrow type.
    """
    try:
        table = _table(rows, name)
    except ConfigError as error:
        raise ConfigError(str(error) if str(error).startswith(name) else f"{name}: {error}") from None
    except (pa.ArrowException, TypeError, ValueError, OverflowError) as error:
        raise ConfigError(f"{name} cannot become an Arrow table: {error}") from error
    if twice := next((one for one, count in Counter(table.column_names).items() if count > 1), None):
        raise ConfigError(f"{name}: {repeated_column(twice)}; rename one of them")
    return table


def _table(rows: Any, name: str) -> pa.Table:
    if isinstance(rows, pa.Table):
        return rows
    if isinstance(rows, pa.RecordBatch):
        return pa.Table.from_batches([rows])
    if isinstance(rows, str | Path):
        return _read_parquet(Path(rows), name)
    if isinstance(rows, Mapping):
        for column, values in rows.items():
            if not hasattr(values, "__len__") or isinstance(values, str | bytes):
                raise ConfigError(
                    f"{name}: column {str(column)!r} is {visible(repr(values), 40)}, no list of values; "
                    "one row is a list of one dict"
                )
        return pa.table({str(column): array_of(values, str(column)) for column, values in rows.items()})
    if isinstance(rows, Sequence) and all(isinstance(row, Mapping) for row in rows):
        names = dict.fromkeys(str(column) for row in rows for column in row)
        return pa.table({column: array_of([row.get(column) for row in rows], column) for column in names})
    is_series = type(rows).__name__ == "Series"  # a column is no rows
    if type(rows).__module__.partition(".")[0] == "pandas" and not is_series:
        return _from_pandas(rows)
    if hasattr(rows, "to_arrow") and not is_series:
        return rows.to_arrow()
    if hasattr(rows, "__arrow_c_stream__") and not is_series:
        return pa.table(rows)
    raise ConfigError(
        f"{name} is a {type(rows).__name__}; give a DataFrame, an Arrow table, a list of dicts or the path "
        "of a Parquet file"
    )


def _from_pandas(frame: Any) -> pa.Table:
    try:
        return pa.Table.from_pandas(frame, preserve_index=False)
    except (pa.ArrowException, OverflowError):  # of a column of objects
        listed = frame.astype(object).where(frame.notna(), None).to_dict("list")
        return pa.table({str(name): array_of(values, str(name)) for name, values in listed.items()})


def _read_parquet(path: Path, name: str) -> pa.Table:
    try:
        return pq.read_table(path)
    except OSError as error:
        raise ConfigError(f"{name}: {path} cannot be read as Parquet ({reason_of(error)})") from None


def root_columns(pipeline: Pipeline, rows: Any, tables: Mapping[str, Any] | None = None) -> pa.RecordBatch:
    """The columns of a feature plan's roots, in their types.

    A column of impressions is named by itself or with its topic (`ad_id`, `impressions.ad_id`). A column of a
    look-up table is taken from `tables` by the latest row of its key, else from `rows`. A history is a list
    column with the name that `livectr inspect` shows; without that column it is empty. Rows of counters are
    taken from `tables`; else nothing is counted.

    Args:
        pipeline: its plan says which columns are needed.
        rows: n impressions, see `to_table`.
        tables: topic of a look-up table → its rows.

    Returns:
        n rows of all roots of the plan.

    Raises:
        ConfigError: a column is missing or of another type, or a value does not fit.
    """
    given = to_table(rows, "rows")
    if twice := [name for name, count in Counter(given.column_names).items() if count > 1]:
        raise ConfigError(f"rows have two columns {twice[0]!r}; rename or drop one of them")
    known = {name: to_table(table, f"table {name}") for name, table in (tables or {}).items()}
    declared = {lookup.table.topic: lookup for lookup in pipeline.log.lookups}
    for topic in known.keys() - declared.keys():
        raise ConfigError(
            f"tables name {topic!r}, which the pipeline does not look up; its tables are "
            f"{', '.join(declared) or 'none'}"
        )
    impressions = pipeline.log.impressions
    chosen: dict[str, Any] = {}
    missing: list[str] = []

    def pick(name: str, *others: str) -> Any:
        column = next((given.column(n) for n in (name, *others) if n in given.column_names), None)
        if column is None:
            missing.append(name)
        return column

    for root in pipeline.request_roots:
        names = {root.name, root.ref.column}
        if root.ref.column in impressions.fill and names.isdisjoint(given.column_names):
            chosen[root.name] = pa.nulls(given.num_rows)  # a request may leave it out, too
        else:
            chosen[root.name] = pick(root.name, root.ref.column)
    for root in pipeline.history_roots:
        if root.name in given.column_names:
            chosen[root.name] = given.column(root.name)
    for topic, roots in pipeline.lookup_roots.items():
        if topic in known and roots:
            lookup, table = declared[topic], known[topic]
            check_columns(table, (lookup.table.key, *(root.ref.column for root in roots)), f"table {topic}")
            on = [pick(f"{impressions.topic}.{name}", name) for name in lookup.keys]
            at = None
            if all(column is not None for column in on):
                wanted = reduce(combine_keys, map(key_of, on))
                at = latest_rows(key_of(table.column(lookup.table.key)), wanted)
            chosen |= {root.name: table.column(root.ref.column).take(at) for root in roots if at is not None}
        elif declared[topic].counted is None:
            for root in roots:
                own = root.ref.column in impressions.columns  # then it is the impression's
                chosen[root.name] = pick(root.name, *(() if own else (root.ref.column,)))
    if missing:
        raise ConfigError(
            f"rows have no column {', '.join(dict.fromkeys(missing))}; their columns are "
            f"{', '.join(given.column_names) or 'none'}"
        )
    dtypes = {root.name: root.dtype for root in pipeline.plan.roots}
    columns = pa.table(chosen) if chosen else given.select([])
    counted = [
        root.name for lookup in pipeline.counters for root in pipeline.lookup_roots[lookup.table.topic]
    ]
    optional = [*counted, *(root.name for root in pipeline.history_roots)]
    batch = conformed(columns, dtypes, optional=optional)
    return _as_in_training(batch, dtypes, pipeline.log.impressions)


def _as_in_training(batch: pa.RecordBatch, dtypes: Mapping[str, str], impressions: Stream) -> pa.RecordBatch:
    """Roots with the meaning that decoding gives them: NaN is null, and what it refuses is an error.

    Raises:
        ConfigError: an infinite number, a null key or time without a fill, or a time in another
            unit or outside the years 1 to 9999.
    """
    time = f"{impressions.topic}.{impressions.time}"
    unfilled = {impressions.key, impressions.time} - {*impressions.fill}
    needed = {f"{impressions.topic}.{name}" for name in unfilled}
    for place, name in enumerate(batch.schema.names):
        array = batch.column(place)
        if element(dtypes[name]) in ("float32", "float64"):
            array, infinite = nan_as_null(array, dtypes[name])
            if infinite.any():
                raise ConfigError(f"row {int(np.argmax(infinite))}: {not_finite(name)}")
            batch = batch.set_column(place, name, array)
        if is_list(dtypes[name]) and (holes := holey(array)).any():
            raise ConfigError(f"row {int(np.argmax(holes))}: {null_inside(name)}")
        if name in needed and array.null_count:
            missing = np.asarray(array.is_null().to_numpy(zero_copy_only=False))
            raise ConfigError(
                f"row {int(np.argmax(missing))}: {empty(name.split('.', 1)[1], fills=name != time)}"
            )
        if name == time:
            if impressions.time_unit is None:
                for unit, rows in milliseconds(array, None)[1].items():
                    raise ConfigError(
                        f"row {int(np.argmax(rows))}: {wrong_unit(str(impressions.time), unit)}"
                    )
            times = array.fill_null(EARLIEST_MS).to_numpy(zero_copy_only=False)
            if (beyond := (times < EARLIEST_MS) | (times > LATEST_MS)).any():
                row = int(np.argmax(beyond))
                raise ConfigError(f"row {row}: {no_time(str(impressions.time), int(times[row]))}")
    return batch


def conformed(table: pa.Table, columns: Mapping[str, str], *, optional: Iterable[str] = ()) -> pa.RecordBatch:
    """Columns in their declared types; timestamps become milliseconds.

    Raises:
        ConfigError: names the first value that does not fit.
    """
    batches = table.combine_chunks().to_batches()
    batch = concat_rows(batches) if batches else no_rows(table.schema)
    try:
        batch.validate(full=True)  # texts that are not UTF-8
        cast, _, bad = conform(batch, columns, set(optional))
    except (UnusableError, pa.ArrowInvalid) as error:
        raise ConfigError(f"rows: {error}") from None
    if bad:
        raise ConfigError(f"row {bad[0].row}: {bad[0].detail}")
    return cast


def latest_rows(keys: npt.NDArray[np.int64], wanted: npt.NDArray[np.int64]) -> pa.Array:
    """For wanted int64[n], the last place of each in keys int64[m]; null where it is not there."""
    if not len(keys):
        return pa.nulls(len(wanted), pa.int64())
    order = np.argsort(keys, kind="stable")
    last = np.searchsorted(keys[order], wanted, side="right") - 1
    place = order[np.maximum(last, 0)]
    return pa.array(place, mask=(last < 0) | (keys[place] != wanted))


def check_columns(table: pa.Table, names: Iterable[str], what: str) -> None:
    """Raises ConfigError for a column that is missing."""
    held = table.column_names
    if lacks := [name for name in dict.fromkeys(names) if name not in held]:
        raise ConfigError(
            f"{what} has no column {', '.join(lacks)}; its columns are {', '.join(held) or 'none'}"
        )
