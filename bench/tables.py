"""The dynamic table beside torch's static ones: look-ups, inserts, bytes, and a training step of fields."""

import statistics
import time
from collections.abc import Callable
from functools import partial
from typing import Any

import numpy as np
import torch

from bench.rows import row
from bench.timed import timed
from livectr.kernels.table.field_tables import FieldTables
from livectr.kernels.table.layout import AdaGrad, RowLayout, Segment
from livectr.kernels.table.table import DynamicTable

FIELDS, K, BATCH = 26, 16, 4096
LAYOUT = RowLayout((Segment("w", 1, AdaGrad()), Segment("v", K, AdaGrad(), 0.01)))
SPREAD = 0x1E3779B97F4A7C15  # ids as the hash of a log would give them


def run(quick: bool = False) -> list[dict[str, object]]:
    """Rows of `livectr bench tables`. A ratio above 1 means that ours is better."""
    keys, rounds = (100_000, 3) if quick else (1_000_000, 9)
    return [
        *_lookup(keys, rounds),
        *_insert(keys, rounds),
        _growth(10 * keys),
        _bytes(keys),
        _step(keys, 3 * rounds),
    ]


def _lookup(keys: int, rounds: int) -> list[dict[str, object]]:
    """Look-ups of random known keys, against index_select, which is given the rows."""
    rng = np.random.default_rng(0)
    table = DynamicTable(RowLayout((Segment("v", K, AdaGrad(), 0.01),)), name="bench", seed=1)
    known = rng.integers(-(2**63), 2**63 - 1, keys)
    table.find_or_insert(known)
    static = torch.from_numpy(table.lookup(known))
    requested = rng.permutation(keys)
    wanted, places = known[requested], torch.from_numpy(requested)
    ours, peer = _alternate(
        lambda: table.lookup(wanted), lambda: torch.index_select(static, 0, places), rounds
    )
    workload = f"{keys:,} random keys in a table of as many"
    found = statistics.median(timed(lambda: table.find(wanted)) for _ in range(rounds))
    return [
        row(
            f"look-up and gather, K={K}",
            workload,
            "Mkeys/s",
            keys / ours / 1e6,
            peer_name="torch.index_select of a static table",
            peer=keys / peer / 1e6,
            goal=0.5,
        ),
        row("find", workload, "Mkeys/s", keys / found / 1e6),
    ]


def _insert(keys: int, rounds: int) -> list[dict[str, object]]:
    known = np.random.default_rng(1).integers(-(2**63), 2**63 - 1, keys)

    def fill(table: DynamicTable, size: int) -> float:
        return timed(
            lambda: [table.find_or_insert(part) for part in np.split(known, range(size, keys, size))]
        )

    def empty() -> DynamicTable:
        return DynamicTable(LAYOUT, name="bench", seed=1)

    reused = empty()
    times: dict[str, list[float]] = {"one call": [], f"batches of {BATCH}": [], "one call, memory reused": []}
    for _ in range(rounds):
        times["one call"].append(fill(empty(), keys))
        times[f"batches of {BATCH}"].append(fill(empty(), BATCH))
        fill(reused, keys)
        reused.erase(known)
        times["one call, memory reused"].append(fill(reused, keys))
        reused.erase(known)
    return [
        row("insert", f"{keys:,} new keys, {how}", "Mkeys/s", keys / statistics.median(spent) / 1e6)
        for how, spent in times.items()
    ]


def _growth(keys: int) -> dict[str, object]:
    """Longest call that inserts keys in batches, by wall clock and by CPU time. On a shared machine, only the
    CPU time belongs to the table."""
    table = DynamicTable(LAYOUT, name="bench", seed=1)
    known = np.random.default_rng(3).integers(-(2**63), 2**63 - 1, keys)
    calls, cpu = [], 0.0
    for part in np.split(known, range(BATCH, keys, BATCH)):
        before = time.process_time()
        calls.append(timed(partial(table.find_or_insert, part)))
        cpu = max(cpu, time.process_time() - before)
    return row(
        "longest call of a growing table",
        f"{keys:,} new keys, batches of {BATCH}; median {statistics.median(calls) * 1e3:.2f} ms, "
        f"most CPU time {cpu * 1e3:.1f} ms",
        "ms",
        max(calls) * 1e3,
        peer_name="a pause that a stream may have",
        peer=50.0,
        better="less",
        goal=1.0,
    )


