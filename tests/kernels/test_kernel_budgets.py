"""Limits of registers and local memory of the kernels, held without a GPU."""

from __future__ import annotations

import pytest

from tests.kernel_budgets import Budget, Usage, over_budget, ptxas_report, usages

SPILLING = """
extern "C" __global__ void __launch_bounds__(1024, 2) spills(float* x, const float* y) {
    float kept[64];
#pragma unroll
    for (int i = 0; i < 64; ++i) kept[i] = y[i * 64 + threadIdx.x];
    __syncthreads();
#pragma unroll
    for (int i = 0; i < 64; ++i) x[i * 64 + threadIdx.x] = kept[63 - i] * kept[i];
}
extern "C" __global__ void indexes(float* x, int n) {
    __shared__ float shared[64];
    float local[256];
#pragma unroll 1
    for (int i = 0; i < 256; ++i) local[(i * n) & 255] = x[i];
    shared[threadIdx.x] = local[n & 255];
    __syncthreads();
    x[n] = shared[n];
}
extern "C" __global__ void plain(float* x) { x[threadIdx.x] += 1; }
"""


def test_reads_what_ptxas_says() -> None:
    found = usages(ptxas_report(SPILLING))
    assert set(found) == {"spills", "indexes", "plain"}
    assert found["spills"].registers <= 32 and found["spills"].spilled > 0
    assert found["indexes"].stack == 1024 and found["indexes"].shared == 256
    plain = found["plain"]
    assert plain.registers < 32 and (plain.stack, plain.spilled, plain.shared) == (0, 0, 0)


def test_functions_that_spill_are_told() -> None:
    """A function that is not inlined has a stack of its own, and is listed after the kernels."""
    found = ptxas_report(SPILLING)
    functions = (
        "ptxas info    : Function properties for _Z1gPf\n    8 bytes stack frame, 4 bytes spill stores"
    )
    assert over_budget(found, {}, Budget(1, 1024, 1024)) == []
    (line,) = over_budget(f"{found}\n{functions}, 4 bytes spill loads\n", {}, Budget(1, 1024, 1024))
    assert line == "_Z1gPf: 8 bytes spilled by a function; allowed 0"


def test_kernels_over_their_budget_are_told() -> None:
    report = ptxas_report(SPILLING)
    wrong = over_budget(report, {"indexes": Budget(8, stack=64), "plain": Budget(8)}, Budget(8))
    assert [line.split(":")[0] for line in sorted(wrong)] == ["indexes", "spills"]
    assert over_budget(report, {}, Budget(8, stack=1 << 10, spilled=1 << 10)) == []
    (unknown,) = over_budget(report, {"spills": Budget(1, 1000, 1000), "indexes": Budget(1, 1024)})
    assert unknown.startswith("plain: 8 blocks") and unknown.endswith("allowed None")


@pytest.mark.parametrize(
    ("registers", "shared", "blocks"),
    [
        *((32, 0, 8), (33, 0, 6), (40, 4104, 6), (41, 0, 5), (64, 0, 4), (65, 0, 3), (128, 0, 2)),
        *((255, 0, 1), (16, 0, 8), (16, 100 << 10, 2)),
    ],
)
def test_blocks_of_a_multiprocessor(registers: int, shared: int, blocks: int) -> None:
    """The figures of CUDA's occupancy calculator for 256 threads a block."""
    assert Usage(registers, 0, 0, shared).blocks == blocks
