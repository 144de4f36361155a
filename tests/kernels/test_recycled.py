"""Arrays that are used again, and never while somebody still looks at them."""

from __future__ import annotations

import gc
import threading

import numpy as np
import torch

from livectr.kernels.runtime.recycled import Recycled


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


def test_references_are_nobodys_business() -> None:
    """Interpreters differ in how many references a name or an argument is: Python 3.14 borrows some."""
    arrays = Recycled()
    array = arrays.empty(1000)
    address, names = array.ctypes.data, [array] * 5
    seen = {id(array): array}
    del array, names[1:]
    assert arrays.empty(1000).ctypes.data != address
    del names, seen
    assert arrays.empty(1000).ctypes.data == address


def test_memory_comes_back_from_cycles_and_other_threads() -> None:
    arrays = Recycled()
    cycle: list[object] = [arrays.empty(1000)]
    cycle.append(cycle)
    address = np.asarray(cycle[0]).ctypes.data
    assert arrays.empty(1000).ctypes.data != address
    del cycle
    gc.collect()
    lent = [arrays.empty(1000) for _ in range(2)]
    assert address in [array.ctypes.data for array in lent]
    thread = threading.Thread(target=lent.clear)
    thread.start()
    thread.join()
    assert address in [array.ctypes.data for array in [arrays.empty(1000) for _ in range(2)]]


def test_threads_that_take_and_leave_never_share_memory() -> None:
    arrays, wrong = Recycled(keep=3), []

    def work(number: int) -> None:
        for size in range(200, 1200):
            array = arrays.empty(size)
            array[:] = number
            view = array[size // 2 :]
            del array
            if not (view == number).all():
                wrong.append(number)

    threads = [threading.Thread(target=work, args=(number,)) for number in range(8)]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join()
    assert not wrong


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
    base = arrays.empty(10).base
    assert base is not None and base.nbytes < 100_000
