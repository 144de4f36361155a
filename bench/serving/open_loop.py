"""Most requests a second at p99 ≤ 20 ms in an open loop: arrivals do not wait for replies.

    python -m bench.serving.open_loop

is a client. For each line [address, requests a second, seconds, seed] it prints p99 in ms, NaN if a request
failed. Requests arrive by a Poisson process. A request's time counts from its intended arrival, so that a
server which stalls is charged for all who came meanwhile.

The rate is found by bisection, contestants in turn (A B A B). Both have two workers; the client takes a part
of the same cores.
"""

from __future__ import annotations

import gc
import json
import math
import sys
import threading
import time
from collections.abc import Mapping
from typing import Any

import grpc
import numpy as np

from bench.serving.process import talking
from bench.serving.requests import requests

LIMIT_MS = 20.0
CHANNELS = 16
"""Connections; the kernel spreads them over the workers."""
TIMEOUT_S = 1.0
FIRST_RATE = 200.0
METHOD = "/livectr.v1.Rank/Rank"


class Search:
    """Bisection for the greatest rate that a server sustains.

    Attributes:
        rate: to be tried next, in requests a second.
        best: the greatest rate that was sustained; 0: none.
    """

    def __init__(self, first: float) -> None:
        self.rate, self.best = first, 0.0
        self._least_failed = math.inf

    def tell(self, sustained: bool) -> None:
        """Take the outcome of `rate`, and choose the next: twice or half of it until both sides are known."""
        if sustained:
            self.best = max(self.best, self.rate)
        else:
            self._least_failed = min(self._least_failed, self.rate)
        if not self.best:
            self.rate = self._least_failed / 2
        elif self._least_failed == math.inf:
            self.rate = self.best * 2
        else:
            self.rate = (self.best + self._least_failed) / 2


def most(addresses: Mapping[str, str], quick: bool) -> dict[str, float]:
    """Name → the greatest rate at p99 ≤ LIMIT_MS; 0: even the least that was tried is too much."""
    trials, seconds = (4, 0.5) if quick else (9, 4.0)
    searches = {name: Search(FIRST_RATE) for name in addresses}
    with talking([sys.executable, "-m", "bench.serving.open_loop"]) as client:
        assert client.stdin is not None and client.stdout is not None
        for seed in range(trials):
            for name, address in addresses.items():
                client.stdin.write(json.dumps([address, searches[name].rate, seconds, seed]) + "\n")
                client.stdin.flush()
                searches[name].tell(json.loads(client.stdout.readline()) <= LIMIT_MS)
    return {name: search.best for name, search in searches.items()}


class _Load:
    """Requests under way, and milliseconds of those that are done."""

    def __init__(self, address: str) -> None:
        options = [("grpc.use_local_subchannel_pool", 1)]
        self._channels = [grpc.insecure_channel(address, options) for _ in range(CHANNELS)]
        for channel in self._channels:
            grpc.channel_ready_future(channel).result(timeout=10)
        # Messages are packed before and not parsed: a client has the cores that servers need.
        self._calls = [channel.unary_unary(METHOD) for channel in self._channels]
        self._left = threading.Semaphore(0)
        self.ms: list[float] = []
        self.failed = 0

    def ask(self, i: int, message: bytes, due: float) -> None:
        """Send a request that was due at an instant of time.perf_counter()."""

        def done(reply: Any) -> None:
            self.ms.append((time.perf_counter() - due) * 1000)
            self.failed += reply.code() is not grpc.StatusCode.OK
            self._left.release()

        self._calls[i % CHANNELS].future(message, timeout=TIMEOUT_S).add_done_callback(done)

    def close(self) -> None:
        """Close the connections."""
        for channel in self._channels:
            channel.close()

    def wait(self, count: int) -> None:
        """Wait until so many requests are done."""
        for _ in range(count):
            self._left.acquire()


def p99_ms(address: str, rate: float, seconds: float, seed: int) -> float:
    """p99 of a server at a rate; NaN if a request failed."""
    load = _Load(address)
    messages = [request.message().SerializeToString() for request in requests(200, seed + 500)]
    for i in range(2 * CHANNELS):
        load.ask(i, messages[i], time.perf_counter())
    load.wait(2 * CHANNELS)
    load.ms.clear()
    gaps = np.random.default_rng(seed).exponential(1 / rate, max(1, round(rate * seconds)))
    due = time.perf_counter() + 0.01
    for i, gap in enumerate(gaps.tolist()):
        due += gap
        if (early := due - time.perf_counter()) > 0:
            time.sleep(early)
        load.ask(i, messages[i % len(messages)], due)
    load.wait(len(gaps))
    load.close()
    return math.nan if load.failed else float(np.percentile(load.ms, 99))


if __name__ == "__main__":
    print("ready on stdin", flush=True)
    gc.freeze()
    for line in sys.stdin:
        print(json.dumps(p99_ms(*json.loads(line))), flush=True)
