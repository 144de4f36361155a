"""Time of a training step by part, beside the machine's limit: DeepFM on workload P, one rank.

torch's profiler times operations on the step's thread, and our kernels by marks around their calls. What is
between them is Python. Parts are shares of the profiled steps, scaled to the time of a step without the
profiler.

The limit is the time of the network's products at the best rate of a large product on this machine, plus the
bytes that a step must move once, at the bandwidth of a copy: keys, rows (read, and written with their
optimisers' state), pooled vectors and layers with their gradients.
"""

from __future__ import annotations

import itertools
import statistics
import time
from collections import defaultdict
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from dataclasses import dataclass
from unittest.mock import patch

import numpy as np
import torch
from torch.profiler import ProfilerActivity, profile, record_function

from bench.peers.ours import OURS, trainer
from bench.peers.workloads import Batch, P, Workload
from bench.rows import bounded, row
from livectr.kernels.network import field_sums, layers, packed
from livectr.kernels.table.field_tables import FieldTables
from livectr.kernels.table.rows import row_layout
from livectr.models import DeepFM
from livectr.models.roles import row_segments
from livectr.system.heap import tune_malloc
from livectr.trainer.comm.collectives import Collectives
from livectr.trainer.des.exchange import Exchange

READ, LEARN, KEYS = "tables: look up, read, pool", "tables: sum gradients, learn", "keys"
FIRST, PRODUCTS, ADAM, ELEMENTWISE = (
    "FM and first layer: sums, and products but for the weights' gradients",
    "products",
    "Adam of the networks",
    "torch's elementwise operations, sums and copies",
)
LAYERS = "further layers: products but for the weights' gradients, biases, activations"
PYTHON = "Python and the rest"
_MARKED: tuple[tuple[object, str, str], ...] = (
    (FieldTables, "forward", READ),
    (FieldTables, "backward", LEARN),
    (Exchange, "__call__", KEYS),
    (packed, "product", PRODUCTS),
    (field_sums, "field_sums", FIRST),
    (field_sums, "field_gradients", FIRST),
    (layers, "forward", LAYERS),
    (layers, "backward", LAYERS),
)
_OPERATIONS = {
    PRODUCTS: ("aten::mm", "aten::addmm", "aten::bmm", "aten::baddbmm", "aten::mv", "aten::addmv"),
    ADAM: ("aten::_fused_adam",),
}
"""Part → operations, without the underscore of those that work in place."""
GOAL = 0.65
"""Least share of the limit in a step's time."""


@dataclass(frozen=True)
class Limit:
    """Seconds of a step that this machine cannot go below."""

    products: float
    bytes: float

    @property
    def total(self) -> float:
        return self.products + self.bytes


def run(quick: bool = False) -> list[dict[str, object]]:
    """Rows of `livectr bench step`."""
    tune_malloc()  # as a run does
    rows = []
    for name, how in OURS.items():
        step = trainer(P, Collectives(), how)
        batches = P.batches(0, 1, 5 if quick else 20)
        measured = seconds(step, batches, 1 if quick else 5)
        with marks():
            shares = parts(step, batches)
        limit = limit_of(P, batches)
        workload = f"{P}, 1 rank, {name}, {torch.get_num_threads()} threads"
        rows.append(row("step", workload, "ms", 1e3 * measured))
        rows += [
            row(part, workload, "ms", 1e3 * measured * share)
            for part, share in sorted(shares.items(), key=lambda item: -item[1])
        ]
        if name == "fp32":
            rows += [
                row("limit: products at the peak", workload, "ms", 1e3 * limit.products),
                row("limit: bytes at the bandwidth", workload, "ms", 1e3 * limit.bytes),
                bounded(
                    "limit, of the step", workload, "of 1", limit.total / measured, goal=GOAL, better="more"
                ),
            ]
    return rows


