"""`livectr logs replay`: a log file becomes an event stream, in Kafka or in a folder of files."""

from __future__ import annotations

import json
import shutil
import time
from collections.abc import Callable, Collection, Iterable, Iterator
from contextlib import ExitStack
from dataclasses import dataclass, field, replace
from itertools import chain, islice
from pathlib import Path
from typing import Any

import numpy as np
import pyarrow as pa
from numpy.typing import NDArray

from livectr.logs.account import MOST_SET_ASIDE, Account
from livectr.logs.arrow_rows import is_plain
from livectr.logs.csv_rows import Rows
from livectr.logs.files import Line, Progress, log_lines, log_rows
from livectr.logs.fitting import fitting
from livectr.logs.formats import LAYOUTS, Layout
from livectr.logs.json_events import json_events, message_key, message_keys
from livectr.logs.names import names_something
from livectr.logs.times import TimeForm, check_digits, epoch_ms, form_of, why_no_time
from livectr.logs.values import Form, are_rounded, form_of_column, lost_digits, valued, widened
from livectr.simulator.partition import partitions_of
from livectr.simulator.sinks import Sink, holds, move_parts, open_sink
from livectr.system.errors import ConfigError, RowsError

MESSAGE_ROWS = 1000  # rows of an Arrow message: below 1 MiB, the default limit of brokers
FILE_ROWS = 200_000  # rows of an Arrow file, over all partitions
PACE_S = 0.1  # with a rate, rows leave in portions of so much time


@dataclass(frozen=True)
class ReplayOptions:
    """Options of a replay.

    Args:
        file: log to read.
        format: "criteo", "avazu", "csv", "jsonl" or "parquet".
        to: target URL.
        topic: None: name of the format or of the file.
        key: column that partitions; rows with equal values keep their order.
        time: column that becomes epoch milliseconds.
        most_set_aside: share of rows that may not fit.
        types: column → type, for columns whose inferred type is wrong.
        rate: rows per second; None: full speed.
        events: "arrow" or "json".
        table: make a compacted look-up table topic.
        append: write to a topic that is not empty. A table may be: rows replace earlier rows of their key.
        bad_rows: file of rows that do not fit, as JSON lines.
    """

    file: Path
    format: str
    to: str
    topic: str | None = None
    key: str | None = None
    time: str | None = None
    types: dict[str, str] = field(default_factory=dict)
    partitions: int = 4
    rate: float | None = None
    events: str = "arrow"
    table: bool = False
    append: bool = False
    bad_rows: Path | None = None
    most_set_aside: float = MOST_SET_ASIDE


TEXT = TimeForm("text")
Lines = list[tuple[bytes | None, bytes]]  # message key and JSON event


