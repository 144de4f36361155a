"""Devices of generated kernels: a GPU through CuPy, or its emulation on the host.

A `Device` owns memory, copies and launches; all addresses are integers. Copies and launches are queued in
order and `synchronize` waits for them. `EmulatedDevice` runs the same kernels, compiled by the host compiler,
block by block and phase by phase, so that everything but CuPy's calls is tested without a GPU.
"""

from __future__ import annotations

import ctypes
from abc import ABC, abstractmethod
from collections.abc import Sequence
from typing import Any

import numpy as np
import numpy.typing as npt

from livectr.kernels.errors import ConfigError
from livectr.kernels.runtime.columns import THREADS
from livectr.kernels.runtime.compiler import cached_cubin, compile_host

Bytes = npt.NDArray[np.uint8]
_DLPACK_CUDA = 2


class Buffer:
    """Device memory.

    Attributes:
        address: address of its first byte.
        nbytes: size.
        owner: object that keeps it alive.
    """

    def __init__(self, address: int, nbytes: int, owner: Any) -> None:
        self.address, self.nbytes, self.owner = address, nbytes, owner


class Device(ABC):
    """Device with an in-order queue of copies and launches."""

    name: str
    launches = 0
    """Number of kernels launched so far."""

    @abstractmethod
    def memory(self, nbytes: int) -> Buffer:
        """Allocates device memory, not cleared, aligned to 256 bytes."""

    @abstractmethod
    def staging(self, nbytes: int) -> Bytes:
        """Allocates host memory for fast copies: uint8[nbytes], pinned where possible."""

    @abstractmethod
    def upload(self, address: int, source: Bytes) -> None:
        """Queues a copy to the device; `source` must stay unchanged until `synchronize`."""

    @abstractmethod
    def download(self, target: Bytes, address: int) -> None:
        """Queues a copy from the device."""

    @abstractmethod
    def clear(self, address: int, nbytes: int) -> None:
        """Queues zeroing."""

    @abstractmethod
    def copy(self, target: int, source: int, nbytes: int) -> None:
        """Queues a copy inside the device."""

    @abstractmethod
    def sort(self, address: int, count: int) -> None:
        """Queues an in-place ascending sort of uint64[count]."""

    @abstractmethod
    def array(self, buffer: Buffer, shape: tuple[int, ...], dtype: npt.DTypeLike, at: int = 0) -> Any:
        """Views a buffer as an array, which keeps it alive: CuPy's, or NumPy's where memory is the host's.

        Args:
            buffer: device memory; its content is valid after `synchronize`.
            shape: shape of the array.
            dtype: type of the array.
            at: first byte in the buffer.
        """

    @abstractmethod
    def borrow(self, array: Any) -> tuple[int, Any]:
        """Finds the address of a C-contiguous array as this device sees it.

        Operations queued on the array so far finish before operations queued here from then on.

        Args:
            array: array of the host, or on this device with DLPack (torch, CuPy).

        Returns:
            Address, and the object that keeps the memory alive.
        """

    @abstractmethod
    def launch(self, kernel: str, blocks: int, plan: int) -> None:
        """Queues a kernel over `blocks` thread blocks; `plan` is the address of its argument."""

    @abstractmethod
    def synchronize(self) -> None:
        """Waits for everything that is queued."""


