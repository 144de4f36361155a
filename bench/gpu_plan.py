"""Device code and work of a batch of the 200 features, before and after a device ran its nodes from tables.

`python -m bench.gpu_plan` prints the table of docs/benchmarks/gpu.md. It needs no GPU: NVRTC and ptxas tell
of the code, and the emulated device counts what a GPU would be asked. Staging is the host's own work.
"""

from __future__ import annotations

import os
from dataclasses import dataclass

from bench import gpu_staging
from bench.gpu import PACKING
from bench.gpu_timing import traffic
from bench.gpu_work import WIDE, batch_of
from livectr.ingest.extract.device_code import PACK_SOURCE, device_units, node_kernels
from livectr.ingest.extract.device_extractor import DeviceExtractor
from livectr.kernels.runtime.columns import THREADS
from livectr.kernels.runtime.compiler import compile_cubin
from livectr.kernels.runtime.device import EmulatedDevice
from tests.kernel_budgets import ptxas_report, usages

ROWS = 4096
"""Rows of a batch."""
MULTIPROCESSORS = 132
"""Multiprocessors of an H100 and an H200."""
BEFORE = {
    "code of the kernels that pack, kB": "512",
    "code of the plan with them, kB": "1,529",
    "NVRTC, CPU s": "46",
    "thread blocks a batch": "96",
    "launches a batch": "9",
    "staging, ms a batch": "5.2",
    "staging, million rows/s": "0.79",
    "waits of the host a batch": "2",
    "allocations a batch": "not counted",
}
"""Figures of the code before, of a machine with two cores."""


@dataclass(frozen=True)
class Code:
    """Device code of the plan.

    Attributes:
        pack_bytes: of the packing kernels' cubin.
        plan_bytes: of all cubins, with them.
        cpu_s: of NVRTC.
        blocks: thread blocks of a batch in its layers.
        waves: blocks for each that the multiprocessors hold at once, by ptxas's account.
    """

    pack_bytes: int
    plan_bytes: int
    cpu_s: float
    blocks: int
    waves: float


def code() -> Code:
    """Compile the plan for sm_90."""
    compile_cubin(PACK_SOURCE)  # NVRTC has opened its library
    began = sum(os.times()[:4])
    kernels, units = node_kernels(WIDE.plan), device_units(WIDE.plan)
    sizes = [len(compile_cubin(unit.source)) for unit in units]
    cpu_s = sum(os.times()[:4]) - began
    blocks, waves = 0, 0.0
    for kernel, unit in zip(kernels, units, strict=False):  # the last unit packs
        grid = len(kernel.nodes) * -(-ROWS // THREADS)
        blocks += grid
        waves += grid / (usages(ptxas_report(unit.source))[kernel.name].blocks * MULTIPROCESSORS)
    return Code(sizes[-1], sum(sizes), cpu_s, blocks, waves)


@dataclass(frozen=True)
class Asked:
    """Launches, waits and allocations of a batch like those before."""

    layers: int
    launches: float
    waits: float
    allocations: float


def asked(batches: int = 4) -> Asked:
    """Count it on the emulated device."""
    extract, batch = DeviceExtractor(WIDE.plan, EmulatedDevice, rows=ROWS), batch_of(WIDE, ROWS)
    for _ in range(3):  # pools have grown, and memory is used again
        extract(batch)
    before = extract.launches
    with traffic(EmulatedDevice) as found:
        for _ in range(batches):
            extract(batch)
    launches = (extract.launches - before) / batches
    return Asked(len(WIDE.plan.layers) - 1, launches, found.waits / batches, found.allocations / batches)


def table() -> str:
    """Markdown table of both."""
    compiled, counted = code(), asked()
    rows_per_s = float(str(gpu_staging.measure(ROWS, 200)[0]["ours"]))
    after = {
        "code of the kernels that pack, kB": f"{compiled.pack_bytes / 1e3:.0f}, those of every plan",
        "code of the plan with them, kB": f"{compiled.plan_bytes / 1e3:.0f}",
        "NVRTC, CPU s": f"{compiled.cpu_s:.1f}",
        "thread blocks a batch": f"{compiled.blocks:,}",
        "waves on 132 multiprocessors": f"{compiled.waves:.1f}",
        "launches a batch": f"{counted.launches:g}: {counted.layers} layers, and {PACKING} that pack",
        "staging, ms a batch": f"{1e3 * ROWS / rows_per_s:.2f}",
        "staging, million rows/s": f"{rows_per_s / 1e6:.1f}",
        "waits of the host a batch": f"{counted.waits:g}",
        "allocations a batch": f"{counted.allocations:g}",
    }
    lines = [f"| 200 features, {ROWS:,} rows a batch | before | after |", "|---|---|---|"]
    lines += [f"| {name} | {BEFORE.get(name, '–')} | {figure} |" for name, figure in after.items()]
    return "\n".join(lines)


if __name__ == "__main__":
    print(table())
