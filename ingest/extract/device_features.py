"""Features that lie on a device, where a step reads them; the host gets what it asks for."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from functools import cached_property
from typing import Any, Literal

import numpy as np
import numpy.typing as npt

from livectr.ingest.plan.features import Features
from livectr.kernels.runtime.device import Buffer, Device
from livectr.kernels.runtime.recycled import Recycled

Array = npt.NDArray[Any]
Brought = Literal["all", "ids", "nothing"]
"""Features that come to the host with their batch, in its wait: all, or offsets and keys, or none."""


@dataclass(frozen=True)
class Part:
    """Array in a batch's memory: first byte, shape and type."""

    at: int
    shape: tuple[int, ...]
    dtype: type[np.generic]

    @property
    def nbytes(self) -> int:
        """Its size."""
        return int(np.prod(self.shape)) * np.dtype(self.dtype).itemsize


@dataclass(frozen=True)
class Parts:
    """Arrays in a batch's memory; see `Features`."""

    offsets: Part
    keys: Part
    dense: Part


@dataclass(frozen=True, eq=False)
class DeviceFeatures:
    """Features of B rows on a device, as `Features`; what is observed or failed is on the host.

    Args:
        rows: B.
        counts: int64[F], keys of each field.
        observed: int64[S, B], as in `Features`.
        failed: bool[B], as in `Features`.
        device: whose queue has written the arrays.
        memory: of the arrays, lent: it is written again when no array and no view of one is left.
        parts: places of the arrays.
        pinned: host memory for copies.
        brought: offsets and keys on the host, if they came with the batch.
    """

    rows: int
    counts: npt.NDArray[np.int64]
    observed: npt.NDArray[np.int64]
    failed: npt.NDArray[np.bool_]
    device: Device
    memory: Buffer
    parts: Parts
    pinned: Recycled
    brought: tuple[Array, Array] | None = None

    def __len__(self) -> int:
        return self.rows

    @property
    def offsets(self) -> Any:
        """Array int32[F·B + 1] on the device, which other libraries read by DLPack; see `Device.array`."""
        return self._array(self.parts.offsets)

    @property
    def keys(self) -> Any:
        """Array int64[nnz] on the device."""
        return self._array(self.parts.keys)

    @property
    def dense(self) -> Any:
        """Array float32[B, D_dense] on the device."""
        return self._array(self.parts.dense)

    def ids(self) -> Features:
        """Copy offsets and keys to the host, unless they are there; as `Features.ids`."""
        offsets, keys = self._ids
        dense = np.empty((self.rows, 0), np.float32)
        return Features(self.rows, offsets, keys, dense, self.observed, self.failed)

    def host(self) -> Features:
        """Copy what is not on the host."""
        offsets, keys = self._ids
        return Features(self.rows, offsets, keys, self._dense, self.observed, self.failed)

    def take(self, rows: npt.NDArray[Any] | Sequence[int]) -> Features:
        """Gather rows on the host."""
        return self.host().take(rows)

    @cached_property
    def _ids(self) -> tuple[Array, Array]:
        if self.brought is not None:
            return self.brought
        offsets, keys = self._bring(self.parts.offsets, self.parts.keys)
        return offsets, keys

    @cached_property
    def _dense(self) -> Array:
        return self._bring(self.parts.dense)[0]

    def _bring(self, *parts: Part) -> list[Array]:
        """Copy arrays to the host. Waits; the device counts the bytes (`Device.downloaded`) and the wait."""
        hosts = [self.pinned.empty(-(-part.nbytes // 8)).view(np.uint8)[: part.nbytes] for part in parts]
        for host, part in zip(hosts, parts, strict=True):
            self.device.download(host, self.memory.address + part.at)
        self.device.synchronize()
        return [host.view(part.dtype).reshape(part.shape) for host, part in zip(hosts, parts, strict=True)]

    def _array(self, part: Part) -> Any:
        return self.device.array(self.memory, part.shape, part.dtype, part.at)
