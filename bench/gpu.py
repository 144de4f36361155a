"""The device's side of FeatureBox, tables (gpu_tables), steps (gpu_step) and pictures (gpu_images).

Launches, allocation, bandwidth, and a GPU against all cores of its host. `make bench-gpu` runs it where a GPU
is; tests and the kit's dry run (bench/gpu_kit) run it on the emulated device, where the figures mean nothing.
"""

from __future__ import annotations

import numpy as np
import pyarrow as pa

from bench import gpu_images, gpu_staging, gpu_step, gpu_tables
from bench.features import display_ads
from bench.gpu_timing import Rows, Target, once, seconds, traffic
from bench.gpu_work import NAME, WIDE, batch_of
from bench.rows import bounded, row
from livectr.ingest import operators as op
from livectr.ingest.extract.device_extractor import DeviceExtractor
from livectr.ingest.extract.extractor import Extract, Extractor
from livectr.ingest.language.expr import ColumnRef, Expr, column
from livectr.ingest.plan.dag import FeaturePlan
from livectr.kernels.runtime.columns import THREADS
from livectr.kernels.runtime.device import CudaDevice, EmulatedDevice, require_gpu

WORDS, LETTERS = 4, 5
"""A string of the string workload: 4 words of 5 letters, 23 bytes."""
STRING = WORDS * LETTERS + WORDS - 1
EXTRACTED = 20e6
"""Rows a second of the 200 features that are the goal on a GPU."""
PACKING = 3
"""Launches that pack a batch's keys."""

_EMPTY = {
    CudaDevice: 'extern "C" __global__ void empty(const void* plan) {}',
    EmulatedDevice: 'extern "C" void empty(const void* plan, long long blocks) {}',
}
_ALLOCATE = """
#include "runtime/threadblock.cuh"
struct Plan { Pool pool; int64_t rows; int64_t* offsets; };
static __device__ inline void body(const Plan& p, const ThreadBlock& block) {
    block.allocate(p.pool, [&](int64_t row) { return 8 + (row & 31); },
                   [&](int64_t row, uint8_t* memory) { p.offsets[row] = memory - p.pool.base; });
}
"""
_ALLOCATE_KERNEL = {
    CudaDevice: _ALLOCATE
    + """
extern "C" __global__ void allocate(const Plan* plan) {
    __shared__ ThreadBlock::Shared shared;
    body(*plan, ThreadBlock{shared, int64_t(blockIdx.x) * THREADS, plan->rows, nullptr});
}
""",
    EmulatedDevice: _ALLOCATE
    + """
#include "runtime/threads.hpp"
extern "C" void allocate(const Plan* plan, int64_t blocks) {
    livectr::parallel_for(blocks, [&](int64_t index) {
        ThreadBlock::Shared shared;
        body(*plan, ThreadBlock{shared, index * THREADS, plan->rows, nullptr});
    });
}
""",
}


SIZES = (1 << 12, 1 << 15, 1 << 20)
"""Rows of a batch."""


def run(quick: bool = False) -> Rows:
    """Rows of the benchmark's table. Raises ConfigError without a GPU."""
    require_gpu()
    repeats = 5 if quick else 20
    found: Rows = []
    for rows in SIZES[:2] if quick else SIZES:
        found += measure(CudaDevice, rows=rows, repeats=repeats)
    for whole in (gpu_step.measure, gpu_images.measure):
        found += whole(CudaDevice, "cuda:0", small=quick)
    return found


def measure(target: Target, *, rows: int, repeats: int) -> Rows:
    """The rows of the table that depend on a batch's rows."""
    return [row for group in GROUPS for row in group(target, rows, repeats)]


def launches(target: Target, rows: int, repeats: int) -> Rows:
    """FeatureBox Table 1: cost of launching an empty kernel, and saving by meta-kernels."""
    device = target(_EMPTY[target], ["empty"])
    found = []
    for count in (1, 10, 100, 1_000, 10_000):

        def launch(count: int = count) -> None:
            for _ in range(count):
                device.launch("empty", 1, 0)

        micros = seconds(device, launch, repeats) * 1e6
        found.append(row("kernel launches", f"{count:,} empty kernels", "µs", micros))
    plan, batch = WIDE.plan, batch_of(WIDE, min(rows, 1024))
    extract = DeviceExtractor(plan, target)
    extract(batch)
    before, reruns = extract.launches, extract.reruns
    extract(batch)
    launched = (extract.launches - before) / (1 + extract.reruns - reruns)
    operators, layers = sum(not node.is_root for node in plan.nodes), len(plan.layers) - 1
    workload = f"{NAME}, {operators} operators in {layers} layers; the rest packs"
    most = layers + PACKING
    return [*found, bounded("launches per batch", workload, "launches", launched, goal=most)]


