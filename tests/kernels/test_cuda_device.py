"""CudaDevice on a double of CuPy, which notes the order of events, waits and frees; tests/gpu uses a GPU."""

from __future__ import annotations

import weakref
from pathlib import Path
from types import SimpleNamespace, TracebackType
from typing import Any

import numpy as np
import pytest

from livectr.kernels.runtime import device as devices
from livectr.kernels.runtime.device import CudaDevice

READER = 7


class Entered:
    """A context that a thread can enter, as CuPy's devices and streams."""

    def __enter__(self) -> None: ...

    def __exit__(
        self,
        kind: type[BaseException] | None,
        error: BaseException | None,
        trace: TracebackType | None,
    ) -> None: ...


class Cupy:
    """The calls of CuPy that CudaDevice makes for memory and streams; `trace` has them in order."""

    def __init__(self) -> None:
        self.trace: list[tuple[Any, ...]] = []
        self.streams = self.loads = 0
        cupy = self

        class Device(Entered):
            id, compute_capability = 3, "90"

            def use(self) -> None: ...

        class Stream(Entered):
            def __init__(self, ptr: int | None = None, *, non_blocking: bool = False) -> None:
                cupy.streams += 1
                self.ptr = 1000 + cupy.streams if ptr is None else ptr

            def wait_event(self, event: Event) -> None:
                cupy.trace.append(("wait", self.ptr, event.of))

        class Event:
            def __init__(self, *, disable_timing: bool, block: bool = False) -> None:
                self.ptr, self.of = self, 0

            def record(self, stream: Stream) -> None:
                record(self, stream.ptr)

            def synchronize(self) -> None:
                cupy.trace.append(("synchronize", self.of))

        def record(event: Event, stream: int) -> None:
            event.of = stream
            cupy.trace.append(("record", stream))

        class Pointer:
            def __init__(self, ptr: int) -> None:
                self.ptr = ptr
                weakref.finalize(self, cupy.trace.append, ("free", ptr))

            def __add__(self, offset: int) -> tuple[Pointer, int]:
                return self, offset

        class Array:
            def __init__(self, shape: tuple[int, ...], dtype: Any, memptr: object) -> None:
                self.shape, self.dtype, self.memptr = shape, np.dtype(dtype), memptr

            def __dlpack__(self, *, stream: int | None) -> Any:
                return SimpleNamespace(array=self)

        def module(path: str) -> Any:
            cupy.loads += 1
            return SimpleNamespace(get_function=lambda kernel: kernel)

        self.RawModule, self.ndarray = module, Array
        self.cuda = SimpleNamespace(
            runtime=SimpleNamespace(
                getDeviceProperties=lambda number: {"name": b"double"}, eventRecord=record
            ),
            Device=Device,
            Stream=Stream,
            Event=Event,
            alloc=lambda nbytes: Pointer(4096),
            UnownedMemory=lambda address, nbytes, owner, number: owner,
            MemoryPointer=lambda memory, offset: (memory, offset),
        )


@pytest.fixture
def cupy(monkeypatch: pytest.MonkeyPatch) -> Cupy:
    double = Cupy()
    monkeypatch.setattr(devices, "require_gpu", lambda: double)
    monkeypatch.setattr(devices, "cached_cubins", lambda sources, arch: [Path("kernels.cubin")])
    return double


def test_memory_goes_back_when_its_readers_are_done(cupy: Cupy) -> None:
    """A tensor may be dropped while the kernels that read it still wait in torch's queue."""
    device = CudaDevice("", ["f"])
    buffer = device.memory(64)
    array = device.array(buffer, (4,), np.float32, 16)
    assert array.shape == (4,) and array.dtype == np.float32
    tensors = [array.__dlpack__(stream=READER), array.__dlpack__(stream=READER)]
    del array, buffer
    tensors.pop()
    assert cupy.trace == []
    tensors.pop()
    assert cupy.trace == [("record", READER), ("wait", device._stream.ptr, READER), ("free", 4096)]


def test_memory_that_nobody_reads_goes_back_at_once(cupy: Cupy) -> None:
    device = CudaDevice("", ["f"])
    buffer = device.memory(64)
    array = device.array(buffer, (4,), np.float32)
    del buffer
    assert cupy.trace == []
    del array
    assert cupy.trace == [("free", 4096)]


def test_lent_memory_comes_back_when_its_readers_are_done(cupy: Cupy) -> None:
    device, returned = CudaDevice("", ["f"]), list[devices.Buffer]()
    buffer = device.memory(64)
    array = device.array(device.lend(buffer, returned.append), (4,), np.float32)
    tensor = array.__dlpack__(stream=READER)
    del array
    assert returned == [] and cupy.trace == []
    del tensor
    assert returned == [buffer] and cupy.trace == [("record", READER), ("wait", device._stream.ptr, READER)]


def test_a_reader_names_its_stream(cupy: Cupy) -> None:
    device = CudaDevice("", ["f"])
    array = device.array(device.memory(64), (4,), np.float32)
    with pytest.raises(BufferError, match="must name its stream"):
        array.__dlpack__(stream=-1)
    array.__dlpack__()  # DLPack: the legacy default stream, whose number is 1
    del array
    assert [event for event in cupy.trace if event[0] == "record"] == [("record", 1)]


def test_a_mark_is_waited_for_once(cupy: Cupy) -> None:
    device = CudaDevice("", ["f"])
    mark, stream = device.mark(), device._stream.ptr
    assert cupy.trace == [("record", stream)] and not mark.passed and device.waits == 0
    mark.wait()
    mark.wait()
    assert cupy.trace[1:] == [("synchronize", stream)] and mark.passed and device.waits == 1


def test_an_array_is_exported_in_a_thread_with_another_gpu(cupy: Cupy) -> None:
    """CuPy refuses a stream that is not the current GPU's: the array's is made current first."""
    device = CudaDevice("", ["f"])
    array, entered = device.array(device.memory(64), (4,), np.float32), list[object]()
    for part in (device._device, device._stream):
        enter = type(part).__enter__

        def noted(self: object, enter: Any = enter) -> None:
            entered.append(self)
            enter(self)

        type(part).__enter__ = noted
    array.__dlpack__(stream=READER)
    assert entered == [device._device, device._stream]


def test_another_queue_has_the_same_kernels(cupy: Cupy) -> None:
    """The GPU of the first, whichever thread asks: a new thread starts with GPU 0."""
    first = CudaDevice("", ["f"])
    first.launches = 5
    other = first.another()
    assert other._stream is not first._stream and other._device is first._device
    assert other._kernels == first._kernels and cupy.loads == 1
    assert (first.launches, other.launches) == (5, 0)


def test_cupys_arrays_keep_the_owner_of_their_memory() -> None:
    import cupy  # without it this test fails: the compile tests need it, too

    host, owner = np.zeros(8, np.float32), devices._Owner()
    gone = weakref.ref(owner)
    memory = cupy.cuda.UnownedMemory(host.ctypes.data, host.nbytes, owner, 0)
    array = cupy.ndarray((4,), np.float32, memptr=cupy.cuda.MemoryPointer(memory, 16))
    del owner, memory
    assert gone() is not None and array.data.ptr == host.ctypes.data + 16
    del array
    assert gone() is None
