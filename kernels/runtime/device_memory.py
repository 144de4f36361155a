"""Working memory of an operation on a device, and the structs that its kernels are given.

`Plan` is a struct of 64-bit words. Its members are declared once, in Python; `plan_struct` writes the C++.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import Any

import numpy as np
import numpy.typing as npt

from livectr.kernels.runtime.columns import THREADS
from livectr.kernels.runtime.device import Buffer, Device

Array = npt.NDArray[Any]
GROWTH = 1.25
"""Memory that was too small becomes so much larger than what was asked of it."""


def plan_struct(members: Sequence[tuple[str, str]]) -> str:
    """`struct Plan` of (type, name) members of 8 bytes each."""
    body = "".join(f"    {ctype} {name};\n" for ctype, name in members)
    return f"struct Plan {{\n{body}}};\n"


class Workspace:
    """Memory by name that only grows; a device's queue of copies and launches.

    What a name holds is lost when it is asked for again. Not for several threads at once.
    """

    def __init__(self, device: Device, members: Sequence[tuple[str, str]]) -> None:
        self.device = device
        self._names = {name: at for at, (_, name) in enumerate(members)}
        self._plan = device.memory(8 * len(members))
        self._buffers: dict[str, Buffer] = {}
        self._hosts: dict[str, npt.NDArray[np.uint8]] = {}
        self._pending: list[Any] = []

    @property
    def nbytes(self) -> int:
        """Device memory held."""
        return self._plan.nbytes + sum(buffer.nbytes for buffer in self._buffers.values())

    def memory(self, name: str, nbytes: int) -> int:
        """Address of at least `nbytes` bytes."""
        if name not in self._buffers or self._buffers[name].nbytes < nbytes:
            self._buffers.pop(name, None)
            self._buffers[name] = self.device.memory(-(-int(nbytes * GROWTH) // 256) * 256 + 256)
        return self._buffers[name].address

    def upload(self, name: str, array: Array) -> int:
        """Address of a copy of `array`, queued, from memory that copies are fast from."""
        flat = np.ascontiguousarray(array).reshape(-1).view(np.uint8)
        if name not in self._hosts or self._hosts[name].nbytes < flat.nbytes:
            self._hosts[name] = self.device.staging(int(flat.nbytes * GROWTH))
        elif any(one is self._hosts[name] for one in self._pending):
            self.synchronize()  # the last copy from it may still run
        staged = self._hosts[name]
        staged[: flat.nbytes] = flat
        self._pending.append(staged)
        address = self.memory(name, flat.nbytes)
        if flat.nbytes:
            self.device.upload(address, staged[: flat.nbytes])
        return address

    def download(self, address: int, shape: tuple[int, ...], dtype: npt.DTypeLike) -> Array:
        """An array that is filled by the next `synchronize`."""
        array = np.empty(shape, dtype)
        if array.nbytes:
            self.device.download(array.reshape(-1).view(np.uint8), address)
        return array

    def launch(self, plan: Mapping[str, int], *kernels: tuple[str, int]) -> None:
        """Queue kernels over so many items each, a thread an item, with one plan. Members not named are 0."""
        words = np.zeros(len(self._names), np.uint64)
        for name, value in plan.items():
            words[self._names[name]] = value
        self._pending.append(words)
        self.device.upload(self._plan.address, words.view(np.uint8))
        for kernel, items in kernels:
            if items:
                self.device.launch(kernel, blocks_of(items), self._plan.address)

    def keep(self, owner: Any) -> None:
        """Keep something alive until the queue is empty."""
        self._pending.append(owner)

    def synchronize(self) -> None:
        """Wait for all that is queued."""
        self.device.synchronize()
        self._pending.clear()


def blocks_of(items: int) -> int:
    """Blocks of a kernel over `items` items."""
    return -(-items // THREADS)
