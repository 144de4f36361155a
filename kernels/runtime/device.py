"""Devices of generated kernels: a GPU through CuPy, or its emulation on the host.

A `Device` owns memory, copies and launches; all addresses are integers. Copies and launches are queued in
order and `synchronize` waits for them. `EmulatedDevice` runs the same kernels, compiled by the host compiler,
block by block and phase by phase, so that everything but CuPy's calls is tested without a GPU.
"""

from __future__ import annotations

import copy
import ctypes
import weakref
from abc import ABC, abstractmethod
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from typing import Any, Self

import numpy as np
import numpy.typing as npt

from livectr.kernels.runtime.columns import THREADS
from livectr.kernels.runtime.compiler import cached_cubins, compile_host
from livectr.system.errors import ConfigError

Bytes = npt.NDArray[np.uint8]
_DLPACK_CUDA = 2
_NO_SYNC, _LEGACY_STREAM = -1, 1
"""Streams of DLPack: the reader does not say which, and CUDA's legacy default stream."""


class Buffer:
    """Device memory.

    Attributes:
        address: address of its first byte.
        nbytes: size.
        owner: object that keeps it alive.
    """

    def __init__(self, address: int, nbytes: int, owner: Any) -> None:
        self.address, self.nbytes, self.owner = address, nbytes, owner


class Mark:
    """Place in a device's queue: what was queued before it is done once it has passed.

    Args:
        device: counts the wait.
        reached: waits until the queue has come to the place; any thread may.

    Attributes:
        passed: the host knows that the place is passed.
    """

    def __init__(self, device: Device, reached: Callable[[], object]) -> None:
        self.passed = False
        self._device, self._reached = device, reached

    def wait(self) -> None:
        """Waits until the queue has passed the place, unless that is known."""
        if not self.passed:
            self._device.waits += 1
            self._reach()
            self.passed = True

    def _reach(self) -> None:
        self._reached()


@dataclass(frozen=True)
class Unit:
    """Translation unit of kernels.

    Args:
        source: C++ text.
        kernels: their names.
    """

    source: str
    kernels: tuple[str, ...]


class Device(ABC):
    """Device with an in-order queue of copies and launches."""

    name: str
    launches = 0
    """Number of kernels launched so far."""
    waits = 0
    """Number of times so far that a thread of the host waited for the queue, or for a mark."""
    downloaded = 0
    """Bytes whose copies to the host were queued so far."""

    def another(self) -> Self:
        """Copies this device: the same kernels on the same GPU, and a queue of its own."""
        other = copy.copy(self)
        other.launches = other.waits = other.downloaded = 0
        return other

    @abstractmethod
    def memory(self, nbytes: int) -> Buffer:
        """Allocates device memory, not cleared, aligned to 256 bytes."""

    @abstractmethod
    def lend(self, buffer: Buffer, back: Callable[[Buffer], object]) -> Buffer:
        """Lends memory to arrays: a buffer over the same bytes.

        Args:
            buffer: memory of this device.
            back: called with `buffer` once no array of the lent buffer is left, in any thread. What is queued
                from then on comes after all reads of these arrays.
        """

    @abstractmethod
    def staging(self, nbytes: int) -> Bytes:
        """Allocates host memory for fast copies: uint8[nbytes], pinned where possible."""

    @abstractmethod
    def upload(self, address: int, source: Bytes) -> None:
        """Queues a copy to the device; `source` must stay unchanged until `synchronize`."""

    def download(self, target: Bytes, address: int) -> None:
        """Queues a copy from the device; `target` is valid after `synchronize`."""
        self.downloaded += target.nbytes

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
        """Views a buffer as an array, which keeps it alive.

        It is a `LentArray`, or NumPy's where memory is the host's.

        Args:
            buffer: device memory; its content is valid after `synchronize`, and for readers by DLPack in the
                order of their streams.
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
            Address, and an object that keeps the memory alive; it is no array.
        """

    @abstractmethod
    def launch(self, kernel: str, blocks: int, plan: int) -> None:
        """Queues a kernel over `blocks` thread blocks; `plan` is the address of its argument."""

    @abstractmethod
    def mark(self) -> Mark:
        """Marks the end of what is queued so far."""

    def synchronize(self) -> None:
        """Waits for everything that is queued."""
        self.waits += 1


