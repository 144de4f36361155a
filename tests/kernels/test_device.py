"""The table's device functions compile for a GPU, from the sources that the host runs."""

from typing import get_args

import pytest

from livectr.kernels.runtime.compiler import compile_cubin
from livectr.kernels.table.layout import FTRL, SGD, AdaGrad, Adam, RowAdaGrad, RowLayout, Segment, Values

KERNELS = """
#include "table/table.cuh"
extern "C" __global__ void find(IndexView index, const int64_t* keys, int n, uint32_t* rows) {
    const int i = blockIdx.x * blockDim.x + threadIdx.x;
    if (i < n) rows[i] = find_row(index, keys[i]);
}
extern "C" __global__ void begin(RowsView view, const int64_t* keys, int n, uint64_t seed, const float* h) {
    const int i = blockIdx.x * blockDim.x + threadIdx.x;
    if (i >= n) return;
    row_header(view, i)->key = keys[i];
    begin_row(view, i, initial_stream(seed, keys[i]), h);
}
extern "C" __global__ void update(RowsView view, uint32_t* rows, int n, float* g, uint64_t seed, float* h) {
    const int i = blockIdx.x * blockDim.x + threadIdx.x;
    if (i < n) update_row(view, rows[i], g + i * Layout::D, seed, h);
}
"""


@pytest.mark.parametrize("values", get_args(Values))
def test_table_compiles_for_a_gpu(values: Values) -> None:
    optimisers = (FTRL(), AdaGrad(), RowAdaGrad(), Adam(), SGD())
    segments = (Segment(type(o).__name__, dim, o) for dim, o in enumerate(optimisers, 1))
    assert compile_cubin(RowLayout(tuple(segments), values).source() + KERNELS)[:4] == b"\x7fELF"
