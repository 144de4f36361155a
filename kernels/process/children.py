"""Child processes that do not outlive the process that started them."""

from __future__ import annotations

import ctypes
import os
import signal
import threading
from collections.abc import Callable

_PR_SET_PDEATHSIG = 1  # linux/prctl.h
_PRCTL = getattr(ctypes.CDLL(None), "prctl", None)  # found here: a fresh fork should do as little as it can


def die_with_parent(number: signal.Signals = signal.SIGTERM) -> Callable[[], None]:
    """A `preexec_fn` of subprocess.Popen: the kernel sends the child the signal when its parent ends.

    The kernel's parent is the *thread* that forks. So a child that another thread than the main one starts is
    not bound: it would end with that thread.
    """
    parent = os.getpid()
    bound = threading.current_thread() is threading.main_thread()

    def bind() -> None:
        if bound:
            follow_parent(parent, number)

    return bind


def follow_parent(parent: int | None = None, number: signal.Signals = signal.SIGTERM) -> None:
    """Send this process the signal when its parent ends; at once, if it has (`parent` is its pid)."""
    if _PRCTL is not None:
        _PRCTL(_PR_SET_PDEATHSIG, number)
        if parent is not None and os.getppid() != parent:
            os.kill(os.getpid(), number)
