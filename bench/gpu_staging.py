"""Staging of batches for a device: rows per second, and bytes beside a plain copy. It needs no device.

The batches are those of the 200 features of `bench featurebox`, as a trainer has them: columns of the log
with nulls, and columns of its tables as dictionaries. `python -m bench.gpu_staging` prints the rows;
$LIVECTR_THREADS sets the threads.
"""

from __future__ import annotations

import functools
from dataclasses import dataclass

import numpy as np
import numpy.typing as npt
import pyarrow as pa

from bench.featurebox import view
from bench.featurebox.pipeline import pipeline
from bench.featurebox.schema import LOG, TABLES
from bench.gpu_timing import once
from bench.rows import bounded, row
from livectr.ingest.extract.staging import Staging
from livectr.kernels.runtime.compiler import thread_count

SIZES = (1 << 12, 1 << 15, 1 << 20)
"""Rows of a batch."""
GOAL_ROWS_PER_S, GOAL_THREADS = 8e6, 8
LOG_ROWS = 1 << 15
"""Rows that differ."""
SHARE = 0.1
"""Size of the tables, as a share of those of a log of a million rows."""


def measure(rows: int, repeats: int) -> list[dict[str, object]]:
    """Rows of the benchmark's table for batches of `rows` rows, at least 1."""
    batch, threads = batch_of(rows), thread_count()
    staging = Staging([node for node in pipeline.plan.nodes if node.is_root])
    starts = np.empty(staging.parts, np.int64)
    size = staging(batch, np.empty(0, np.uint8), starts)
    source, out = np.zeros(size, np.uint8), np.zeros(size, np.uint8)
    times_s, copies_s = [], []
    for _ in range(repeats):  # in turns, so that other work on the machine meets both
        times_s.append(once(lambda: staging(batch, out, starts)))
        copies_s.append(once(lambda: np.copyto(out, source)))
    rate = rows / float(np.median(times_s))
    workload = f"200 features, {rows:,} rows a batch, {size / rows:.0f} bytes a row, {threads} threads"
    goal = GOAL_ROWS_PER_S if threads >= GOAL_THREADS else None
    return [
        bounded("staging", workload, "rows/s", rate, goal=goal, better="more"),
        row(
            "staging, bytes written",
            workload,
            "GB/s",
            rate * size / rows / 1e9,
            peer_name="memcpy of as many bytes, one thread",
            peer=size / float(np.median(copies_s)) / 1e9,
        ),
    ]


def batch_of(rows: int) -> pa.RecordBatch:
    """Batch of the pipeline's root columns: copies of LOG_ROWS rows."""
    columns, lookups = _view()
    repeated = np.resize(np.arange(LOG_ROWS, dtype=np.int32), rows)
    arrays = {name: array.take(pa.array(repeated)) for name, array in columns.items()}
    for found in lookups:
        index = found.index[repeated]
        encoded = pa.array(index, mask=index < 0)
        for name, column in zip(found.names, found.table.columns, strict=True):
            arrays[name] = pa.DictionaryArray.from_arrays(encoded, column)
    return pa.RecordBatch.from_pydict({root.name: arrays[root.name] for root in pipeline.plan.roots})


@dataclass(frozen=True)
class _Lookup:
    """Look-up in a table.

    Attributes:
        names: of the table's columns.
        table: its rows.
        index: int32[rows of the log], row of the table, or -1.
    """

    names: list[str]
    table: pa.RecordBatch
    index: npt.NDArray[np.int32]


@functools.cache
def _view() -> tuple[dict[str, pa.Array], list[_Lookup]]:
    """Columns of the log by name, and its look-ups."""
    rng = np.random.default_rng(1)
    pools = view.Pools(rng, SHARE)
    counts = {table: max(100, int(count * SHARE)) for table, count in view.KEYS.items()}
    log = view.log_rows(rng, pools, counts, 0, LOG_ROWS).combine_chunks()
    lookups = []
    for table, count in counts.items():
        key = TABLES[table][0]
        batch = view.table_rows(rng, pools, table, count)
        ids = log.column(key).to_numpy()
        index = np.where(ids > 0, np.searchsorted(batch.column(key).to_numpy(), ids), -1).astype(np.int32)
        lookups.append(_Lookup([f"{table}.{name}" for name in batch.schema.names], batch, index))
    return {f"{LOG}.{name}": log.column(name).chunk(0) for name in log.column_names}, lookups


if __name__ == "__main__":
    for size in SIZES:
        for found in measure(size, 7 if size == SIZES[-1] else 101):
            print(found)
