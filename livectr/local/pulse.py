"""Probes of a supervisor: its main loop must turn, whatever its ranks, the log and the other nodes do."""

from __future__ import annotations

import threading
import time

from livectr.serving.options import check_address
from livectr.serving.probes import Probe, ProbeServer

STILL_S = 60.0


class Pulse:
    """Health service (`livectr.serving.probes`) that is SERVING while `beat` is called.

    Startup and readiness follow the loop, too: a rolling update replaces one node after the other, and must
    not wait until all of them train together.

    Args:
        listen: HOST:PORT.
        still_s: time without a beat after which nothing is SERVING any more.

    Raises:
        ConfigError: the address cannot be listened on.
    """

    def __init__(self, listen: str, still_s: float = STILL_S) -> None:
        check_address("health_listen", listen)
        self._still_s = still_s
        self._beat_s = time.monotonic()
        self._closed = threading.Event()
        self._probes = ProbeServer(listen)
        self._thread = threading.Thread(target=self._watch, name="pulse", daemon=True)
        self._set(True)
        self._thread.start()

    def beat(self) -> None:
        """Give a sign of life."""
        self._beat_s = time.monotonic()

    def close(self) -> None:
        """Answer no longer."""
        self._closed.set()
        self._thread.join()
        self._probes.close()

    def _watch(self) -> None:
        alive = True
        while not self._closed.wait(self._still_s / 20):
            now = time.monotonic() - self._beat_s < self._still_s
            if now != alive:
                alive = now
                self._set(alive)

    def _set(self, alive: bool) -> None:
        for probe in Probe:
            self._probes.set(probe, alive)
