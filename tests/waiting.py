"""Waits of tests: for a condition, as long as the test itself may take, and no longer.

A busy machine is slow and right, so no wait has a limit of its own. Shortly before pytest-timeout ends the
test, a wait fails and says what it has waited for. A test that needs a time-out of the product to fire
shortens that, or its clock.
"""

from __future__ import annotations

import inspect
import math
import time
from collections.abc import Callable, Iterable, Iterator
from contextlib import contextmanager
from typing import TYPE_CHECKING, Protocol, TypeVar, cast

if TYPE_CHECKING:
    import psutil

MARGIN = 0.03
"""Share of a test's limit that is left for its clean-up when a wait fails."""
TRUE = object()
"""Default of `equals`: any value that is true."""
USUAL_S = 1200.0
"""Limit outside of tests: a part of one that was started as a program."""
_ends: list[float] = []
"""time.monotonic() at which waits of the running test fail; processes on this machine share that clock."""


T = TypeVar("T")


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
    done: Callable[[], T],
    what: str = "",
    *,
    equals: object = TRUE,
    patience_s: float = math.inf,
    despite: type[Exception] | tuple[type[Exception], ...] = (),
    process: Runs | None = None,
    why: Callable[[], object] = str,
    turn: Callable[[], object] = lambda: time.sleep(0.01),
) -> T:
    """Wait until `done()` is true, and return its value.

    Args:
        what: is waited for; "": the text of `done`.
        equals: wait until `done()` equals this, in place of being true.
        patience_s: shorter limit of this wait, for a promise of the product or of a cluster.
        despite: errors of `done` that mean not yet.
        process: fails the wait if it ends before.
        why: more to say if the wait fails, such as a log.
        turn: called between two looks.

    Raises:
        AssertionError: the test's time or the patience is over, or the process has ended. It says what was
            seen last.
    """

    def look() -> tuple[bool, T | Exception]:
        try:
            seen = done()
        except despite as error:
            return False, error
        return bool(seen if equals is TRUE else seen == equals), seen

    began = time.monotonic()
    end = began + min(left_s(), patience_s)
    while True:
        code = process.poll() if process is not None else None  # before the look: it may come with the end
        met, seen = look()
        if met:
            return cast("T", seen)
        if code is not None or time.monotonic() >= end:
            waited = f"waited {time.monotonic() - began:.0f} s in vain for"
            failed = waited if code is None else f"the process ended with {code} before"
            raise AssertionError(f"{failed} {_told(what, done)}; last seen: {seen!r}\n{why()}")
        turn()


def alive(processes: Iterable[psutil.Process]) -> list[psutil.Process]:
    """Processes that have not ended; a zombie has, and an orphan is one until init looks."""
    import psutil  # the kit's machine has none, and its tests wait for no process

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
