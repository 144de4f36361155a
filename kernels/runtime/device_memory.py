"""Working memory of operations on a device, and the argument struct of their kernels.

`Plan` is a struct of 64-bit words. Its members are declared once, in Python; `plan_struct` writes the C++.
"""

from __future__ import annotations

import math
from collections import deque
from collections.abc import Mapping, Sequence
from typing import Any

import numpy as np
import numpy.typing as npt

from livectr.kernels.runtime.columns import THREADS
from livectr.kernels.runtime.device import Buffer, Device, Mark

Array = npt.NDArray[Any]
GROWTH = 1.25
"""Factor by which memory that was too small exceeds the requested size."""
LEAST_PINNED_BYTES = 1 << 16
PINNED_BYTES = 1 << 24
"""Largest download into pinned memory, which stays with the process. A larger one, of an export, has the host
wait for the queue."""


def plan_struct(members: Sequence[tuple[str, str]]) -> str:
    """C++ text of `struct Plan`.

    Args:
        members: (type, name), 8 bytes each.
    """
    body = "".join(f"    {ctype} {name};\n" for ctype, name in members)
    return f"struct Plan {{\n{body}}};\n"


class PinnedArena:
    """Pinned host memory for queued copies, from two blocks in turn by a bump pointer.

    What was taken between two turns is valid until the turn after the next. The blocks grow to the bytes of
    such an interval, so that a steady sequence of calls allocates nothing.

    Args:
        device: allocates the blocks.
    """

    def __init__(self, device: Device) -> None:
        self._device = device
        self._blocks: list[npt.NDArray[np.uint8]] = [np.empty(0, np.uint8), np.empty(0, np.uint8)]
        self._outgrown: tuple[list[npt.NDArray[np.uint8]], ...] = [], []
        self._turn = self._at = self._taken = 0

    def take(self, nbytes: int) -> npt.NDArray[np.uint8]:
        """Takes uint8[nbytes], aligned to 64 bytes from the begin of a block."""
        size = -(-nbytes // 64) * 64
        self._taken += size
        if self._at + size > self._blocks[self._turn].nbytes:
            self._outgrown[self._turn].append(self._blocks[self._turn])  # queued copies use it
            self._blocks[self._turn] = self._device.staging(int(self._taken * GROWTH) + LEAST_PINNED_BYTES)
            self._at = 0
        begin, self._at = self._at, self._at + size
        return self._blocks[self._turn][begin : begin + nbytes]

    def turn(self) -> None:
        """Goes to the other block, whose copies must be done."""
        self._turn, self._at, self._taken = 1 - self._turn, 0, 0
        self._outgrown[self._turn].clear()


class Results:
    """Device memory of arrays that leave, used again once none of them is left.

    Args:
        device: writes the memory, in its queue's order.
    """

    def __init__(self, device: Device) -> None:
        self._device = device
        self._free: deque[Buffer] = deque()

    def take(self, nbytes: int) -> Buffer:
        """Lends at least `nbytes` bytes."""
        for _ in range(len(self._free)):
            buffer = self._free.popleft()
            if buffer.nbytes >= nbytes:
                return self._device.lend(buffer, self._free.append)
        return self._device.lend(self._device.memory(_larger(nbytes)), self._free.append)


class Workspace:
    """Named device memory that only grows, and the device's queue of copies and launches.

    A name's content is lost when it is requested again. Not thread-safe.

    The queue is cut into intervals, each of which ends with a wait for all (`synchronize`) or with a mark
    (`mark`), for which another thread may wait. Host memory of an interval is used again in the interval
    after the next.

    Args:
        device: the device.
        members: members of `struct Plan`, as of `plan_struct`.

    Attributes:
        results: memory of arrays that leave.
    """

    def __init__(self, device: Device, members: Sequence[tuple[str, str]]) -> None:
        self.device = device
        self._names = {name: at for at, (_, name) in enumerate(members)}
        self._plan = device.memory(8 * len(members))
        self._buffers: dict[str, Buffer] = {}
        self.results = Results(device)
        self._pinned = PinnedArena(device)
        self._pending: list[Any] = []
        self._before: list[Any] = []  # of the interval that `_mark` ends
        self._mark: Mark | None = None

    def memory(self, name: str, nbytes: int) -> int:
        """Address of at least `nbytes` bytes."""
        if name not in self._buffers or self._buffers[name].nbytes < nbytes:
            self._buffers.pop(name, None)
            self._buffers[name] = self.device.memory(_larger(nbytes))
        return self._buffers[name].address

    def upload(self, name: str, array: Array) -> int:
        """Address of a copy of `array`, queued, by way of pinned memory."""
        address = self.memory(name, array.nbytes)
        self.send(address, array)
        return address

    def download(self, address: int, shape: tuple[int, ...], dtype: npt.DTypeLike) -> Array:
        """Queues a copy from the device, valid once its interval is done and until the next interval ends."""
        nbytes = math.prod(shape) * np.dtype(dtype).itemsize
        host = self._pinned.take(nbytes) if nbytes <= PINNED_BYTES else np.empty(nbytes, np.uint8)
        if nbytes:
            self._pending.append(host)
            self.device.download(host, address)
        array: Array = host.view(dtype).reshape(shape)
        return array

    def fetch(self, *parts: tuple[int, tuple[int, ...], npt.DTypeLike]) -> list[Array]:
        """Copies of (address, shape, type) of the device, which are the caller's. Waits."""
        arrays = [self.download(*part) for part in parts]
        self.synchronize()
        return [array.copy() if array.nbytes <= PINNED_BYTES else array for array in arrays]

    def send(self, address: int, array: Array) -> None:
        """Queues a copy of an array to an address, by way of pinned memory."""
        host = self._pinned.take(array.nbytes)
        host[:] = np.ascontiguousarray(array).reshape(-1).view(np.uint8)
        if array.nbytes:
            self.device.upload(address, host)

    def launch(self, plan: Mapping[str, int], *kernels: tuple[str, int]) -> None:
        """Queues kernels with a common plan.

        Args:
            plan: member → value; members not named are 0.
            kernels: (kernel, items), a thread for each item.
        """
        words = np.zeros(len(self._names), np.uint64)
        for name, value in plan.items():
            words[self._names[name]] = value
        self.send(self._plan.address, words)
        for kernel, items in kernels:
            if items:
                self.device.launch(kernel, blocks_of(items), self._plan.address)

    def keep(self, owner: Any) -> None:
        """Keeps an object alive until its interval is known to be done."""
        self._pending.append(owner)

    def mark(self) -> Mark:
        """Ends an interval. Waits for the mark before, unless that is known to have passed."""
        self.passed()
        self._before, self._pending = self._pending, []
        self._mark = self.device.mark()
        self._pinned.turn()
        return self._mark

    def passed(self) -> None:
        """Frees what the interval of the last mark kept. Waits for it, unless it is known to have passed."""
        if self._mark is not None:
            self._mark.wait()
            self._mark = None
        self._before.clear()

    def synchronize(self) -> None:
        """Waits for everything that is queued."""
        self.device.synchronize()
        self._mark = None
        self._before.clear()
        self._pending.clear()
        self._pinned.turn()


def _larger(nbytes: int) -> int:
    """Size of new memory for `nbytes` bytes, with room to grow."""
    return -(-int(nbytes * GROWTH) // 256) * 256 + 256


def blocks_of(items: int) -> int:
    """Thread blocks of a kernel over `items` items."""
    return -(-items // THREADS)