def replay(
    options: ReplayOptions, *, progress: Callable[[int, int], None] = lambda done, rows: None
) -> dict[str, Any]:
    """Send the whole file; a folder of files gets it whole or not at all, unless there is a rate.

    Args:
        options: of the replay.
        progress: called with the bytes read and the rows sent after each portion.

    Returns:
        topic, rows, bad_rows, account (a line), remarks, seconds, rows_per_second, records_per_batch.

    Raises:
        ConfigError: the file cannot be read, no row fits, or the topic holds rows.
        RowsError: more rows did not fit than may be left out. Kafka has those that fit, and it says how many.
    """
    layout = LAYOUTS[options.format]
    topic = options.topic or (options.format if layout.columns else options.file.name.split(".")[0])
    key = options.key or layout.key
    if options.types and options.format == "jsonl":
        raise ConfigError(
            "--types is for CSV and Parquet: values of JSON have their types; write them otherwise."
        )
    if options.table and not key:
        raise ConfigError("a look-up table needs --key, the column whose latest row counts.")
    account = Account(options.file)
    read = [0]
    with ExitStack() as stack:
        if options.bad_rows:
            kept = stack.enter_context(options.bad_rows.open("w"))
            account.keep = lambda place, reason, text: print(
                json.dumps(
                    {
                        "file": str(options.file / account.inside),
                        "row": place,
                        "reason": reason,
                        "value": text,
                    }
                ),
                file=kept,
            )
        portions = _portions(options, layout, key, account, lambda done: read.__setitem__(0, done))
        first = next(portions, None)  # a file that cannot be read should leave no topic behind
        if first is None:
            why = "; ".join(account.first) or "it is empty"
            raise ConfigError(f"no row of {options.file} fits the format {options.format!r} ({why}).")
        _may_write(options, topic)
        beside = _beside(options, topic)
        to = options.to if beside is None else f"file:{beside}"
        if beside is not None:
            stack.callback(shutil.rmtree, beside, ignore_errors=True)
        sink = open_sink(to, {topic: options.partitions}, tables=(topic,) if options.table else ())
        try:
            rows, seconds = _send(
                sink, topic, options, key, chain([first], portions), lambda n: progress(read[0], n)
            )
        finally:
            sink.close()
        account.kept = rows
        try:
            account.judge(options.most_set_aside)
        except RowsError as error:
            if beside is not None:
                raise
            raise RowsError(
                f"{error} The {rows:,} rows that fit were sent to topic {topic!r} of {options.to} before: "
                "delete it and send the mended file, or send only the mended rows, with --append."
            ) from None
        if beside is not None:
            move_parts(beside / topic, Path(options.to.removeprefix("file:")) / topic)
    return {
        "topic": topic,
        "rows": rows,
        "bad_rows": account.count,
        "account": account.line(),
        "remarks": account.remarks,
        "seconds": round(seconds, 3),
        "rows_per_second": round(rows / max(seconds, 1e-9)),
        "records_per_batch": sink.records_per_batch and round(sink.records_per_batch, 1),
    }


def _beside(options: ReplayOptions, topic: str) -> Path | None:
    """Folder beside the topic's where its files are written first; None: readers follow each row."""
    if options.rate or not options.to.startswith("file:"):
        return None
    return Path(options.to.removeprefix("file:")) / f".{topic}.unfinished"


def _may_write(options: ReplayOptions, topic: str) -> None:
    """Raises ConfigError where rows would come a second time without anybody having said so."""
    known = options.to.startswith(("file:", "kafka://"))
    if known and not options.append and not options.table and (held := holds(options.to, topic)):
        raise ConfigError(
            f"topic {topic!r} of {options.to} holds {held} already, and rows that are sent twice are learned "
            "twice; say --append to write behind them, or name another --topic."
        )


def _portions(
    options: ReplayOptions, layout: Layout, key: str | None, account: Account, progress: Progress
) -> Iterator[pa.RecordBatch | Lines]:
    """Unit of sending: JSON events, or rows as a batch; never empty."""
    size = max(1, round(options.rate * PACE_S)) if options.rate else FILE_ROWS
    if options.format == "jsonl":
        yield from _json_portions(key, options.time, min(size, 10_000), account, progress)
        return
    known = layout.columns is not None
    found = log_rows(account, "csv" if known else options.format, layout if known else None, progress)
    rows = 0
    types, time = {**(layout.columns or {}), **options.types}, options.time or layout.time
    keyed = [key] if options.table and key else []  # compaction keeps one row of all without a key
    for typed in typed_rows(found, types, time, account, keyed):
        batch = typed.batch
        if layout.number_rows:
            batch = batch.append_column("row", pa.array(np.arange(rows, rows + batch.num_rows)))
        rows += batch.num_rows
        if key:
            _need_key(key, batch)
        for start in range(0, batch.num_rows, size):
            some = batch.slice(start, size)
            # Compaction goes by message key, so rows of a table are messages of their own.
            yield _as_lines(some, key) if options.events == "json" or options.table else some


