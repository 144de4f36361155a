"""The in-kernel memory pool (FeatureBox §5, Algorithm 1), its blocks run in parallel on the host."""

from __future__ import annotations

import ctypes

import numpy as np
import numpy.typing as npt
import pytest
from hypothesis import given
from hypothesis import strategies as st

from livectr.kernels.runtime.compiler import compile_cubin, compile_host
from tests.tiers import examples

ALIGNMENT, THREADS = 128, 256
DEVICE = """
#include "runtime/threadblock.cuh"
// Each row asks for size[row] bytes; offset[row] says where it got them, -1 where the pool was too small.
static __device__ inline void allocate(const ThreadBlock& block, const Pool& pool, const int64_t* size,
                                       int64_t* offset) {
    block.allocate(pool, [&](int64_t row) { return size[row]; }, [&](int64_t row, uint8_t* memory) {
        offset[row] = memory == nullptr ? -1 : memory - pool.base;
        if (memory != nullptr) memset(memory, int(row & 0xFF), size_t(size[row]));
    });
}
"""
HOST = (
    DEVICE
    + """
#include "runtime/threads.hpp"
extern "C" void allocate_all(uint8_t* base, int64_t capacity, unsigned long long* head, const int64_t* size,
                             int64_t rows, int64_t* offset) {
    const Pool pool{base, capacity, head};
    livectr::parallel_for((rows + THREADS - 1) / THREADS, [&](int64_t index) {
        ThreadBlock::Shared shared;
        allocate(ThreadBlock{shared, index * THREADS, rows, nullptr}, pool, size, offset);
    });
}
"""
)
KERNEL = (
    DEVICE
    + """
extern "C" __global__ void allocate_all(Pool pool, const int64_t* size, int64_t rows, int64_t* offset) {
    __shared__ ThreadBlock::Shared shared;
    allocate(ThreadBlock{shared, int64_t(blockIdx.x) * THREADS, rows, nullptr}, pool, size, offset);
}
"""
)
I64 = npt.NDArray[np.int64]


def allocate(sizes: I64, capacity: int) -> tuple[I64, int, npt.NDArray[np.uint8]]:
    """(offset of each row, the head afterwards, the pool's bytes)."""
    library = compile_host(HOST, name="pool")
    library.allocate_all.argtypes = [ctypes.c_void_p, ctypes.c_int64, *[ctypes.c_void_p] * 2, ctypes.c_int64]
    library.allocate_all.argtypes += [ctypes.c_void_p]
    memory = np.zeros(capacity + 2 * ALIGNMENT, np.uint8)
    begin = -memory.ctypes.data % ALIGNMENT
    head, offsets = np.zeros(1, np.int64), np.empty(len(sizes), np.int64)
    library.allocate_all(
        memory.ctypes.data + begin,
        capacity,
        head.ctypes.data,
        sizes.ctypes.data,
        len(sizes),
        offsets.ctypes.data,
    )
    return offsets, int(head[0]), memory[begin : begin + capacity]


sizes_of_rows = st.integers(1, 3 * THREADS + 1).flatmap(
    lambda rows: st.lists(st.integers(0, 70), min_size=rows, max_size=rows)
)


@given(sizes_of_rows)
@examples(60)
def test_rows_get_memory_of_their_own(sizes: list[int]) -> None:
    size = np.array(sizes, np.int64)
    offsets, head, memory = allocate(size, 1 << 18)
    rounded = -(-size // 8) * 8
    for first in range(0, len(size), THREADS):
        block, own = offsets[first : first + THREADS], rounded[first : first + THREADS]
        # Within a block: the address that the block got, plus the exclusive prefix sum.
        np.testing.assert_array_equal(block, block[0] + np.cumsum(own) - own)
        assert block[0] % ALIGNMENT == 0
    blocks = [int(rounded[first : first + THREADS].sum()) for first in range(0, len(size), THREADS)]
    assert head == sum(-(-total // ALIGNMENT) * ALIGNMENT for total in blocks)
    for row, (offset, count) in enumerate(zip(offsets.tolist(), sizes, strict=True)):
        assert (memory[offset : offset + count] == row & 0xFF).all(), "somebody else wrote here"


def test_a_full_pool_gives_nothing_and_says_what_it_lacked() -> None:
    size = np.full(4 * THREADS, 16, np.int64)
    _, needed, _ = allocate(size, 1 << 20)
    for capacity in (0, ALIGNMENT, needed // 2, needed - ALIGNMENT):
        offsets, head, _ = allocate(size, capacity)
        assert head == needed, "the head tells how large the pool must be"
        for first in range(0, len(size), THREADS):
            block = offsets[first : first + THREADS]
            assert (block == -1).all() or (block >= 0).all(), "a block gets all of its memory or none"
        assert np.count_nonzero(offsets[::THREADS] >= 0) == capacity // (needed // 4)
    offsets, _, _ = allocate(size, needed)
    assert (offsets >= 0).all()


@pytest.mark.parametrize("arch", ["sm_75", "sm_80", "sm_90"])
def test_the_kernel_compiles_for_a_gpu(arch: str) -> None:
    assert compile_cubin(KERNEL, arch=arch).startswith(b"\x7fELF")
