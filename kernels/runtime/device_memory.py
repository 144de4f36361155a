"""Working memory of operations on a device, and the argument struct of their kernels.

`Plan` is a struct of 64-bit words. Its members are declared once, in Python; `plan_struct` writes the C++.
"""

from __future__ import annotations

import math
from collections.abc import Mapping, Sequence
from typing import Any

import numpy as np
import numpy.typing as npt

from livectr.kernels.runtime.columns import THREADS
from livectr.kernels.runtime.device import Buffer, Device

Array = npt.NDArray[Any]
GROWTH = 1.25
"""Factor by which memory that was too small exceeds the requested size."""
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


class Workspace:
    """Named device memory that only grows, and the device's queue of copies and launches.

    A name's content is lost when it is requested again. Not thread-safe.

    Args:
        device: the device.
        members: members of `struct Plan`, as of `plan_struct`.
    """

    def __init__(self, device: Device, members: Sequence[tuple[str, str]]) -> None:
        self.device = device
        self._names = {name: at for at, (_, name) in enumerate(members)}
        self._plan = device.memory(8 * len(members))
        self._buffers: dict[str, Buffer] = {}
        self._hosts: dict[str, npt.NDArray[np.uint8]] = {}
        self._pending: list[Any] = []

    def memory(self, name: str, nbytes: int) -> int:
        """Address of at least `nbytes` bytes."""
        if name not in self._buffers or self._buffers[name].nbytes < nbytes:
            self._buffers.pop(name, None)
            self._buffers[name] = self.device.memory(-(-int(nbytes * GROWTH) // 256) * 256 + 256)
        return self._buffers[name].address

    def upload(self, name: str, array: Array) -> int:
        """Address of a copy of `array`, queued, by way of pinned memory."""
        flat = np.ascontiguousarray(array).reshape(-1).view(np.uint8)
        if name not in self._hosts or self._hosts[name].nbytes < flat.nbytes:
            self._hosts[name] = self.device.staging(int(flat.nbytes * GROWTH))
        elif any(owner is self._hosts[name] for owner in self._pending):
            self.synchronize()  # an earlier copy from it may still run
        staged = self._hosts[name]
        staged[: flat.nbytes] = flat
        self._pending.append(staged)
        address = self.memory(name, flat.nbytes)
        if flat.nbytes:
            self.device.upload(address, staged[: flat.nbytes])
        return address

    def download(self, address: int, shape: tuple[int, ...], dtype: npt.DTypeLike) -> Array:
        """Queues a copy from the device; the next `synchronize` fills the array."""
        nbytes = math.prod(shape) * np.dtype(dtype).itemsize
        host = self.device.staging(nbytes) if nbytes <= PINNED_BYTES else np.empty(nbytes, np.uint8)
        if nbytes:
            self._pending.append(host)
            self.device.download(host, address)
        array: Array = host.view(dtype).reshape(shape)
        return array

    def send(self, address: int, array: Array) -> None:
        """Queues a copy of a small array to an address, by way of pinned memory."""
        host = self.device.staging(array.nbytes)
        host[:] = np.ascontiguousarray(array).reshape(-1).view(np.uint8)
        self._pending.append(host)
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
        """Keeps an object alive until the queue is empty."""
        self._pending.append(owner)

    def synchronize(self) -> None:
        """Waits for everything that is queued."""
        self.device.synchronize()
        self._pending.clear()


def blocks_of(items: int) -> int:
    """Thread blocks of a kernel over `items` items."""
    return -(-items // THREADS)