def typed_rows(
    found: Iterable[Rows],
    types: dict[str, str],
    time: str | None,
    account: Account,
    needed: Collection[str] = (),
) -> Iterator[Rows]:
    """Rows whose columns have their types: those that were said, or those of the first rows.

    Args:
        found: rows as they were read.
        types: column → type that was said.
        time: column that becomes epoch milliseconds, in all rows; None: none.
        account: of the file.
        needed: other columns that may not be empty.
    """
    forms: dict[str, Form] | None = None
    time_form: TimeForm | None = None
    left_out: set[str] = set()
    for rows in found:
        batch = rows.batch
        if forms is None:
            for name in (*types, *([time] if time else ())):
                _need(name, batch)
            forms = {
                name: Form(types[name])
                if name in types
                else form_of_column(batch.column(name), is_id=names_something(name))
                for name in batch.schema.names
            }
            for name in filter(names_something, batch.schema.names):
                column = batch.column(name)
                if pa.types.is_floating(column.type) and are_rounded(column) and name not in types:
                    account.remarks.append(f"{name} holds {lost_digits(column.type)}")
            if time:
                check_digits(time, batch.column(time), forms[time])
                time_form = _time_form(time, valued(batch.column(time), forms[time]))
                account.remarks.append(f"{time}: {time_form.words}")
        values = {}
        for name in batch.schema.names:
            if not is_plain(batch.column(name).type):
                if name not in left_out:
                    kind = batch.column(name).type
                    account.remarks.append(
                        f"{name} is left out: it holds {kind}, which no column of a log can be"
                    )
                    left_out.add(name)
                continue
            if name not in forms:
                forms[name] = _form(name, batch)
            column = valued(batch.column(name), forms[name])
            if name == time and time_form is not None:
                column = _times(column, time_form)
            elif pa.types.is_temporal(column.type) and not pa.types.is_duration(column.type):
                column = epoch_ms(column, TimeForm("timestamp", since_s=None))
            values[name] = widened(column)
        kinds = {name: "a time" if name == time else str(column.type) for name, column in values.items()}
        fitted = fitting(rows, values, kinds, [*needed, *([time] if time else ())], account)
        if fitted.batch.num_rows:
            yield fitted


def _time_form(name: str, column: pa.Array) -> TimeForm:
    """Form of the times of a column. Raises ConfigError where no value of it is a time."""
    try:
        form = form_of(column, named=True)
    except ConfigError as error:
        raise ConfigError(f"--time: column {name!r}: {error}") from None
    if form is None and pa.types.is_string(column.type) and epoch_ms(column, TEXT).drop_null():
        return TEXT
    if form is None:
        raise ConfigError(f"--time: column {name!r} {why_no_time(column)}.")
    return form


def _form(name: str, batch: pa.RecordBatch) -> Form:
    return form_of_column(batch.column(name), is_id=names_something(name))


def _times(column: pa.Array, form: TimeForm) -> pa.Array:
    """Epoch milliseconds; null for all values where they are of another type than the first ones."""
    if form.kind == "text" and not pa.types.is_string(column.type):
        return pa.nulls(len(column), pa.int64())
    return epoch_ms(column, form)


def _need(name: str, batch: pa.RecordBatch) -> None:
    if name not in batch.schema.names:
        raise ConfigError(
            f"the file has no column {name!r}; its columns are {', '.join(batch.schema.names)}."
        )


def _need_key(name: str, batch: pa.RecordBatch) -> None:
    _need(name, batch)
    kind = batch.column(name).type
    if pa.types.is_nested(kind) or pa.types.is_binary(kind):
        raise ConfigError(f"--key: column {name!r} holds {kind}; name a column of texts or whole numbers.")


