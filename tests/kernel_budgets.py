"""Registers, stack, spills and shared memory of GPU kernels by ptxas's account, against a table of limits.

No GPU is needed. A kernel has as many blocks on a multiprocessor as its registers leave room for: the table's
blocks are the occupancy that its latency needs. Local memory is device memory: a spill in a loop, or an array
that is indexed at run time, costs as much as a gather.
"""

from __future__ import annotations

import re
from collections.abc import Mapping
from dataclasses import dataclass

from livectr.kernels.runtime.columns import THREADS
from livectr.kernels.runtime.compiler import DEVICE_FLAGS, KERNELS

REGISTERS, WARPS, WARP, REGISTER_UNIT = 1 << 16, 64, 32, 256
"""Registers, warps and threads of a warp on a multiprocessor of sm_90 (CUDA C++ Programming Guide, compute
capabilities), and the registers that a warp gets at a time."""
SHARED_BYTES, SHARED_OF_CUDA = 228 << 10, 1 << 10
"""Shared memory of a multiprocessor of sm_90, and the part of each block that CUDA takes."""


@dataclass(frozen=True)
class Usage:
    """Resources of a kernel: a thread's registers, bytes of its stack and spills; a block's shared bytes."""

    registers: int
    stack: int
    spilled: int
    shared: int

    @property
    def blocks(self) -> int:
        """Blocks of THREADS threads that a multiprocessor of sm_90 holds at once."""
        warps = THREADS // WARP
        of_warp = -(-self.registers * WARP // REGISTER_UNIT) * REGISTER_UNIT
        by_registers = REGISTERS // of_warp // warps
        return min(by_registers, WARPS // warps, SHARED_BYTES // (self.shared + SHARED_OF_CUDA))


@dataclass(frozen=True)
class Budget:
    """Limits of a kernel.

    Args:
        blocks: least number of blocks on a multiprocessor.
        stack: most bytes of the stack of a thread: arrays that are indexed at run time, and calls.
        spilled: most bytes of spilled registers, stores and loads.
    """

    blocks: int
    stack: int = 0
    spilled: int = 0

    def holds(self, usage: Usage) -> bool:
        return usage.blocks >= self.blocks and usage.stack <= self.stack and usage.spilled <= self.spilled


_FULL = Budget(8)
TABLE_BUDGETS: dict[str, Budget] = {
    **dict.fromkeys(
        (
            *("find_rows", "read_values_of", "read_rows", "initial_rows", "read_headers"),
            *("group_claim", "group_count", "group_sums", "group_number", "group_spread"),
            *("missing_sums", "list_distinct", "list_missing", "spread_rows", "list_occurrences"),
            *("find_starts", "assign_rows", "count_found", "list_found", "count_changed", "list_changed"),
            *("list_window", "read_evicted", "rehash", "place_cells", "pool_cells"),
        ),
        _FULL,
    ),
    "find_groups": Budget(6),
    **dict.fromkeys(("release_rows", "evict_oldest"), Budget(6)),
    "insert_missing": Budget(3),  # D = 64: a new row is made in registers
    "sum_gradients": Budget(4),  # eight gradients are on their way at once
    "update_rows": Budget(4),  # 16-bit values are rounded at random
}
"""Limits of kernels/gpu_table. None has a stack or spills: a row's floats stay in registers."""

LAYER_BUDGET = Budget(4)
"""Limits of a layer of features that has no other."""

PACK_BUDGETS = dict.fromkeys(("pack_count", "pack_place", "pack_write"), _FULL)
PIPELINE_BUDGETS: dict[str, dict[str, Budget]] = {
    "avazu": PACK_BUDGETS | {"layer1": Budget(5), "layer2": _FULL},
    "criteo": PACK_BUDGETS | {"layer1": Budget(6), "layer2": Budget(6)},
    "open_bandit": PACK_BUDGETS | {"layer1": Budget(5)},
    "display_ads": PACK_BUDGETS
    | {
        "layer1": Budget(3, stack=512),  # the path of a JSON value
        "layer2": Budget(5, stack=144),
        "layer3": Budget(6),
        "layer4": Budget(5),
        "layer5": Budget(4, stack=1560),
        "layer6": _FULL,
    },
    "featurebox": PACK_BUDGETS
    | {
        "layer1": Budget(4, stack=560),
        **dict.fromkeys(("layer2", "layer3", "layer4"), Budget(5)),
        "layer5": Budget(6),
        "layer6": _FULL,
    },
}
"""Limits by folder of a pipeline. Local memory that is allowed here is what the operators take: it may only
become less."""

FUNCTION_SPILLS = {"edit_distance": 56, "lists_unique": 104}
"""Most bytes of spills of functions that are not inlined; 0 of all others."""


def ptxas_report(source: str) -> str:
    """Compile for sm_90, and return ptxas's account of each kernel. Needs CuPy, and no GPU."""
    from cupy.cuda import nvrtc

    program = nvrtc.createProgram(source, "kernel.cu", (), ())
    try:
        options = ["-arch=sm_90", *DEVICE_FLAGS, "--ptxas-options=-v", f"-I{KERNELS}"]
        nvrtc.compileProgram(program, options)
        return str(nvrtc.getProgramLog(program))
    finally:
        nvrtc.destroyProgram(program)


def usages(report: str) -> dict[str, Usage]:
    """Kernel → its resources, from ptxas's report. A kernel's stack has the functions that it calls."""
    found = {}
    for name in re.findall(r"Compiling entry function '(\w+)'", report):
        part = re.search(rf"Function properties for {name}\n(.*)\n.*Used (\d+) registers(.*)", report)
        assert part, f"ptxas says nothing of {name}"
        frame, stack, shared = (
            re.search(rf"(\d+) bytes {what}", text)
            for what, text in (
                ("stack frame", part[1]),
                ("cumulative stack size", part[3]),
                ("smem", part[3]),
            )
        )
        found[name] = Usage(
            registers=int(part[2]),
            stack=max(int(size[1]) if size else 0 for size in (frame, stack)),
            spilled=_spilled(part[1]),
            shared=int(shared[1]) if shared else 0,
        )
    return found


def over_budget(report: str, budgets: Mapping[str, Budget], otherwise: Budget | None = None) -> list[str]:
    """Kernels that exceed their limits, or have none, and functions that spill, as lines of text.

    Args:
        report: ptxas's report, for sm_90.
        budgets: kernel → limits.
        otherwise: limits of all other kernels.
    """
    wrong, found = [], usages(report)
    for name, usage in found.items():
        budget = budgets.get(name, otherwise)
        if budget is None or not budget.holds(usage):
            wrong.append(f"{name}: {usage.blocks} blocks, {usage}; allowed {budget}")
    for name, text in re.findall(r"Function properties for (\w+)\n(.*)", report):
        allowed = max((most for function, most in FUNCTION_SPILLS.items() if function in name), default=0)
        if name not in found and _spilled(text) > allowed:
            wrong.append(f"{name}: {_spilled(text)} bytes spilled by a function; allowed {allowed}")
    return wrong


def _spilled(text: str) -> int:
    """Bytes of spills, stores and loads."""
    return sum(map(int, re.findall(r"(\d+) bytes spill", text)))