def _bytes(keys: int) -> dict[str, object]:
    """Against the least that any table must keep."""
    layout = RowLayout((Segment("v", K, AdaGrad(), 0.01),))
    table = DynamicTable(layout, name="bench", seed=1)
    table.find_or_insert(np.arange(keys) * SPREAD)
    return row(
        "bytes per row",
        f"{keys:,} keys, {layout.dim} values, AdaGrad",
        "bytes",
        table.nbytes / keys,
        peer_name="key of 8 bytes, weight and state",
        peer=8 + 4 * layout.stride,
        better="less",
        goal=1 / 1.35,
    )


def _step(ids: int, rounds: int) -> dict[str, object]:
    """Forward, backward, optimiser of all fields; the peer hashes ids into a shared table of `ids` rows."""
    rng = np.random.default_rng(2)
    per_field = ids // FIELDS
    ranks = np.arange(1, per_field + 1, dtype=np.float64) ** -1.05
    batches = [rng.choice(per_field, (FIELDS, BATCH), p=ranks / ranks.sum()) * SPREAD for _ in range(8)]
    grad = rng.normal(size=(BATCH, FIELDS, LAYOUT.dim)).astype(np.float32)

    tables = {f"field{f}": DynamicTable(LAYOUT, name=f"field{f}", seed=1) for f in range(FIELDS)}
    for table in tables.values():
        table.find_or_insert(rng.permutation(per_field) * SPREAD)
    fields = FieldTables(tables, [(name, name) for name in tables])
    offsets = np.arange(FIELDS * BATCH + 1, dtype=np.int32)

    bag = torch.nn.EmbeddingBag(ids, LAYOUT.dim, mode="sum", sparse=True)
    adagrad = torch.optim.Adagrad(bag.parameters(), lr=0.05, initial_accumulator_value=0.1)
    bag_offsets, bag_grad = torch.arange(FIELDS * BATCH), torch.from_numpy(grad.reshape(-1, LAYOUT.dim))
    salts = np.arange(FIELDS)[:, None] * 0x632BE59BD9B4E01
    turn = {"ours": 0, "peer": 0}

    def batch(who: str) -> Any:
        turn[who] += 1
        return batches[turn[who] % len(batches)]

    def ours() -> None:
        fields.forward(offsets, batch("ours").reshape(-1), BATCH)
        fields.backward(grad)

    def peer() -> None:
        buckets = ((batch("peer") ^ salts) % ids).T.reshape(-1)
        adagrad.zero_grad()
        bag(torch.from_numpy(buckets), bag_offsets).backward(bag_grad)
        adagrad.step()

    ours_s, peer_s = _alternate(ours, peer, rounds)
    return row(
        "embedding step (forward, backward, optimiser)",
        f"{FIELDS} fields, Zipf 1.05 of {ids:,} ids, K={K} and a weight, batch {BATCH}",
        "ms",
        ours_s * 1e3,
        peer_name="torch EmbeddingBag (hash-mod, sparse Adagrad)",
        peer=peer_s * 1e3,
        better="less",
        goal=1.0,
    )


def _alternate(ours: Callable[[], Any], peer: Callable[[], Any], rounds: int) -> tuple[float, float]:
    """Median seconds of each, run in turns (A B A B), after one of each to warm up."""
    ours(), peer()
    pairs = [(timed(ours), timed(peer)) for _ in range(rounds)]
    return statistics.median(a for a, _ in pairs), statistics.median(b for _, b in pairs)
