"""Emulated device that refuses copies from and to memory that would not be pinned."""

from __future__ import annotations

from collections.abc import Sequence

from livectr.kernels.runtime.device import Bytes, EmulatedDevice


class PinnedDevice(EmulatedDevice):
    """Device whose copies may only use host memory of `staging`.

    CUDA copies pageable memory by way of its own, and the host waits for a download's turn in the queue.
    """

    def __init__(self, source: str, kernels: Sequence[str]) -> None:
        super().__init__(source, kernels)
        self._pinned: list[Bytes] = []

    def staging(self, nbytes: int) -> Bytes:
        self._pinned.append(super().staging(nbytes))
        return self._pinned[-1]

    def upload(self, address: int, source: Bytes) -> None:
        self._check(source)
        super().upload(address, source)

    def download(self, target: Bytes, address: int) -> None:
        self._check(target)
        super().download(target, address)

    def _check(self, host: Bytes) -> None:
        first = host.ctypes.data
        end = first + host.nbytes
        assert any(
            one.ctypes.data <= first and end <= one.ctypes.data + one.nbytes for one in self._pinned
        ), f"a copy of {host.nbytes} bytes would go by way of pageable memory"
