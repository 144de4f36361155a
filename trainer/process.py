"""A process's surroundings: signals that end it, its Prometheus endpoint, how it shares cores and memory."""

import ctypes
import os
import signal
import threading
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from types import FrameType

import prometheus_client

from kernels.errors import ConfigError

MMAP_BYTES, TRIM_BYTES = 32 << 20, 256 << 20
"""Allocations of fewer bytes are kept when they are freed (glibc takes no more), up to so many in all."""


def share_cores() -> None:
    """OpenMP threads that wait for work sleep. Takes effect before torch is first imported only.

    By default they spin for milliseconds, on the cores that the tables' threads and the readers need. Where
    OMP_WAIT_POLICY is set, that holds.
    """
    os.environ.setdefault("OMP_WAIT_POLICY", "PASSIVE")


def keep_memory() -> None:
    """What a step frees stays with the process for the next step, with glibc's allocator.

    Otherwise it hands megabytes back to the kernel again and again, which clears every page anew: 3,000 page
    faults a step, a tenth of its time.
    """
    mallopt = getattr(ctypes.CDLL(None), "mallopt", None)
    if mallopt is not None:  # parameters M_MMAP_THRESHOLD and M_TRIM_THRESHOLD of malloc.h
        mallopt(-3, MMAP_BYTES)
        mallopt(-1, TRIM_BYTES)


@contextmanager
def stop_signals() -> Iterator[Callable[[], bool]]:
    """SIGTERM and SIGINT set a flag while this is open; a second SIGINT interrupts. Main thread only."""
    asked = threading.Event()
    if threading.current_thread() is not threading.main_thread():
        yield asked.is_set
        return
    before = {number: signal.getsignal(number) for number in (signal.SIGTERM, signal.SIGINT)}

    def ask(number: int, frame: FrameType | None) -> None:
        if asked.is_set() and number == signal.SIGINT:
            raise KeyboardInterrupt
        asked.set()

    for number in before:
        signal.signal(number, ask)
    try:
        yield asked.is_set
    finally:
        for number, handler in before.items():
            signal.signal(number, handler)


@contextmanager
def metrics_server(port: int) -> Iterator[None]:
    """Answer Prometheus at `port`. Raises ConfigError when it is taken."""
    try:
        server, thread = prometheus_client.start_http_server(port)
    except OSError as error:
        raise ConfigError(f"metrics port {port} cannot be used ({error}); choose another one") from None
    try:
        yield
    finally:
        server.shutdown()
        server.server_close()
        thread.join()
