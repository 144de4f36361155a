"""One library serves every row layout, with the bits of the compile-time layouts that a GPU runs."""

import ctypes
import functools
from itertools import chain, pairwise, product
from typing import get_args

import numpy as np
import numpy.typing as npt
import pytest

from livectr.kernels.runtime.arrays import address
from livectr.kernels.runtime.compiler import compile_host
from livectr.kernels.table.field_tables import FieldTables
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
from livectr.kernels.table.table import DynamicTable, table_seed

KINDS: list[Optimiser] = [
    SGD(lr=0.1),
    AdaGrad(),
    RowAdaGrad(),
    Adam(lr=0.01),
    FTRL(l1=0.05, l2=0.1),
    Adaptive(SGD(lr=0.1), 0.5),
    Adaptive(AdaGrad(), 0.2),
    Adaptive(RowAdaGrad(), 0.2),
    Adaptive(Adam(lr=0.01), 0.1),
]
DIMS = [1, 2, 3, 4, 7, 8, 9, 11, 12, 15, 16, 19, 24, 31, 32, 63, 64, 100, 300]
"""Dims of segments, with and without loops of their own in row/width.hpp."""
INCLUDES = '#include "row/optimisers.cuh"\n#include "row/row_values.cuh"\n'
CALLS = """
extern "C" void begin_{i}(uint64_t stream, const float* h, float* row) {{
    Layout::values(row, stream, h);
    Layout::state(row, h);
}}
extern "C" void update_{i}(uint64_t stream, const float* gradient, const float* h, float* row) {{
    Layout::update(row, gradient, h);
    if constexpr (sizeof(Layout::Value) == 2) {{
        Layout::Value stored[Layout::D];
        write_updated(Layout::D, stored, row, row[Layout::STRIDE - 1], stream);
        read_values(Layout::D, stored, row);
    }}
}}
extern "C" uint64_t stream_{i}(uint64_t seed, int64_t key) {{ return initial_stream(seed, key); }}
"""


def every_layout() -> list[RowLayout]:
    """Every optimiser at a dim with loops of its own and at one without, and every dim, of each type."""
    pairs = chain(product(KINDS, (16, 5)), ((KINDS[i % len(KINDS)], dim) for i, dim in enumerate(DIMS)))
    vectors = [Segment("v", dim, kind, 0.1) for kind, dim in pairs]
    weights = [Segment("w", 1, KINDS[(i + 4) % len(KINDS)], 0.3 * (i % 2)) for i in range(len(vectors))]
    last = Segment("c", 3, SGD(), 0.2, place=500)
    rows = [(w, v, last)[: 2 + (i % 3 == 0)] for i, (w, v) in enumerate(zip(weights, vectors, strict=True))]
    alone = [(Segment("v", dim, AdaGrad(), 0.1),) for dim in DIMS]
    return [RowLayout(row, values) for values in get_args(Values) for row in (*rows, *alone)]


LAYOUTS = every_layout()


@functools.cache
def constants() -> ctypes.CDLL:
    """The functions of all layouts with compile-time dims and optimisers: RowLayout.source."""
    spaces = (
        f"namespace layout_{i} {{\n{layout.source()}{CALLS.format(i=i)}}}\n"
        for i, layout in enumerate(LAYOUTS)
    )
    library = compile_host(INCLUDES + "".join(spaces), name="layouts")
    for i in range(len(LAYOUTS)):
        stream = getattr(library, f"stream_{i}")
        stream.argtypes, stream.restype = (ctypes.c_uint64, ctypes.c_int64), ctypes.c_uint64
        getattr(library, f"begin_{i}").argtypes = (ctypes.c_uint64, *[ctypes.c_void_p] * 2)
        getattr(library, f"update_{i}").argtypes = (ctypes.c_uint64, *[ctypes.c_void_p] * 3)
    return library


