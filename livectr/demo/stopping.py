"""Stop signals of the demo."""

import signal
from collections.abc import Callable, Iterator
from contextlib import contextmanager


@contextmanager
def stoppable() -> Iterator[Callable[[], None]]:
    """Give a function that raises KeyboardInterrupt once Ctrl-C or SIGTERM has come.

    An exception out of a signal handler would be lost when it comes inside a fork's callbacks, so the demo
    asks between its steps.
    """
    signals: list[int] = []

    def check() -> None:
        if signals:
            raise KeyboardInterrupt

    before = {number: signal.getsignal(number) for number in (signal.SIGINT, signal.SIGTERM)}
    for number in before:
        signal.signal(number, lambda number, _: signals.append(number))
    try:
        yield check
    finally:
        for number, handler in before.items():
            signal.signal(number, handler)