class _LentBytes:
    """Base object of an array over lent host memory, and of its views."""

    def __init__(self, memory: Bytes) -> None:
        self.memory = memory
        self.__array_interface__: dict[str, Any] = memory.__array_interface__


class EmulatedDevice(Device):
    """Emulated device: host memory, and kernels as host functions.

    Args:
        source: C++ text.
        kernels: names of its kernels.
        more: further translation units.

    Raises:
        KernelError: the source does not compile.
    """

    name = "emulated"

    def __init__(self, source: str, kernels: Sequence[str], *more: Unit) -> None:
        self._kernels: dict[str, Any] = {}
        for unit in (Unit(source, tuple(kernels)), *more):
            library = compile_host(unit.source, name="emulated kernels", flags=("-Og",))
            for kernel in unit.kernels:
                function = library[kernel]
                function.argtypes, function.restype = [ctypes.c_void_p, ctypes.c_int64], None
                self._kernels[kernel] = function

    def memory(self, nbytes: int) -> Buffer:
        """Allocates host memory, aligned to 256 bytes and filled with a pattern."""
        # A pattern that shows reads of unwritten memory.
        array = np.full(nbytes + 256, 0xA5, np.uint8)
        return Buffer(-(-array.ctypes.data // 256) * 256, nbytes, array)

    def lend(self, buffer: Buffer, back: Callable[[Buffer], object]) -> Buffer:
        """Lends memory to NumPy arrays, whose views hold it."""
        lent = _LentBytes(buffer.owner)
        weakref.finalize(lent, back, buffer).atexit = False
        return Buffer(buffer.address, buffer.nbytes, np.asarray(lent))

    def staging(self, nbytes: int) -> Bytes:
        """Allocates host memory uint8[nbytes]."""
        return np.empty(nbytes, np.uint8)

    def upload(self, address: int, source: Bytes) -> None:
        """Copies at once."""
        ctypes.memmove(address, source.ctypes.data, source.nbytes)

    def download(self, target: Bytes, address: int) -> None:
        """Copies at once."""
        super().download(target, address)
        ctypes.memmove(target.ctypes.data, address, target.nbytes)

    def clear(self, address: int, nbytes: int) -> None:
        """Zeroes bytes at once."""
        ctypes.memset(address, 0, nbytes)

    def copy(self, target: int, source: int, nbytes: int) -> None:
        """Copies at once, inside host memory."""
        ctypes.memmove(target, source, nbytes)

    def sort(self, address: int, count: int) -> None:
        """Sorts uint64[count] in place, at once."""
        words = (ctypes.c_uint64 * count).from_address(address)
        np.ctypeslib.as_array(words).sort()

    def array(self, buffer: Buffer, shape: tuple[int, ...], dtype: npt.DTypeLike, at: int = 0) -> Any:
        """Views the buffer's memory as a NumPy array."""
        begin = buffer.address - buffer.owner.ctypes.data + at
        nbytes = int(np.prod(shape)) * np.dtype(dtype).itemsize
        return buffer.owner[begin : begin + nbytes].view(dtype).reshape(shape)

    def borrow(self, array: Any) -> tuple[int, Any]:
        """Address of a host array, and its owner; it is copied unless it is C-contiguous."""
        host = np.ascontiguousarray(array)
        return host.ctypes.data, (host,)  # no array, as a GPU's is none

    def launch(self, kernel: str, blocks: int, plan: int) -> None:
        """Runs a kernel to its end, block by block."""
        self.launches += 1
        self._kernels[kernel](plan, blocks)

    def mark(self) -> Mark:
        """Marks the end of the queue, which is always empty; a wait for it counts all the same."""
        return Mark(self, lambda: None)


class _Owner:
    """Owner of a buffer of CuPy's pool.

    Attributes:
        readers: streams that took an array of it by DLPack.
    """

    def __init__(self) -> None:
        self.readers: set[int] = set()


class LentArray:
    """CuPy array that other libraries may read on their streams, by DLPack.

    CuPy gives memory back to the pool when the last object that refers to it is gone. The reader's stream may
    not have come to its kernels by then, so the stream is noted for the owner.

    Args:
        array: CuPy's array.
        owner: owner of its memory.
        stream: CuPy's stream that writes it.
        device: CuPy's device of both; a thread that exports the array may have another one.
    """

    def __init__(self, array: Any, owner: _Owner, stream: Any, device: Any) -> None:
        self.shape: tuple[int, ...] = array.shape
        self.dtype: np.dtype[Any] = array.dtype
        self._array, self._owner, self._stream, self._device = array, owner, stream, device

    def get(self) -> npt.NDArray[Any]:
        """Copies it to the host, when its kernels have run."""
        copied: npt.NDArray[Any] = self._array.get(stream=self._stream)
        return copied

    def __dlpack_device__(self) -> tuple[int, int]:
        kind, number = self._array.__dlpack_device__()
        return int(kind), int(number)

    def __dlpack__(self, *, stream: int | None = None, **options: Any) -> Any:
        """Exports it to a reader whose `stream` waits for this device's.

        Raises:
            BufferError: the reader does not say which stream reads.
        """
        if stream == _NO_SYNC:
            raise BufferError("a reader of a GPU's rows must name its stream (DLPack's stream is -1)")
        with self._device, self._stream:
            capsule = self._array.__dlpack__(stream=stream, **options)
        self._owner.readers.add(_LEGACY_STREAM if stream is None else stream)
        return capsule


class CudaDevice(Device):
    """GPU that was current when the object was made, whichever thread calls later.

    New threads start with GPU 0.

    Memory comes from CuPy's pool; there is a single non-blocking stream.

    Args:
        source: CUDA C++ text.
        kernels: names of its kernels.
        more: further translation units; units are compiled side by side.

    Raises:
        ConfigError: there is no GPU.
        KernelError: the source does not compile.
    """

    def __init__(self, source: str, kernels: Sequence[str], *more: Unit) -> None:
        cupy = require_gpu()
        self._cupy, self._runtime = cupy, cupy.cuda.runtime
        self._device = cupy.cuda.Device()
        properties = self._runtime.getDeviceProperties(self._device.id)
        self.name = properties["name"].decode()
        arch = f"sm_{self._device.compute_capability}"
        units = (Unit(source, tuple(kernels)), *more)
        self._kernels: dict[str, Any] = {}
        for unit, path in zip(units, cached_cubins([unit.source for unit in units], arch=arch), strict=True):
            module = cupy.RawModule(path=str(path))
            self._kernels |= {kernel: module.get_function(kernel) for kernel in unit.kernels}
        self._stream = cupy.cuda.Stream(non_blocking=True)

    def another(self) -> Self:
        """Copies this device, with a stream of its own."""
        other = super().another()
        with self._device:  # the caller's thread may have another GPU
            other._stream = self._cupy.cuda.Stream(non_blocking=True)
        return other

    def memory(self, nbytes: int) -> Buffer:
        """Allocates from CuPy's pool; the memory is reused once all streams that read it have passed."""
        self._device.use()
        with self._stream:
            pointer = self._cupy.cuda.alloc(max(nbytes, 1))
        owner = _Owner()
        weakref.finalize(owner, self._take_back, pointer, owner.readers).atexit = False
        return Buffer(int(pointer.ptr), nbytes, owner)

    def lend(self, buffer: Buffer, back: Callable[[Buffer], object]) -> Buffer:
        """Lends memory to CuPy's arrays, and to their readers by DLPack."""
        owner = _Owner()
        weakref.finalize(owner, self._take_back, buffer, owner.readers, back).atexit = False
        return Buffer(buffer.address, buffer.nbytes, owner)

    def _take_back(self, memory: Any, readers: set[int], back: Callable[[Any], object] | None = None) -> None:
        """Makes this stream, whose next work may write this memory, wait for the readers' streams."""
        for reader in readers:
            with self._device:
                read = self._cupy.cuda.Event(disable_timing=True)
                self._runtime.eventRecord(read.ptr, reader)
                self._stream.wait_event(read)
        if back is not None:
            back(memory)

    def staging(self, nbytes: int) -> Bytes:
        """Allocates pinned host memory uint8[nbytes]."""
        pinned = self._cupy.cuda.alloc_pinned_memory(max(nbytes, 1))
        return np.frombuffer(pinned, np.uint8, nbytes)

    def upload(self, address: int, source: Bytes) -> None:
        """Queues a copy to the GPU; `source` must stay unchanged until `synchronize`."""
        kind = self._runtime.memcpyHostToDevice
        self._runtime.memcpyAsync(address, source.ctypes.data, source.nbytes, kind, self._stream.ptr)

    def download(self, target: Bytes, address: int) -> None:
        """Queues a copy from the GPU; `target` is valid after `synchronize`."""
        super().download(target, address)
        kind = self._runtime.memcpyDeviceToHost
        self._runtime.memcpyAsync(target.ctypes.data, address, target.nbytes, kind, self._stream.ptr)

    def clear(self, address: int, nbytes: int) -> None:
        """Queues zeroing on the stream."""
        self._device.use()
        self._runtime.memsetAsync(address, 0, nbytes, self._stream.ptr)

    def copy(self, target: int, source: int, nbytes: int) -> None:
        """Queues a copy inside the GPU's memory; an empty tensor's address may be null."""
        kind = self._runtime.memcpyDeviceToDevice
        if nbytes:
            self._runtime.memcpyAsync(target, source, nbytes, kind, self._stream.ptr)

    def sort(self, address: int, count: int) -> None:
        """Queues an in-place ascending sort of uint64[count], by CuPy."""
        self._device.use()
        unowned = self._cupy.cuda.UnownedMemory(address, 8 * count, None)
        pointer = self._cupy.cuda.MemoryPointer(unowned, 0)
        with self._stream:
            self._cupy.ndarray((count,), np.uint64, memptr=pointer).sort()

    def array(self, buffer: Buffer, shape: tuple[int, ...], dtype: npt.DTypeLike, at: int = 0) -> Any:
        """Views a buffer as a `LentArray`, whose readers on other streams are waited for."""
        cuda, owner = self._cupy.cuda, buffer.owner
        whole = cuda.UnownedMemory(buffer.address, buffer.nbytes, owner, self._device.id)
        array = self._cupy.ndarray(shape, dtype, memptr=cuda.MemoryPointer(whole, at))
        return LentArray(array, owner, self._stream, self._device)

    def borrow(self, array: Any) -> tuple[int, Any]:
        """Finds or makes a C-contiguous array on this GPU, and its address.

        An array of the GPU is taken by DLPack without a copy, if it is C-contiguous; another array is copied.
        """
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
        """Queues a kernel of `blocks` blocks of THREADS threads; `plan` is the address of its argument."""
        self.launches += 1
        self._device.use()
        self._kernels[kernel]((blocks,), (THREADS,), (np.uintp(plan),), stream=self._stream)

    def mark(self) -> Mark:
        """Records an event; who waits for it sleeps, rather than keep a core busy."""
        with self._device:
            event = self._cupy.cuda.Event(block=True, disable_timing=True)
            event.record(self._stream)
        return Mark(self, event.synchronize)

    def synchronize(self) -> None:
        """Waits for the stream."""
        super().synchronize()
        self._stream.synchronize()


def free_memory() -> int:
    """Free bytes of the current GPU's memory. Raises ConfigError where there is none."""
    return int(require_gpu().cuda.runtime.memGetInfo()[0])


def has_gpu() -> bool:
    """True where CuPy sees a GPU."""
    try:
        require_gpu()
    except ConfigError:
        return False
    return True


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
