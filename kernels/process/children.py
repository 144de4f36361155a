"""Child processes that do not outlive the process that started them."""

from __future__ import annotations

import ctypes
import os
import signal
import threading
from collections.abc import Callable

_PR_SET_PDEATHSIG = 1  # linux/prctl.h
_PRCTL = getattr(ctypes.CDLL(None), "prctl", None)  # resolved here: a fresh fork should do little


def die_with_parent(number: signal.Signals = signal.SIGTERM) -> Callable[[], None]:
    """Parent-death signal (prctl) as a `preexec_fn` of subprocess.Popen: the child gets it when its parent
    ends.

    The kernel's parent is the *thread* that forks. A child that is started from another thread than the main
    thread is therefore not bound: it would end with that thread.

    Args:
        number: signal that the child gets.
    """
    parent = os.getpid()
    bound = threading.current_thread() is threading.main_thread()

    def bind() -> None:
        if bound:
            follow_parent(parent, number)

    return bind


def follow_parent(parent: int | None = None, number: signal.Signals = signal.SIGTERM) -> None:
    """Sends this process a signal when its parent ends.

    Args:
        parent: pid of the parent; if it has ended already, the signal comes at once.
        number: the signal.
    """
    if _PRCTL is not None:
        _PRCTL(_PR_SET_PDEATHSIG, number)
        if parent is not None and os.getppid() != parent:
            os.kill(os.getpid(), number)
