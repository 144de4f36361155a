"""Windows of a log beside DuckDB's over the finished log: the same numbers, and the seconds of both."""

from __future__ import annotations

import json
import subprocess
import tempfile
import time
from pathlib import Path

import numpy as np
import pyarrow as pa
import pyarrow.parquet as pq

from bench.counters.log import BY_AD, COLUMNS, LOG, OVER, drifting
from bench.environment import ROOT, python
from bench.rows import row
from livectr import Pipeline
from livectr.ingest.dead_letters.letters import DeadLetters
from livectr.ingest.extract.extractor import Extractor
from livectr.ingest.join.examples import ExampleSource, ReadOptions
from livectr.ingest.language.expr import Expr
from livectr.ingest.materialized.writer import until_end
from livectr.models import LR
from livectr.system.errors import InternalError

ROWS = 1_000_000
PACKAGES = Path(__file__).with_name("peers.txt")


def rows(quick: bool) -> list[dict[str, object]]:
    """Row of the two. Raises InternalError if a window differs."""
    interpreter = python(PACKAGES, program="bench counters")
    size = ROWS // 20 if quick else ROWS
    columns, _ = drifting(0, size)
    with tempfile.TemporaryDirectory() as folder:
        log, theirs = Path(folder, "shown", "00000-log.parquet"), Path(folder, "windows.parquet")
        log.parent.mkdir()
        pq.write_table(pa.table({name: pa.array(columns[name]) for name in COLUMNS}), log)
        began = time.monotonic()
        ours = _ours(f"file:{folder}")
        spent = time.monotonic() - began
        windows = [list(each) for each in zip(BY_AD.counted.over_ms, BY_AD.counted.spans, strict=True)]
        words = (str(log), str(theirs), json.dumps(windows), str(BY_AD.counted.grain_ms))
        done = subprocess.run(
            [str(interpreter), "-m", "bench.counters.duckdb_peer", *words],
            cwd=ROOT,
            check=True,
            stdout=subprocess.PIPE,
            text=True,
        )
        found = pq.read_table(theirs).sort_by("id")
        same = np.stack([found.column(name).to_numpy() for name in found.column_names[1:]], axis=1)
    if not np.array_equal(ours, same):
        raise InternalError("bench counters: windows differ from those of DuckDB")
    return [
        row(
            "rows a second with all windows, which are equal",
            f"{size:,} rows, {len(OVER)} windows of {len(np.unique(columns['ad']))} keys",
            "rows/s",
            size / spent,
            peer_name="DuckDB, window functions",
            peer=size / float(done.stdout),
        )
    ]


def _ours(url: str) -> np.ndarray:
    """Impressions and clicks of each window, float32[rows, 2 · windows], by the rows' numbers."""
    dense: dict[str, Expr] = {}
    for window in OVER:
        dense |= {f"shown_{window}": BY_AD.impressions[window], f"clicked_{window}": BY_AD.clicks[window]}
    pipeline = Pipeline(LOG, sparse={"ad": LOG.ad}, dense=dense, rank=LR())
    options = ReadOptions(until_end=True)
    source = ExampleSource(pipeline, url, options, rank=0, world=1, dead_letters=DeadLetters(None))
    extract = Extractor(pipeline.plan)
    try:
        return np.concatenate([extract(batch.columns).dense for batch in until_end(source)])
    finally:
        source.close()