def allocation(target: Target, rows: int, repeats: int) -> Rows:
    """Cost of an allocation by the pool, against a call of the allocator per result."""
    device = target(_ALLOCATE_KERNEL[target], ["allocate"])
    blocks = -(-rows // THREADS)
    capacity = rows * 64
    memory, offsets, small = device.memory(capacity), device.memory(8 * rows), device.memory(256)
    words = np.array([memory.address, capacity, small.address, rows, offsets.address], np.int64)
    device.upload(small.address + 128, words.view(np.uint8))

    def pool() -> None:
        device.clear(small.address, 8)
        device.launch("allocate", blocks, small.address + 128)

    ours = seconds(device, pool, repeats) / rows * 1e9
    calls = min(rows, 10_000)

    def one_by_one() -> None:
        for _ in range(calls):
            device.memory(24)

    peer = seconds(device, one_by_one, max(3, repeats // 4)) / calls * 1e9
    found = [
        row(
            "allocation, in-kernel pool",
            f"{rows:,} results of 8 to 39 bytes",
            "ns",
            ours,
            peer_name="one call of CuPy's pool each" if target is CudaDevice else "one NumPy array each",
            peer=peer,
            better="less",
            goal=1,
        )
    ]
    if target is CudaDevice:
        runtime = require_gpu().cuda.runtime

        def with_malloc() -> None:
            for _ in range(1_000):
                runtime.free(runtime.malloc(256))

        malloc = seconds(device, with_malloc, 3) / 1_000 * 1e9
        found.append(
            row(
                "allocation, in-kernel pool",
                f"{rows:,} results of 8 to 39 bytes",
                "ns",
                ours,
                peer_name="one cudaMalloc and cudaFree each",
                peer=malloc,
                better="less",
                goal=1,
            )
        )
    # Its share of a layer that allocates for every row: lower() of the string workload.
    plan, batch, _ = strings(rows, 1)
    layer = DeviceExtractor(plan, target).layer_seconds(batch, repeats)[0]
    share = 100 * ours * rows * 1e-9 / layer
    return [*found, row("allocation, share of a layer's time", "lower() of one column", "%", share)]


def bandwidth(target: Target, rows: int, repeats: int) -> Rows:
    """Bytes that a layer reads and writes per second, against a copy inside the device."""
    device = target(_EMPTY[target], ["empty"])
    size = min(rows * 1024, 1 << 30)
    a, b = device.memory(size), device.memory(size)
    copied = 2 * size / seconds(device, lambda: device.copy(a.address, b.address, size), repeats)
    found = []
    for name, make, goal in (("fixed-width", fixed, 0.5), ("with strings", strings, 0.25)):
        plan, batch, moved = make(rows, 8)
        layers = DeviceExtractor(plan, target).layer_seconds(batch, repeats)
        for layer, (layer_s, nbytes) in enumerate(zip(layers, moved, strict=True), start=1):
            found.append(
                row(
                    f"layer kernel, {name}",
                    f"layer {layer}, {nbytes / rows:.0f} bytes a row, {rows:,} rows",
                    "GB/s",
                    nbytes / layer_s / 1e9,
                    peer_name="device copy",
                    peer=copied / 1e9,
                    goal=goal,
                )
            )
    return found


def against_host(target: Target, rows: int, repeats: int) -> Rows:
    """The whole extraction, copies included, against the host's on all cores; what it moves and asks for."""
    found: Rows = []
    repeats = max(3, repeats // 4)
    for name, pipeline, goal in (("display ads", display_ads(), None), (NAME, WIDE, EXTRACTED)):
        plan, batch = pipeline.plan, batch_of(pipeline, rows)
        device, host = DeviceExtractor(plan, target, rows=rows), Extractor(plan, engine="fused")
        for extract in (device, host, device):  # warm: pools have grown, and are as large in the next call
            extract(batch)
        with traffic(target) as asked:
            took_s = median_s(device, batch, repeats)
        host_s = median_s(host, batch, repeats)
        workload = f"{name}, {batch.num_rows:,} rows a batch, copies included"
        rate = batch.num_rows / took_s
        found.append(
            row("feature extraction", workload, "rows/s", rate, peer_name="all cores of the host",
                peer=batch.num_rows / host_s, goal=10)
        )  # fmt: skip
        if goal is not None:
            found.append(
                bounded("feature extraction, of a GPU", workload, "rows/s", rate, goal=goal, better="more")
            )
        up, down = asked.up / repeats, asked.down / repeats
        moved = f"{workload}, {up / batch.num_rows:.0f} bytes a row up, {down / batch.num_rows:.0f} down"
        found += [
            row("feature extraction, bytes copied", moved, "GB/s", (up + down) / took_s / 1e9,
                peer_name="copies of 256 MiB, pinned", peer=copies(target, rows, repeats) / 1e9),
            bounded("allocations after warm-up", workload, "a batch", asked.allocations / repeats, goal=0),
            row("waits of the host", workload, "a batch", asked.waits / repeats),
        ]  # fmt: skip
    return found


def median_s(extract: Extract, batch: pa.RecordBatch, repeats: int) -> float:
    """Median seconds of an extraction, whose result is on the host."""
    return float(np.median([once(lambda: extract(batch)) for _ in range(repeats)]))


def copies(target: Target, rows: int, repeats: int) -> float:
    """Bytes a second of copies between pinned memory and the device, half of them up."""
    device = target(_EMPTY[target], ["empty"])
    size = min(rows * 1024, 1 << 28)
    memory, pinned = device.memory(size), device.staging(size)

    def there_and_back() -> None:
        device.upload(memory.address, pinned)
        device.download(pinned, memory.address)

    return 2 * size / seconds(device, there_and_back, repeats)


def fixed(rows: int, columns: int) -> tuple[FeaturePlan, pa.RecordBatch, list[int]]:
    """One layer of arithmetic on whole numbers. (plan, batch, bytes that each layer moves)."""
    rng = np.random.default_rng(1)
    roots = [column(ColumnRef("t", f"c{i}"), "int64") for i in range(columns)]
    nodes: list[Expr] = []
    for i, x in enumerate(roots):
        y = roots[(i + 1) % columns]
        nodes += [x + y, x * 3, op.bucketize(x, [10, 100, 1000]), op.cross(x, y)]
    plan = FeaturePlan({f"f{i}": node for i, node in enumerate(nodes)})
    arrays = [pa.array(rng.integers(0, 2000, rows)) for _ in roots]
    batch = pa.RecordBatch.from_arrays(arrays, names=[root.name for root in roots])
    return plan, batch, [rows * columns * (8 + 8 + 8 + 4 + 8)]


def strings(rows: int, columns: int) -> tuple[FeaturePlan, pa.RecordBatch, list[int]]:
    """lower, split and key of columns of equally long strings: three layers."""
    rng = np.random.default_rng(2)
    roots = [column(ColumnRef("t", f"s{i}"), "string") for i in range(columns)]
    plan = FeaturePlan({f"f{i}": op.split(op.lower(root), " ") for i, root in enumerate(roots)})
    letters = rng.integers(65, 91, (rows, STRING), dtype=np.uint8)
    letters[:, LETTERS :: LETTERS + 1] = 32
    offsets = pa.py_buffer((np.arange(rows + 1) * STRING).astype(np.int32))
    array = pa.StringArray.from_buffers(rows, offsets, pa.py_buffer(letters.reshape(-1)))
    batch = pa.RecordBatch.from_arrays([array] * columns, names=[root.name for root in roots])
    pointer = 16
    lower = 4 + STRING + pointer + STRING
    split = pointer + STRING + pointer + WORDS * pointer
    key = pointer + WORDS * (pointer + LETTERS) + pointer + WORDS * 8
    return plan, batch, [rows * columns * size for size in (lower, split, key)]


def staging(target: Target, rows: int, repeats: int) -> Rows:
    """Columns of the host as the device takes them: the host's work alone."""
    return gpu_staging.measure(rows, repeats)


GROUPS = (
    *(launches, allocation, bandwidth, staging, against_host),
    *(gpu_tables.index, gpu_tables.gather, gpu_tables.step),
)
"""Parts of `measure`: (target, rows, repeats) → rows."""
SOURCES = (_EMPTY[CudaDevice], _ALLOCATE_KERNEL[CudaDevice])
"""Sources of a GPU that are this benchmark's own."""
