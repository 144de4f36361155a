"""Seconds of a call."""

import time
from collections.abc import Callable


def timed(work: Callable[[], object]) -> float:
    """Seconds by the wall clock."""
    start = time.perf_counter()
    work()
    return time.perf_counter() - start
