"""Training with tables ten times the memory they may take, beside all rows in memory (trainer.tables.tiers).

A step is that of a CTR network: tables forward, an MLP forward and backward, tables backward. Every id has
been seen before; ids are Zipf, so that the head of a batch's rows is in memory and the tail on SSD.
"""

import statistics
import tempfile
import time
from collections.abc import Mapping
from pathlib import Path

import numpy as np
import torch

from bench.rows import row
from livectr.kernels.table.field_tables import FieldTables
from livectr.kernels.table.layout import AdaGrad, RowLayout, Segment
from livectr.kernels.table.table import DynamicTable, Keys
from livectr.trainer.tables.tiers import Prefetched, Tiers

FIELDS, K, BATCH = 26, 16, 1024
LAYOUT = RowLayout((Segment("v", K, AdaGrad(), 0.01),))
SPREAD = 0x1E3779B97F4A7C15
TIMES = 10
"""Rows there are for each that fits."""


def run(quick: bool = False) -> list[dict[str, object]]:
    """Rows of `livectr bench tiers`. A ratio is the share of the speed with all rows in memory."""
    ids, steps = (260_000, 16) if quick else (1_000_000, 40)
    rng = np.random.default_rng(0)
    per_field = ids // FIELDS
    names = [f"field{f}" for f in range(FIELDS)]
    rows = []
    for skew in (1.05, 1.3):
        weights = np.arange(1, per_field + 1, dtype=np.float64) ** -skew
        drawn = [rng.choice(per_field, (FIELDS, BATCH), p=weights / weights.sum()) for _ in range(steps + 1)]
        batches = [dict(zip(names, batch * SPREAD, strict=True)) for batch in drawn]
        whole = {name: DynamicTable(LAYOUT, name=name, seed=1) for name in names}
        _fill(whole, per_field)
        peer, _ = _steps(whole, batches)
        for ahead in (True, False):
            with tempfile.TemporaryDirectory(prefix="livectr-tiers-") as folder:
                tiers = Tiers(Path(folder), whole[names[0]].row_bytes * ids // TIMES, 0)
                tables = {name: tiers.table(LAYOUT, name=name, seed=1) for name in names}
                _fill(tables, per_field)
                ours, below = _steps(tables, batches, tiers, ahead)
                tiers.close()
            rows.append(
                row(
                    f"training step, {TIMES} times the memory, "
                    + ("read ahead" if ahead else "no reading ahead"),
                    f"{FIELDS} fields, Zipf {skew} of {ids:,} ids, {below:.0%} of a batch's rows on SSD, "
                    f"K={K}, MLP 256-128, batch {BATCH}",
                    "samples/s",
                    BATCH / ours,
                    peer_name="all rows in memory",
                    peer=BATCH / peer,
                )
            )
    return rows


def _fill(tables: Mapping[str, DynamicTable], ids: int) -> None:
    """Every id, the rarest first."""
    for table in tables.values():
        keys = np.arange(ids)[::-1] * SPREAD
        table.assign(keys, np.full((ids, LAYOUT.stride), 0.1, np.float32))


def _steps(
    tables: Mapping[str, DynamicTable],
    batches: list[dict[str, Keys]],
    tiers: Tiers | None = None,
    ahead: bool = False,
) -> tuple[float, float]:
    """Median seconds of a step, and the mean share of a batch's unique rows that were not in memory."""
    front = FieldTables(dict(tables), [(name, name) for name in tables])
    torch.manual_seed(0)
    mlp = torch.nn.Sequential(
        torch.nn.Linear(FIELDS * K, 256),
        torch.nn.ReLU(),
        torch.nn.Linear(256, 128),
        torch.nn.ReLU(),
        torch.nn.Linear(128, 1),
    )
    offsets = np.arange(FIELDS * BATCH + 1, dtype=np.int32)
    seconds, missing = [], []
    held: Prefetched | None = None
    for n, batch in enumerate(batches):
        started = time.perf_counter()
        if tiers is not None:
            now = held or tiers.prefetch(batch)
            if ahead and n + 1 < len(batches):
                held = tiers.prefetch(batches[n + 1])
            missing.append(len(now.requested) / len(now.keys))
            tiers.promote(now)
        (values,) = front.forward(offsets, np.concatenate(list(batch.values())), BATCH)
        leaf = torch.from_numpy(values).requires_grad_()
        torch.nn.functional.softplus(mlp(leaf.flatten(1))).sum().backward()  # type: ignore[no-untyped-call]
        assert leaf.grad is not None
        front.backward(leaf.grad.numpy())
        mlp.zero_grad()
        if tiers is not None:
            tiers.evict()
        seconds.append(time.perf_counter() - started)
    settled = len(seconds) // 2  # by then the most used rows are in memory
    return statistics.median(seconds[settled:]), statistics.fmean(missing[settled:] or [0.0])