def _json_portions(
    key: str | None, time: str | None, size: int, account: Account, progress: Progress
) -> Iterator[Lines]:
    """JSON lines go out as they are, but for a time that has to become milliseconds."""
    form: TimeForm | None = None
    lines = log_lines(account, progress)
    while some := list(islice(lines, size)):
        keyed = []
        for line in some:
            if key and key not in line.row:
                line.account.set_aside(line.number, "key", f"no {key!r}", line.text.decode())
            else:
                keyed.append(line)
        if time and keyed:
            keyed, form = _with_times(keyed, time, form, account)
        if keyed:
            yield [(_json_key(key, line.row[key]) if key else None, line.text) for line in keyed]


def _json_key(name: str, value: Any) -> bytes | None:
    """Message key of a value of JSON, as of the same value in a table; None for null.

    Raises:
        ConfigError: it is a list or an object.
    """
    if isinstance(value, list | dict):
        kind = "a list" if isinstance(value, list) else "an object"
        raise ConfigError(f"--key: {name!r} holds {kind}; name one of texts or whole numbers.")
    return message_key(value)


def _with_times(
    lines: list[Line], time: str, form: TimeForm | None, account: Account
) -> tuple[list[Line], TimeForm]:
    """Lines whose time is epoch milliseconds, and the form of the times."""
    given = [line.row.get(time) for line in lines]
    text = form.kind == "text" if form is not None else any(isinstance(one, str) for one in given)
    plain = [
        one if isinstance(one, str | int | float) and not isinstance(one, bool) else None for one in given
    ]
    if form is None and text:
        column = pa.array([None if one is None else str(one) for one in plain], pa.string())
    else:
        column = pa.array([one if isinstance(one, str) == text else None for one in plain])
    if form is None:
        form = _time_form(time, column)
        account.remarks.append(f"{time}: {form.words}")
    found = _times(column, form).to_pylist() if not pa.types.is_null(column.type) else [None] * len(lines)
    kept = []
    for line, ms in zip(lines, found, strict=True):
        if ms is None:
            what = f"{time!r} is {line.row.get(time)!r}, which is no time"
            line.account.set_aside(line.number, "time", what, line.text.decode())
        else:
            kept.append(replace(line, text=json.dumps({**line.row, time: ms}).encode()))
    return kept, form


def _as_lines(batch: pa.RecordBatch, key: str | None) -> Lines:
    keys = message_keys(batch[key]) if key else [None] * batch.num_rows
    return list(zip(keys, json_events(batch), strict=True))


def _send(
    sink: Sink,
    topic: str,
    options: ReplayOptions,
    key: str | None,
    portions: Iterable[pa.RecordBatch | Lines],
    progress: Callable[[int], None],
) -> tuple[int, float]:
    """Everything to its partition, at the rate that was asked for; (rows, seconds)."""
    began, rows = time.monotonic(), 0
    for portion in portions:
        if options.rate and (early := began + rows / options.rate - time.monotonic()) > 0:
            time.sleep(early)
        if isinstance(portion, list):
            keys = [k for k, _ in portion]
            partition = _partition(
                [k or b"" for k in keys] if key else None, rows, len(portion), options.partitions
            )
            sink.write(topic, partition, keys, [value for _, value in portion])
        else:
            texts = [text or b"" for text in message_keys(portion.column(key))] if key else None
            partition = _partition(texts, rows, portion.num_rows, options.partitions)
            message = FILE_ROWS if options.to.startswith("file:") else MESSAGE_ROWS
            for p in np.unique(partition).tolist():
                mine = portion.take(pa.array(np.flatnonzero(partition == p)))
                for start in range(0, mine.num_rows, message):
                    sink.write_batch(topic, p, mine.slice(start, message))
        rows += len(portion)
        if options.rate:
            sink.flush()
        progress(rows)
    sink.flush()
    return rows, time.monotonic() - began


def _partition(keys: list[bytes] | None, first: int, n: int, partitions: int) -> NDArray[np.int32]:
    """By key, or in turn when the log has none."""
    if keys is not None:
        return partitions_of(keys, partitions)
    return ((first + np.arange(n)) % partitions).astype(np.int32)
