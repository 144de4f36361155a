"""What a process frees stays with it, with glibc's allocator; what it loads is no garbage."""

import ctypes
import gc
from collections.abc import Iterator
from contextlib import contextmanager

MMAP_BYTES, TRIM_BYTES = 32 << 20, 256 << 20
"""Allocations of fewer bytes are kept when they are freed (glibc takes no more), up to so many in all."""


def tune_malloc() -> None:
    """Memory that a step, or a request, frees is there for the next one.

    Otherwise malloc hands megabytes back to the kernel again and again, which clears every page anew: 3,000
    page faults a training step, a tenth of its time; and half of the time of an activation unit in a rank
    request.
    """
    mallopt = getattr(ctypes.CDLL(None), "mallopt", None)
    if mallopt is not None:  # parameters M_MMAP_THRESHOLD and M_TRIM_THRESHOLD of malloc.h
        mallopt(-3, MMAP_BYTES)
        mallopt(-1, TRIM_BYTES)


@contextmanager
def loading() -> Iterator[None]:
    """No garbage collection while modules are imported, and none later looks at what they made.

    torch is 180,000 objects: collections while they come, and each full one after that, find nothing.
    """
    gc.disable()
    try:
        yield
    finally:
        gc.enable()
        gc.freeze()
