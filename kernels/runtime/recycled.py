"""Pool of large arrays.

A batch's keys are megabytes. Fresh memory for each batch comes from the kernel page by page, zeroed; reused
memory costs nothing.

An array of the pool is a view of a lease. Views, slices and tensors of it hold the lease as well, so memory
returns to the pool when the last of them is freed, without reference counts of our own.
"""

from __future__ import annotations

import threading
from collections import deque
from collections.abc import Callable
from typing import Any

import numpy as np
import numpy.typing as npt

I64 = npt.NDArray[np.int64]


def _pageable(count: int) -> I64:
    return np.empty(count, np.int64)


class _Memory:
    """Memory block, and its description for NumPy."""

    __slots__ = ("array", "interface", "size")

    def __init__(self, array: I64) -> None:
        self.array = array
        self.interface: dict[str, Any] = array.__array_interface__
        self.size = len(array)


class _Lease:
    """Base object of an array over lent memory, and of its views; its end returns the memory."""

    __slots__ = ("__array_interface__", "free", "memory")

    def __init__(self, memory: _Memory, free: deque[_Memory]) -> None:
        self.memory, self.free = memory, free
        self.__array_interface__ = memory.interface

    def __del__(self) -> None:
        # Runs where the last view is freed, even in a garbage collection inside `Recycled`: it takes no lock.
        self.free.append(self.memory)


class Recycled:
    """Pool of int64 arrays; memory is lent again when its array and every view of it are freed. Thread-safe.

    Args:
        keep: maximum of free memory blocks.
        allocate: makes a memory block int64[count], not cleared.
    """

    def __init__(self, keep: int = 4, allocate: Callable[[int], I64] = _pageable) -> None:
        self._free: deque[_Memory] = deque(maxlen=keep)
        self._lock = threading.Lock()
        self._allocate = allocate

    def empty(self, count: int) -> I64:
        """Lends an array int64[count], not cleared."""
        return np.asarray(_Lease(self._take(count), self._free))[:count]

    def _take(self, count: int) -> _Memory:
        with self._lock:
            for _ in range(len(self._free)):
                memory = self._free.pop()
                if count <= memory.size <= 4 * count + 4096:
                    return memory
                self._free.appendleft(memory)
        return _Memory(self._allocate(count + count // 8))