@pytest.mark.parametrize("values", get_args(Values))
def test_rows_have_the_bits_of_compile_time_layouts(values: Values) -> None:
    rng, keys = np.random.default_rng(0), np.arange(21) * 7919 - 50  # two blocks of rows and a part of one
    for i, layout in enumerate(LAYOUTS):
        if layout.values != values:
            continue
        begin, update, stream_of = (getattr(constants(), f"{n}_{i}") for n in ("begin", "update", "stream"))
        table, seed = DynamicTable(layout, name="t", seed=3), table_seed("t", 3)
        streams = [stream_of(seed, key) for key in keys.tolist()]
        rows, hyper = np.zeros((len(keys), layout.stride), np.float32), table.hyper()
        for stream, row in zip(streams, rows, strict=True):
            begin(stream, address(hyper), address(row))
        assert table.lookup(keys).tobytes() == rows[:, : layout.dim].tobytes(), layout
        table.find_or_insert(keys)
        assert table.export()[1].tobytes() == rows.tobytes(), layout
        for step in range(4):
            if step == 2:
                table.set_rate(0.5)
                hyper = table.hyper()
            grads = rng.normal(size=(len(keys), layout.dim)).astype(np.float32)
            for stream, row, grad in zip(streams, rows, grads, strict=True):
                update(stream, address(grad), address(hyper), address(row))
            table.update(keys, grads)
            assert table.export()[1].tobytes() == rows.tobytes(), (layout, step)
        assert table.lookup(keys).tobytes() == rows[:, : layout.dim].tobytes(), layout


@pytest.mark.parametrize("values", get_args(Values))
def test_sums_have_the_order_of_the_batch_in_every_width(values: Values) -> None:
    """Pooled values and summed gradients, of cells with no, one and several keys."""
    rng = np.random.default_rng(1)
    sizes = np.array([0, 1, 3, 1, 5, 0, 2, 17])
    offsets = np.concatenate([[0], np.cumsum(sizes)]).astype(np.int32)
    keys = rng.integers(0, 9, sizes.sum())
    for dim in {*DIMS, *(dim + 1 for dim in DIMS), 1500}:
        layout = RowLayout((Segment("v", dim, SGD(1.0), 0.5),), values)
        table = DynamicTable(layout, name="t", seed=2)
        front = FieldTables({"t": table}, [("f", "t")])
        (absent,) = front.infer(offsets, keys, len(sizes))
        (first,) = front.forward(offsets, keys, len(sizes))
        before = table.lookup(np.arange(9))
        pooled = np.stack([in_order(before[keys[a:b]]) for a, b in pairwise(offsets)])
        for got in (absent, first, *front.infer(offsets, keys, len(sizes))):
            assert got[:, 0].tobytes() == pooled.tobytes(), dim
        (zeros,) = front.infer(offsets, keys + 9, len(sizes), missing="zeros")
        assert not zeros.any()
        grad = rng.normal(size=(len(sizes), 1, dim)).astype(np.float32)
        if values != "fp32":
            grad = np.round(grad)  # and values on their grid: nothing is left to rounding
            table.assign(np.arange(9), np.zeros((9, layout.stride), np.float32))
            before = table.lookup(np.arange(9))
        front.backward(grad)
        cells = np.repeat(np.arange(len(sizes)), sizes)
        after = table.lookup(np.arange(9))
        for key in range(9):
            of_key = grad[cells[keys == key], 0]
            wanted = before[key] - np.float32(1.0) * in_order(of_key) if len(of_key) else before[key]
            assert after[key].tobytes() == wanted.tobytes(), (dim, key)


def in_order(vectors: npt.NDArray[np.float32]) -> npt.NDArray[np.float32]:
    """Sum float32[D] of float32[n, D], vector by vector."""
    total = vectors[0].copy() if len(vectors) else np.zeros(vectors.shape[1], np.float32)
    for vector in vectors[1:]:
        total += vector
    return total


def test_layouts_are_told_apart() -> None:
    """Tables of a front have one layout: equal but for hyper-parameters."""
    assert len({layout.description for layout in LAYOUTS}) == len(
        {(*x.describe(), *places(x)) for x in LAYOUTS}
    )
    tables = {
        name: DynamicTable(RowLayout((Segment("v", 4, kind),)), name=name, seed=1)
        for name, kind in (("a", AdaGrad(0.1)), ("b", AdaGrad(0.2)), ("c", RowAdaGrad(0.1)))
    }
    FieldTables(tables, [("f", "a"), ("g", "b")])
    with pytest.raises(ValueError, match="must have one row layout"):
        FieldTables(tables, [("f", "a"), ("g", "c")])


def places(layout: RowLayout) -> list[int | None]:
    return [segment.place for segment in layout.segments]
