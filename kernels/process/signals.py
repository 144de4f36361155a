"""Signals before a process has begun its work."""

from __future__ import annotations

import os
import signal
import threading
from types import FrameType


def end_at_sigterm() -> None:
    """End the process with exit code 0 at SIGTERM, until another handler is installed. Main thread only.

    The kernel drops signals without a handler that are sent to process 1 of a container. So a pod that is
    still importing would be killed after its whole grace time.
    """
    if threading.current_thread() is threading.main_thread():
        signal.signal(signal.SIGTERM, _end)


def _end(number: int, frame: FrameType | None) -> None:
    # SystemExit could be caught by an import that falls back on any error.
    os._exit(0)
