"""Phase-fair readers-writer lock over the rows of a version: Python interface of `request/swap_lock.hpp`."""

from __future__ import annotations

import ctypes
import functools
import weakref
from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import dataclass

import numpy as np

from livectr.kernels.runtime.arrays import address
from livectr.kernels.runtime.library import kernel_library, quick_library


class LateError(Exception):
    """The deadline of a reader passed while it waited for a writer."""


@dataclass(frozen=True)
class Holders:
    """Number of readers inside, of readers that wait, and of writers with the writers that wait."""

    readers: int
    waiting: int
    writers: int


class SwapLock:
    """Phase-fair readers-writer lock. Not re-entrant.

    Compiled calls take it by its handle, without Python.

    Args:
        longest_wait_s: a reader waits no longer, whatever its deadline.
        version: of what the lock guards.
    """

    def __init__(self, longest_wait_s: float, version: int = 0) -> None:
        self._calls, self._quick = _library(), _quick_calls()
        handle = self._calls.swap_lock_new(version, longest_wait_s)
        if not handle:
            raise MemoryError("no memory for a lock")
        self.handle: int = handle
        weakref.finalize(self, self._calls.swap_lock_delete, handle)

    @property
    def version(self) -> int:
        """Version of what the lock guards. Readers may ask for it; a writer may change it."""
        return int(self._quick.swap_lock_version(self.handle))

    @version.setter
    def version(self, version: int) -> None:
        self._quick.swap_lock_set_version(self.handle, version)

    @property
    def holders(self) -> Holders:
        """Threads that hold the lock or wait for it."""
        counts = np.empty(3, np.int64)
        self._quick.swap_lock_counts(self.handle, address(counts))
        return Holders(*counts.tolist())

    @contextmanager
    def read(self, deadline: float | None = None) -> Iterator[None]:
        """Hold the lock together with other readers.

        Args:
            deadline: instant of time.monotonic(); None: no deadline.

        Raises:
            LateError: the deadline, or the longest wait, passed first.
        """
        end = float("inf") if deadline is None else deadline
        if not (self._quick.swap_lock_try_read(self.handle) or self._calls.swap_lock_read(self.handle, end)):
            raise LateError
        try:
            yield
        finally:
            self._quick.swap_lock_end_read(self.handle)

    @contextmanager
    def write(self) -> Iterator[None]:
        """Hold the lock exclusively."""
        if not self._quick.swap_lock_try_write(self.handle):
            self._calls.swap_lock_write(self.handle)
        try:
            yield
        finally:
            self._quick.swap_lock_end_write(self.handle)


@functools.cache
def _library() -> ctypes.CDLL:
    """Calls that may wait, without the interpreter's lock."""
    library = kernel_library()
    handle, number, instant = ctypes.c_void_p, ctypes.c_int64, ctypes.c_double
    library.swap_lock_new.restype, library.swap_lock_new.argtypes = handle, [number, instant]
    library.swap_lock_delete.restype, library.swap_lock_delete.argtypes = None, [handle]
    library.swap_lock_read.restype, library.swap_lock_read.argtypes = ctypes.c_bool, [handle, instant]
    library.swap_lock_write.restype, library.swap_lock_write.argtypes = None, [handle]
    return library


@functools.cache
def _quick_calls() -> ctypes.PyDLL:
    """Calls that do not wait."""
    quick = quick_library()
    handle, number, flag = ctypes.c_void_p, ctypes.c_int64, ctypes.c_bool
    quick.swap_lock_try_read.restype, quick.swap_lock_try_read.argtypes = flag, [handle]
    quick.swap_lock_try_write.restype, quick.swap_lock_try_write.argtypes = flag, [handle]
    quick.swap_lock_end_read.restype, quick.swap_lock_end_read.argtypes = None, [handle]
    quick.swap_lock_end_write.restype, quick.swap_lock_end_write.argtypes = None, [handle]
    quick.swap_lock_version.restype, quick.swap_lock_version.argtypes = number, [handle]
    quick.swap_lock_set_version.restype, quick.swap_lock_set_version.argtypes = None, [handle, number]
    quick.swap_lock_counts.restype, quick.swap_lock_counts.argtypes = None, [handle, handle]
    return quick
