"""The table's device functions compile for a GPU, from the sources that the host runs."""

from typing import get_args

import pytest

from livectr.kernels.gpu_table.device_store import table_source
from livectr.kernels.runtime.compiler import compile_cubin
from livectr.kernels.table.layout import (
    FTRL,
    SGD,
    AdaGrad,
    Adam,
    Adaptive,
    Optimiser,
    RowAdaGrad,
    RowLayout,
    Segment,
    Values,
)
from tests.tiers import few

FIND = """
#include "runtime/index.cuh"
extern "C" __global__ void find(IndexView index, const int64_t* keys, int n, uint32_t* rows) {
    const int i = blockIdx.x * blockDim.x + threadIdx.x;
    if (i < n) rows[i] = find_row(index, keys[i]);
}
"""


@pytest.mark.parametrize("values", few(get_args(Values), "bf16"))
def test_table_compiles_for_a_gpu(values: Values) -> None:
    optimisers: list[Optimiser] = [FTRL(), AdaGrad(), RowAdaGrad(), Adam(), SGD()]
    optimisers += [Adaptive(base, 0.1) for base in optimisers[1:]]
    segments = (Segment(str(dim), dim, optimiser) for dim, optimiser in enumerate(optimisers, 1))
    assert compile_cubin(table_source(RowLayout(tuple(segments), values)))[:4] == b"\x7fELF"


def test_index_compiles_for_a_gpu() -> None:
    assert compile_cubin(FIND)[:4] == b"\x7fELF"
