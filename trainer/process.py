"""Process: signals that end it, its share of the cores."""

import os
import signal
import threading
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from types import FrameType

from livectr.system.signals import SignalEvent, kept_handlers


def share_cores() -> None:
    """Let OpenMP threads sleep while they wait for work. Call it before torch is first imported.

    By default they spin for milliseconds, on the cores that the tables' threads and the readers need. An
    OMP_WAIT_POLICY in the environment has precedence.
    """
    os.environ.setdefault("OMP_WAIT_POLICY", "PASSIVE")


def local_rank() -> int:
    """Number of this rank on its machine."""
    return int(os.environ.get("LOCAL_RANK", os.environ.get("RANK", 0)))


@contextmanager
def stop_signals(heard: Callable[[int], None] = lambda number: None) -> Iterator[Callable[[], bool]]:
    """Let SIGTERM and SIGINT set a flag while this is open; a second SIGINT interrupts. Main thread only.

    Args:
        heard: called by the handler with the signal's number.

    Yields:
        Function that tells if a signal has come.
    """
    stop_requested = SignalEvent()
    if threading.current_thread() is not threading.main_thread():
        yield stop_requested.is_set
        return

    def ask(number: int, frame: FrameType | None) -> None:
        if stop_requested.is_set() and number == signal.SIGINT:
            raise KeyboardInterrupt
        heard(number)
        stop_requested.set()

    with kept_handlers():
        signal.signal(signal.SIGTERM, ask)
        signal.signal(signal.SIGINT, ask)
        yield stop_requested.is_set
