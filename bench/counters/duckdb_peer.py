"""Windows of a finished log by DuckDB: `python -m bench.counters.duckdb_peer LOG OUT WINDOWS GRAIN_MS`.

Prints the seconds. WINDOWS is JSON: the length in ms of each window, and that of its cells in grains.
"""

import json
import sys
import time

import duckdb


def windows_of(lengths: list[tuple[int, int]], grain_ms: int) -> tuple[str, str]:
    """Columns of all windows, and their definitions in SQL."""
    columns, windows = [], []
    for number, (length, span) in enumerate(lengths):
        cell = grain_ms * span
        begin = f"ts - (ts - {length}) // {grain_ms} // {span} * {cell}"
        end = f"ts - ts // {grain_ms} * {grain_ms} + 1"
        frame = f"RANGE BETWEEN ({begin}) PRECEDING AND ({end}) PRECEDING"
        windows.append(f"w{number} AS (PARTITION BY ad ORDER BY ts {frame})")
        columns.append(f"count(*) OVER w{number} AS shown{number}")
        columns.append(f"coalesce(sum(clicked) OVER w{number}, 0)::BIGINT AS clicked{number}")
    return ", ".join(columns), ", ".join(windows)


def main(log: str, out: str, lengths: str, grain_ms: str) -> None:
    """Write the windows of each row."""
    columns, windows = windows_of([(a, b) for a, b in json.loads(lengths)], int(grain_ms))
    connection = duckdb.connect(config={"threads": 1})
    began = time.monotonic()
    query = f"SELECT id, {columns} FROM read_parquet('{log}') WINDOW {windows}"
    connection.execute(f"COPY ({query}) TO '{out}' (FORMAT parquet)")
    print(time.monotonic() - began)


if __name__ == "__main__":
    main(*sys.argv[1:])