class EmulatedDevice(Device):
    """Emulated device: host memory, and kernels as host functions.

    Raises:
        KernelError: the source does not compile.
    """

    name = "emulated"

    def __init__(self, source: str, kernels: Sequence[str]) -> None:
        library = compile_host(source, name="emulated kernels", flags=("-O1",))
        self._kernels: dict[str, Any] = {}
        for kernel in kernels:
            function = library[kernel]
            function.argtypes, function.restype = [ctypes.c_void_p, ctypes.c_int64], None
            self._kernels[kernel] = function

    def memory(self, nbytes: int) -> Buffer:
        # A pattern that shows reads of unwritten memory.
        array = np.full(nbytes + 256, 0xA5, np.uint8)
        return Buffer(-(-array.ctypes.data // 256) * 256, nbytes, array)

    def staging(self, nbytes: int) -> Bytes:
        return np.empty(nbytes, np.uint8)

    def upload(self, address: int, source: Bytes) -> None:
        ctypes.memmove(address, source.ctypes.data, source.nbytes)

    def download(self, target: Bytes, address: int) -> None:
        ctypes.memmove(target.ctypes.data, address, target.nbytes)

    def clear(self, address: int, nbytes: int) -> None:
        ctypes.memset(address, 0, nbytes)

    def copy(self, target: int, source: int, nbytes: int) -> None:
        ctypes.memmove(target, source, nbytes)

    def sort(self, address: int, count: int) -> None:
        words = (ctypes.c_uint64 * count).from_address(address)
        np.ctypeslib.as_array(words).sort()

    def array(self, buffer: Buffer, shape: tuple[int, ...], dtype: npt.DTypeLike, at: int = 0) -> Any:
        begin = buffer.address - buffer.owner.ctypes.data + at
        nbytes = int(np.prod(shape)) * np.dtype(dtype).itemsize
        return buffer.owner[begin : begin + nbytes].view(dtype).reshape(shape)

    def borrow(self, array: Any) -> tuple[int, Any]:
        host = np.ascontiguousarray(array)
        return host.ctypes.data, host

    def launch(self, kernel: str, blocks: int, plan: int) -> None:
        self.launches += 1
        self._kernels[kernel](plan, blocks)

    def synchronize(self) -> None:
        pass


class CudaDevice(Device):
    """GPU that was current when the object was made, whichever thread calls later (new threads start with GPU
    0).

    Memory comes from CuPy's pool; there is a single non-blocking stream.

    Raises:
        ConfigError: there is no GPU.
        KernelError: the source does not compile.
    """

    def __init__(self, source: str, kernels: Sequence[str]) -> None:
        cupy = require_gpu()
        self._cupy, self._runtime = cupy, cupy.cuda.runtime
        self._device = cupy.cuda.Device()
        properties = self._runtime.getDeviceProperties(self._device.id)
        self.name = properties["name"].decode()
        arch = f"sm_{self._device.compute_capability}"
        module = cupy.RawModule(path=str(cached_cubin(source, arch=arch)))
        self._kernels = {kernel: module.get_function(kernel) for kernel in kernels}
        self._stream = cupy.cuda.Stream(non_blocking=True)

    def memory(self, nbytes: int) -> Buffer:
        self._device.use()
        with self._stream:
            pointer = self._cupy.cuda.alloc(max(nbytes, 1))
        return Buffer(int(pointer.ptr), nbytes, pointer)

    def staging(self, nbytes: int) -> Bytes:
        pinned = self._cupy.cuda.alloc_pinned_memory(max(nbytes, 1))
        return np.frombuffer(pinned, np.uint8, nbytes)

    def upload(self, address: int, source: Bytes) -> None:
        kind = self._runtime.memcpyHostToDevice
        self._runtime.memcpyAsync(address, source.ctypes.data, source.nbytes, kind, self._stream.ptr)

    def download(self, target: Bytes, address: int) -> None:
        kind = self._runtime.memcpyDeviceToHost
        self._runtime.memcpyAsync(target.ctypes.data, address, target.nbytes, kind, self._stream.ptr)

    def clear(self, address: int, nbytes: int) -> None:
        self._device.use()
        self._runtime.memsetAsync(address, 0, nbytes, self._stream.ptr)

    def copy(self, target: int, source: int, nbytes: int) -> None:
        kind = self._runtime.memcpyDeviceToDevice
        self._runtime.memcpyAsync(target, source, nbytes, kind, self._stream.ptr)

    def sort(self, address: int, count: int) -> None:
        self._device.use()
        unowned = self._cupy.cuda.UnownedMemory(address, 8 * count, None)
        pointer = self._cupy.cuda.MemoryPointer(unowned, 0)
        with self._stream:
            self._cupy.ndarray((count,), np.uint64, memptr=pointer).sort()

    def array(self, buffer: Buffer, shape: tuple[int, ...], dtype: npt.DTypeLike, at: int = 0) -> Any:
        return self._cupy.ndarray(shape, dtype, memptr=buffer.owner + at)

    def borrow(self, array: Any) -> tuple[int, Any]:
        self._device.use()
        with self._stream:  # DLPack: the producer makes this stream wait for its own
            if hasattr(array, "__dlpack_device__") and array.__dlpack_device__()[0] == _DLPACK_CUDA:
                source = self._cupy.from_dlpack(array)
                here = self._cupy.ascontiguousarray(source)
            else:
                source = np.ascontiguousarray(array)
                here = self._cupy.asarray(source)
        return int(here.data.ptr), (here, source)  # a copy may still run

    def launch(self, kernel: str, blocks: int, plan: int) -> None:
        self.launches += 1
        self._device.use()
        self._kernels[kernel]((blocks,), (THREADS,), (np.uintp(plan),), stream=self._stream)

    def synchronize(self) -> None:
        self._stream.synchronize()


def gpu_available() -> bool:
    """True if CuPy is installed and sees a GPU."""
    try:
        import cupy

        return bool(cupy.cuda.runtime.getDeviceCount() > 0)
    except Exception:  # CuPy raises its own error without a driver, ImportError without CuPy
        return False


def free_memory() -> int:
    """Free bytes of the current GPU's memory. Raises ConfigError where there is none."""
    return int(require_gpu().cuda.runtime.memGetInfo()[0])


def require_gpu() -> Any:
    """Imports CuPy. Raises ConfigError where it, or a GPU, is missing."""
    try:
        import cupy
    except ImportError:
        raise ConfigError('a GPU needs CuPy: pip install "livectr[gpu]", or set device to cpu') from None
    try:
        count = cupy.cuda.runtime.getDeviceCount()
    except cupy.cuda.runtime.CUDARuntimeError as error:
        raise ConfigError(f"no GPU can be used ({error}); set device to cpu") from None
    if count == 0:
        raise ConfigError("there is no GPU on this machine; set device to cpu")
    return cupy
