"""Waits of tests: for a condition, as long as the test itself may take, and no longer.

A busy machine is slow and right, so no wait has a limit of its own. Shortly before pytest-timeout ends the
test, a wait fails and says what it has waited for. A test that needs a time-out of the product to fire
shortens that, or its clock.
"""

from __future__ import annotations

import inspect
import time
from collections.abc import Callable, Iterable, Iterator
from contextlib import contextmanager
from typing import Protocol

import psutil

MARGIN = 0.03
"""Share of a test's limit that is left for its clean-up when a wait fails."""
USUAL_S = 1200.0
"""Limit outside of tests: a part of one that was started as a program."""
_ends: list[float] = []
"""time.monotonic() at which waits of the running test fail; processes on this machine share that clock."""


class Runs(Protocol):
    """Process that a wait needs."""

    def poll(self) -> int | None: ...


@contextmanager
def limited(seconds: float) -> Iterator[None]:
    """Run a test that may take so long; 0: without a limit."""
    _ends.append(time.monotonic() + (seconds or 86_400.0) * (1 - MARGIN))
    try:
        yield
    finally:
        _ends.pop()


def left_s() -> float:
    """Seconds until waits of the running test fail; 1 at least: for what takes a time-out itself."""
    return max(1.0, _ends[-1] - time.monotonic()) if _ends else USUAL_S


def until(
    done: Callable[[], object],
    what: str = "",
    *,
    process: Runs | None = None,
    why: Callable[[], object] = str,
    turn: Callable[[], object] = lambda: time.sleep(0.01),
) -> None:
    """Wait until `done()` is true.

    Args:
        what: is waited for; "": the text of `done`.
        process: fails the wait if it ends before.
        why: more to say if the wait fails, such as a log.
        turn: called between two looks.

    Raises:
        AssertionError: the test's time is over, or the process has ended.
    """
    began = time.monotonic()
    end = began + left_s()
    while not done():
        code = process.poll() if process is not None else None
        if code is not None and not done():  # it may have come with the end
            raise AssertionError(f"the process ended with {code} before {_told(what, done)}\n{why()}")
        if time.monotonic() >= end:
            waited_s = time.monotonic() - began
            raise AssertionError(f"waited {waited_s:.0f} s in vain for {_told(what, done)}\n{why()}")
        turn()


def alive(processes: Iterable[psutil.Process]) -> list[psutil.Process]:
    """Processes that have not ended; a zombie has, and an orphan is one until init looks."""
    found = []
    for process in processes:
        try:
            if process.is_running() and process.status() != psutil.STATUS_ZOMBIE:
                found.append(process)
        except psutil.NoSuchProcess:
            continue
    return found


def _told(what: str, done: Callable[[], object]) -> str:
    """Name of a condition, or its source."""
    if what:
        return what
    try:
        return inspect.getsource(done).strip()
    except (OSError, TypeError):  # no source: a partial, or a program given as text
        return repr(done)
