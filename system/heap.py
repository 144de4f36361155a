"""Heap tuning: malloc keeps freed memory, and the garbage collector skips imported objects."""

import ctypes
import gc
from collections.abc import Iterator
from contextlib import contextmanager

MMAP_BYTES, TRIM_BYTES = 32 << 20, 256 << 20
"""Malloc keeps freed allocations below MMAP_BYTES (glibc's maximum), up to TRIM_BYTES in all."""


def tune_malloc() -> None:
    """Keeps freed memory in the process, so that the next step reuses it.

    Sets M_MMAP_THRESHOLD and M_TRIM_THRESHOLD. Otherwise malloc returns megabytes to the kernel again and
    again, which clears every page each time: 3,000 page faults a training step, a tenth of its time, and half
    of the time of an activation unit in a rank request.
    """
    mallopt = getattr(ctypes.CDLL(None), "mallopt", None)
    if mallopt is not None:  # parameters M_MMAP_THRESHOLD and M_TRIM_THRESHOLD of malloc.h
        mallopt(-3, MMAP_BYTES)
        mallopt(-1, TRIM_BYTES)


@contextmanager
def loading(*, lean: bool = False) -> Iterator[None]:
    """Freezes imported objects out of the garbage collector, which is off while modules are imported.

    torch is 180,000 objects: collections during the import, each full collection later, and that at the
    process' end find nothing. They are a third of the CPU time of a start.

    Args:
        lean: keep pandas out of this process (`keep_pandas_out`).
    """
    collecting = gc.isenabled()
    gc.disable()
    try:
        if lean:
            from livectr.system.lean_pyarrow import keep_pandas_out

            keep_pandas_out()
        yield
    finally:
        if collecting:
            gc.enable()
        gc.freeze()
