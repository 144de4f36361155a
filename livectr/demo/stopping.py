"""Stop signals of the demo."""

import signal
from collections.abc import Callable, Iterator
from contextlib import contextmanager

from livectr.system.signals import kept_handlers


@contextmanager
def stoppable() -> Iterator[Callable[[], None]]:
    """Give a function that raises KeyboardInterrupt once Ctrl-C or SIGTERM has come.

    An exception out of a signal handler would be lost when it comes inside a callback of the interpreter, so
    the demo asks between its steps.
    """
    signals: list[int] = []

    def check() -> None:
        if signals:
            raise KeyboardInterrupt

    with kept_handlers():
        for number in (signal.SIGINT, signal.SIGTERM):
            signal.signal(number, lambda number, _: signals.append(number))
        yield check
