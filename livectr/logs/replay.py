"""`livectr logs replay`: a log file becomes an event stream, in Kafka or in a folder of files."""

import codecs
import gzip
import json
import time
import zlib
from collections.abc import Callable, Iterable, Iterator
from dataclasses import dataclass, field
from itertools import chain
from pathlib import Path
from typing import IO, Any

import numpy as np
import pyarrow as pa
from numpy.typing import NDArray

from livectr.logs.formats import LAYOUTS, BadRows, Layout, iso_ms, open_log, read_csv, read_parquet, with_time
from livectr.logs.json_events import json_events, message_keys
from livectr.simulator.partition import partitions_of
from livectr.simulator.sinks import Sink, holds, open_sink
from livectr.system.errors import ConfigError

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


Lines = list[tuple[bytes | None, bytes]]  # message key and JSON event


def replay(
    options: ReplayOptions, *, progress: Callable[[int, int], None] = lambda done, rows: None
) -> dict[str, Any]:
    """Send the whole file; returns topic, rows, bad_rows, seconds, rows_per_second, records_per_batch.

    `progress(bytes read, rows sent)` is called after each portion. Raises ConfigError, also when no row fits.
    """
    layout = LAYOUTS[options.format]
    topic = options.topic or (options.format if layout.columns else options.file.name.split(".")[0])
    key = options.key or layout.key
    if options.table and not key:
        raise ConfigError("a look-up table needs --key, the column whose latest row counts.")
    bad = BadRows()
    content, raw = open_log(options.file)
    kept = options.bad_rows.open("w") if options.bad_rows else None
    if kept:
        bad.keep = lambda row, reason, text: print(
            json.dumps({"file": str(options.file), "row": row, "reason": reason, "value": text}), file=kept
        )
    try:
        portions = _portions(options, layout, key, content, bad)
        first = next(portions, None)  # a file that cannot be read should leave no topic behind
        if first is None:
            why = "; ".join(bad.first) or "it is empty"
            raise ConfigError(f"no row of {options.file} fits the format {options.format!r} ({why}).")
        _may_write(options, topic)
        sink = open_sink(options.to, {topic: options.partitions}, tables=(topic,) if options.table else ())
        try:
            rows, seconds = _send(
                sink, topic, options, key, chain([first], portions), lambda n: progress(raw.tell(), n)
            )
        finally:
            sink.close()
    except (gzip.BadGzipFile, EOFError, zlib.error) as error:
        raise ConfigError(f"{options.file} is no whole gzip file ({error}); fetch it again.") from None
    finally:
        raw.close()
        if kept:
            kept.close()
    return {
        "topic": topic,
        "rows": rows,
        "bad_rows": bad.count,
        "first_bad_rows": bad.first,
        "seconds": round(seconds, 3),
        "rows_per_second": round(rows / max(seconds, 1e-9)),
        "records_per_batch": sink.records_per_batch and round(sink.records_per_batch, 1),
    }


def _may_write(options: ReplayOptions, topic: str) -> None:
    """Raises ConfigError where rows would come a second time without anybody having said so."""
    known = options.to.startswith(("file:", "kafka://"))
    if known and not options.append and not options.table and (held := holds(options.to, topic)):
        raise ConfigError(
            f"topic {topic!r} of {options.to} holds {held} already, and rows that are sent twice are learned "
            "twice; say --append to write behind them, or name another --topic."
        )


def _portions(
    options: ReplayOptions, layout: Layout, key: str | None, content: IO[bytes], bad: BadRows
) -> Iterator[pa.RecordBatch | Lines]:
    """Unit of sending: JSON events, or rows as a batch; never empty."""
    size = max(1, round(options.rate * PACE_S)) if options.rate else FILE_ROWS
    if options.format == "jsonl":
        yield from _json_lines(content, key, options.time, size, bad)
        return
    reader = (
        read_parquet(options.file)
        if options.format == "parquet"
        else read_csv(content, layout, options.types, bad)
    )
    rows = 0
    for batch in reader:
        if layout.number_rows:
            batch = batch.append_column("row", pa.array(np.arange(rows, rows + batch.num_rows)))
        rows += batch.num_rows
        if column := options.time or layout.time:
            batch = with_time(batch, column, layout.read_time or iso_ms, bad)
        if key and key not in batch.schema.names:
            raise ConfigError(
                f"the file has no column {key!r}; its columns are {', '.join(batch.schema.names)}."
            )
        for start in range(0, batch.num_rows, size):
            some = batch.slice(start, size)
            # Compaction goes by message key, so rows of a table are messages of their own.
            yield _as_lines(some, key) if options.events == "json" or options.table else some


def _json_lines(
    content: IO[bytes], key: str | None, time_column: str | None, size: int, bad: BadRows
) -> Iterator[Lines]:
    """JSON lines go out as they are, but for a time that has to become milliseconds."""
    lines: Lines = []
    decode = json.JSONDecoder().decode
    for number, line in enumerate(content, 1):
        if not line.strip():
            continue
        if number == 1:
            line = line.removeprefix(codecs.BOM_UTF8)
        try:
            event = decode(line.decode())
            if not isinstance(event, dict):
                raise ValueError("no JSON object")
            if key and key not in event:
                raise ValueError(f"no {key!r}")
            if time_column:
                event[time_column] = iso_ms(event.get(time_column))
                line = json.dumps(event).encode()
        except (ValueError, TypeError, OverflowError, RecursionError) as error:
            bad.add(number, str(error), line.decode(errors="replace").rstrip())
            continue
        lines.append((str(event[key]).encode() if key else None, line.rstrip()))
        if len(lines) == min(size, 10_000):
            yield lines
            lines = []
    if lines:
        yield lines


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
            column = portion.column(key).cast(pa.string()).to_pylist() if key else None
            texts = [(text or "").encode() for text in column] if column else None
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
