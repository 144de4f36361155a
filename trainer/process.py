"""A process's surroundings: signals that end it, its Prometheus endpoint, how it shares cores."""

import os
import signal
import threading
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from types import FrameType

import prometheus_client

from livectr.kernels.errors import ConfigError


def share_cores() -> None:
    """OpenMP threads that wait for work sleep. Takes effect before torch is first imported only.

    By default they spin for milliseconds, on the cores that the tables' threads and the readers need. Where
    OMP_WAIT_POLICY is set, that holds.
    """
    os.environ.setdefault("OMP_WAIT_POLICY", "PASSIVE")


@contextmanager
def stop_signals() -> Iterator[Callable[[], bool]]:
    """SIGTERM and SIGINT set a flag while this is open; a second SIGINT interrupts. Main thread only."""
    asked = threading.Event()
    if threading.current_thread() is not threading.main_thread():
        yield asked.is_set
        return
    before = {number: signal.getsignal(number) for number in (signal.SIGTERM, signal.SIGINT)}

    def ask(number: int, frame: FrameType | None) -> None:
        if asked.is_set() and number == signal.SIGINT:
            raise KeyboardInterrupt
        asked.set()

    for number in before:
        signal.signal(number, ask)
    try:
        yield asked.is_set
    finally:
        for number, handler in before.items():
            signal.signal(number, handler)


@contextmanager
def metrics_server(port: int, address: str) -> Iterator[None]:
    """Answer Prometheus at `port` of `address`. Raises ConfigError when it is taken."""
    try:
        server, thread = prometheus_client.start_http_server(port, address)
    except OSError as error:
        raise ConfigError(
            f"metrics port {port} of {address} cannot be used ({error}); choose another one"
        ) from None
    try:
        yield
    finally:
        server.shutdown()
        server.server_close()
        thread.join()