def seconds(step: Callable[[Batch], object], batches: list[Batch], rounds: int) -> float:
    """Median seconds of a step, after a round that does not count."""
    found = []
    for turn in range(1 + rounds):
        for batch in batches:
            start = time.perf_counter()
            step(batch)
            if turn:
                found.append(time.perf_counter() - start)
    return statistics.median(found)


@contextmanager
def marks() -> Iterator[None]:
    """Mark the calls of our kernels for the profiler."""
    patches = [
        patch.object(owner, name, _marked(getattr(owner, name), part)) for owner, name, part in _MARKED
    ]
    for one in patches:
        one.start()
    try:
        yield
    finally:
        for one in patches:
            one.stop()


def _marked(real: Callable[..., object], part: str) -> Callable[..., object]:
    def call(*args: object, **options: object) -> object:
        with record_function(part):
            return real(*args, **options)

    return call


def parts(step: Callable[[Batch], object], batches: list[Batch]) -> dict[str, float]:
    """Share of each part in the time of profiled steps; the shares add up to 1."""
    with profile(activities=[ProfilerActivity.CPU]) as profiled:
        for batch in batches:
            with record_function("step"):
                step(batch)
    found: dict[str, float] = defaultdict(float)
    total = 0.0
    for event in profiled.key_averages():
        if event.key == "step":
            total = event.cpu_time_total
        else:
            found[_part(event.key)] += event.self_cpu_time_total
    found[PYTHON] += total - sum(found.values())
    return {part: spent / total for part, spent in found.items()}


def _part(event: str) -> str:
    if event in {part for *_, part in _MARKED}:
        return event
    for part, names in _OPERATIONS.items():
        if event.rstrip("_") in names:
            return part
    return ELEMENTWISE if event.startswith("aten::") else PYTHON


def limit_of(work: Workload, batches: list[Batch]) -> Limit:
    """Limit of a step of DeepFM on these batches."""
    fields, dim = work.fields, work.dim
    widths = [fields * dim + work.dense, *work.hidden, 1]
    multiplications = sum(a * b for a, b in itertools.pairwise(widths))
    config = DeepFM(dim=dim, hidden=work.hidden)
    layout = row_layout(row_segments({"rank": config}, fields))
    unique = statistics.mean(_unique(batch) for batch in batches)
    keys = statistics.mean(len(batch.features.keys) for batch in batches)
    rows = unique * 4 * (layout.dim + 2 * layout.stride)  # read once, read and written once
    pooled = 4 * 4 * work.batch * fields * layout.dim  # written and read, gradients as well
    activations = 4 * 4 * work.batch * sum(work.hidden)
    return Limit(
        3 * 2 * work.batch * multiplications / peak(), (8 * keys + rows + pooled + activations) / bandwidth()
    )


def _unique(batch: Batch) -> int:
    bounds = batch.features.offsets[:: batch.features.rows]
    return sum(len(np.unique(batch.features.keys[a:b])) for a, b in itertools.pairwise(bounds.tolist()))


def peak(size: int = 1536, times: int = 7) -> float:
    """FLOP/s of a large fp32 product: the better of torch's and ours."""
    a, b = torch.randn(size, size), torch.randn(size, size)
    out = torch.empty(size, size)
    ways = (
        lambda: torch.mm(a, b, out=out),
        lambda: packed.product(a.numpy(), b.numpy(), out.numpy(), "fp32"),
    )
    return 2 * size**3 / min(_least(way, times) for way in ways)


def bandwidth(nbytes: int = 1 << 28, times: int = 7) -> float:
    """Bytes/s, read and written, of a copy that no cache holds."""
    a, b = torch.zeros(nbytes, dtype=torch.uint8), torch.zeros(nbytes, dtype=torch.uint8)
    return 2 * nbytes / _least(lambda: b.copy_(a), times)


def _least(work: Callable[[], object], times: int) -> float:
    found = []
    for _ in range(times):
        start = time.perf_counter()
        work()
        found.append(time.perf_counter() - start)
    return min(found)
