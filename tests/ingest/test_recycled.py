"""Arrays that are used again, and never while somebody still looks at them."""

from __future__ import annotations

import torch

from ingest.recycled import Recycled


def test_an_array_is_used_again_when_nobody_looks_at_it() -> None:
    arrays = Recycled()
    first = arrays.empty(1000)
    first[:] = 7
    address = first.ctypes.data
    view, tensor = first[10:20].view("u4"), torch.from_numpy(first[:3])
    del first
    assert arrays.empty(1000).ctypes.data != address, "two views of it are alive"
    del view
    assert arrays.empty(1000).ctypes.data != address, "a tensor looks at it"
    assert tensor.tolist() == [7, 7, 7]
    del tensor
    assert any(array.ctypes.data == address for array in [arrays.empty(900) for _ in range(2)])


def test_two_that_are_alive_never_share_memory() -> None:
    arrays = Recycled(keep=2)
    alive = [arrays.empty(500) for _ in range(10)]
    for number, array in enumerate(alive):
        array[:] = number
    assert [int(array[0]) for array in alive] == list(range(10))
    assert all((array == number).all() for number, array in enumerate(alive))


def test_a_small_one_does_not_hold_a_large_one() -> None:
    arrays = Recycled()
    arrays.empty(1_000_000)
    assert arrays.empty(10).base.nbytes < 100_000
