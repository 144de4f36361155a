"""Our side: log → look-ups → features, batch by batch, features dropped.

python -m bench.featurebox.ours FOLDER        prints JSON
"""

from __future__ import annotations

import argparse
import json
import os
import time
from collections.abc import Iterator
from concurrent.futures import Future, ThreadPoolExecutor
from pathlib import Path

import numpy as np

from bench.featurebox.pipeline import display_ads
from livectr.ingest.dead_letters.letters import DeadLetters
from livectr.ingest.extract.extractor import Extractor
from livectr.ingest.join.example_columns import Examples
from livectr.ingest.join.examples import ExampleSource, ReadOptions
from livectr.ingest.pipeline import Pipeline
from livectr.ingest.plan.features import Features
from livectr.system.heap import loading, tune_malloc

BATCH = 4096
WAIT_S = 0.1


def examples(pipeline: Pipeline, folder: str, limit: int | None = None) -> Iterator[Examples]:
    """Batches of a stored log, looked up; all, or the first `limit` rows."""
    source = ExampleSource(
        pipeline,
        f"file:{folder}",
        ReadOptions(until_end=True),
        rank=0,
        world=1,
        dead_letters=DeadLetters(None),
    )
    given = 0
    try:
        while limit is None or given < limit:
            ready = len(source.orders(BATCH)[0])
            if ready < BATCH and not source.ended:
                source.poll(WAIT_S)
                continue
            if ready == 0:
                return
            batch = source.pop(min(ready, BATCH if limit is None else limit - given))
            given += len(batch)
            yield batch
    finally:
        source.close()


def first(pipeline: Pipeline, folder: str, rows: int) -> Features:
    """Features of the first rows of the log."""
    extract = Extractor(pipeline.plan, engine="fused")
    return Features.concat([extract(batch.columns) for batch in examples(pipeline, folder, rows)])


def resident_mib() -> float:
    """Memory of this process."""
    pages = int(Path("/proc/self/statm").read_text().split()[1])
    return pages * os.sysconf("SC_PAGE_SIZE") / 2**20


def measure(folder: str) -> dict[str, float]:
    """Seconds and memory of a pass, after a warm-up on the first rows."""
    pipeline = display_ads()
    extract = Extractor(pipeline.plan, engine="fused")
    for batch in examples(pipeline, folder, 2 * BATCH):
        extract(batch.columns)
    start, cpu = time.perf_counter(), time.process_time()
    rows, keys, input_bytes = 0, 0, 0
    resident = []
    # As in trainer.stream.feed: a batch is extracted while the next batch is read and looked up.
    with ThreadPoolExecutor(1) as worker:
        flight: Future[Features] | None = None
        for batch in examples(pipeline, folder):
            found, flight = flight, worker.submit(extract, batch.columns)
            rows += len(batch)
            input_bytes += batch.columns.nbytes
            keys += len(found.result().keys) if found is not None else 0
            resident.append(resident_mib())
        keys += len(flight.result().keys) if flight is not None else 0
    quarter = len(resident) // 4
    return dict(
        rows=rows,
        seconds=time.perf_counter() - start,
        cpu_s=time.process_time() - cpu,
        keys_per_row=keys / rows,
        row_bytes=input_bytes / rows,
        feature_bytes=(8 * keys + 4 * rows * (len(pipeline.plan.sparse) + len(pipeline.plan.dense))) / rows,
        peak_mib=max(resident),
        first_quarter_mib=float(np.median(resident[quarter // 2 : quarter])),
        last_quarter_mib=float(np.median(resident[-quarter:])),
    )


def main() -> None:
    """Command line."""
    with loading():  # as `livectr train` does
        tune_malloc()
    parser = argparse.ArgumentParser()
    parser.add_argument("folder")
    print(json.dumps(measure(parser.parse_args().folder)))


if __name__ == "__main__":
    main()
