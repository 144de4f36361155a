"""The table's device functions compile for a GPU, from the sources that the host runs."""

from kernels.compiler import compile_cubin
from kernels.layout import FTRL, SGD, AdaGrad, Adam, RowAdaGrad, RowLayout, Segment

KERNELS = """
#include "table.cuh"
extern "C" __global__ void find(IndexView index, const int64_t* keys, int n, uint32_t* rows) {
    const int i = blockIdx.x * blockDim.x + threadIdx.x;
    if (i < n) rows[i] = find_row(index, keys[i]);
}
extern "C" __global__ void begin(RowsView view, const int64_t* keys, int n, uint64_t seed, const float* h) {
    const int i = blockIdx.x * blockDim.x + threadIdx.x;
    if (i >= n) return;
    row_header(view, i)->key = keys[i];
    Layout::values(row_floats(view, i), initial_stream(seed, keys[i]), h);
    Layout::state(row_floats(view, i), h);
}
extern "C" __global__ void update(RowsView view, const uint32_t* rows, int n, float* g, float* h) {
    const int i = blockIdx.x * blockDim.x + threadIdx.x;
    if (i < n) Layout::update(row_floats(view, rows[i]), g + i * Layout::D, h);
}
"""


def test_table_compiles_for_a_gpu() -> None:
    optimisers = (FTRL(), AdaGrad(), RowAdaGrad(), Adam(), SGD())
    segments = (Segment(type(o).__name__, dim, o) for dim, o in enumerate(optimisers, 1))
    assert compile_cubin(RowLayout(tuple(segments)).source() + KERNELS)[:4] == b"\x7fELF"
