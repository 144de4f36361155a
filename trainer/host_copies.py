"""Queued copies between the host and the device of the networks, so that the host waits once a step."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import torch
from numpy.typing import NDArray
from torch import Tensor


def to_device(array: NDArray[Any], device: torch.device) -> Tensor:
    """Tensor of an array on a device; the copy goes by way of pinned memory, and nothing waits for it."""
    tensor = torch.from_numpy(array)
    return tensor if device.type == "cpu" else tensor.pin_memory().to(device, non_blocking=True)


class HostCopies:
    """Copies to the host. Reading the first waits for all that are queued.

    Args:
        device: of the tensors.

    Attributes:
        device: of the tensors
        waits: number of waits for copies. On a CPU, where tensors are read in place, they count as well.
    """

    def __init__(self, device: torch.device) -> None:
        self.device, self.waits = device, 0
        self._queued = self._done = 0
        self._end = None if device.type == "cpu" else torch.cuda.Event()  # type: ignore[no-untyped-call]

    def begin(self, *tensors: Tensor) -> Callable[[], list[NDArray[Any]]]:
        """Queue copies of tensors; the result waits for them, unless a later wait has passed."""
        copied = [tensor.detach() for tensor in tensors]
        if self._end is not None:
            pinned = [torch.empty(t.shape, dtype=t.dtype, pin_memory=True) for t in copied]
            copied = [to.copy_(t, non_blocking=True) for to, t in zip(pinned, copied, strict=True)]
            self._end.record()
        self._queued = number = self._queued + 1

        def result() -> list[NDArray[Any]]:
            if number > self._done:
                if self._end is not None:
                    self._end.synchronize()
                self.waits, self._done = self.waits + 1, self._queued
            return [tensor.numpy() for tensor in copied]

        return result
