"""Signals of a process: the end before its work has begun, and events that handlers set."""

from __future__ import annotations

import os
import select
import signal
import threading
from collections.abc import Iterator
from contextlib import contextmanager
from types import FrameType


def end_at_sigterm(code: int = 0) -> None:
    """End the process with an exit code at SIGTERM, until another handler is installed. Main thread only.

    The kernel drops signals without a handler that are sent to process 1 of a container. So a pod that is
    still importing would be killed after its whole grace time.
    """
    if threading.current_thread() is threading.main_thread():

        def end(number: int, frame: FrameType | None) -> None:
            # SystemExit could be caught by an import that falls back on any error.
            os._exit(code)

        signal.signal(signal.SIGTERM, end)


@contextmanager
def kept_handlers() -> Iterator[None]:
    """Install the handlers of SIGTERM and SIGINT again at the end.

    Only the main thread can change handlers; in another thread there is nothing to do.
    """
    if threading.current_thread() is not threading.main_thread():
        yield
        return
    before = {number: signal.getsignal(number) for number in (signal.SIGTERM, signal.SIGINT)}
    try:
        yield
    finally:
        for number, handler in before.items():
            if handler is not None:  # C code has installed it
                signal.signal(number, handler)


class SignalEvent:
    """Event that signal handlers may set; any thread may wait for it.

    A handler must not set a `threading.Event`: its lock is not reentrant. A handler that comes while the main
    thread waits for the event, or while another handler sets it, would wait for that lock for ever.
    """

    def __init__(self) -> None:
        self._set = False
        self._waker = os.eventfd(0, os.EFD_CLOEXEC | os.EFD_NONBLOCK)

    def __del__(self) -> None:
        os.close(self._waker)

    def is_set(self) -> bool:
        """Tell whether the event was set."""
        return self._set

    def set(self) -> None:
        """Set the event for good and wake all who wait."""
        if not self._set:
            self._set = True
            os.eventfd_write(self._waker, 1)

    def wait(self, timeout_s: float | None = None) -> bool:
        """Wait at most `timeout_s` seconds (None: for ever); return True if the event is set."""
        if not self._set:
            poll = select.poll()
            poll.register(self._waker, select.POLLIN)  # nobody reads it: it wakes every thread
            poll.poll(None if timeout_s is None else 1000 * timeout_s)
        return self._set
