"""Emulated device that runs nothing before the host waits, as late as a GPU may run its queue."""

from __future__ import annotations

import math
import threading
from collections.abc import Callable, Sequence
from functools import partial
from typing import Any

import numpy as np
import numpy.typing as npt

from livectr.kernels.runtime.device import Buffer, Bytes, Mark
from tests.kernels.pinned_device import PinnedDevice


class QueuedArray:
    """Array of a queued device; `get` waits, without being counted.

    Args:
        values: the device's memory.
        run: runs the queue.
    """

    def __init__(self, values: npt.NDArray[Any], run: Callable[[], None]) -> None:
        self.shape, self.dtype = values.shape, values.dtype
        self._values, self._run = values, run

    def get(self) -> npt.NDArray[Any]:
        self._run()
        return self._values.copy()


class QueuedDevice(PinnedDevice):
    """Device whose copies and kernels run when a thread waits for them."""

    def __init__(self, source: str, kernels: Sequence[str]) -> None:
        super().__init__(source, kernels)
        self._kept: list[Buffer] = []
        self._queue: list[Callable[[], None]] = []
        self._done = 0
        self._turn = threading.Lock()

    def memory(self, nbytes: int) -> Buffer:
        self._kept.append(super().memory(nbytes))  # a GPU's pool takes memory back in the queue's order
        return self._kept[-1]

    def run(self, until: float = math.inf) -> None:
        """Run the queue in order, up to a number of operations since the beginning."""
        with self._turn:
            while self._queue and self._done < until:
                self._queue[0]()
                del self._queue[0]
                self._done += 1

    def upload(self, address: int, source: Bytes) -> None:
        self._queue.append(partial(super().upload, address, source))

    def download(self, target: Bytes, address: int) -> None:
        self._queue.append(partial(super().download, target, address))

    def clear(self, address: int, nbytes: int) -> None:
        self._queue.append(partial(super().clear, address, nbytes))

    def copy(self, target: int, source: int, nbytes: int) -> None:
        self._queue.append(partial(super().copy, target, source, nbytes))

    def sort(self, address: int, count: int) -> None:
        self._queue.append(partial(super().sort, address, count))

    def launch(self, kernel: str, blocks: int, plan: int) -> None:
        self._queue.append(partial(super().launch, kernel, blocks, plan))

    def array(self, buffer: Buffer, shape: tuple[int, ...], dtype: npt.DTypeLike, at: int = 0) -> Any:
        return QueuedArray(super().array(buffer, shape, dtype, at), self.run)

    def borrow(self, array: Any) -> tuple[int, Any]:
        return super().borrow(np.array(array))  # a copy of the caller's, which may change later

    def mark(self) -> Mark:
        """Mark whose wait, in any thread, runs the queue up to it."""
        with self._turn:
            until = self._done + len(self._queue)
        return Mark(self, lambda: self.run(until))

    def synchronize(self) -> None:
        super().synchronize()
        self.run()
