"""Clients of the mixed load: 200 connections in a process, each with a request at a time.

    python -m bench.mixed_load.clients ADDRESS SECONDS REQUESTS_PER_S

prints a JSON object: replies by method and code, versions by the time they were seen, milliseconds.
"""

from __future__ import annotations

import json
import random
import sys
import threading
import time
from collections import Counter
from concurrent.futures import ThreadPoolExecutor
from typing import Any

import grpc
import numpy as np

from livectr.client.clients import PreRankClient, RankClient, RecommendClient, RecommendItems
from livectr.simulator.records import CONTEXTS, QUERIES
from livectr.simulator.truth import PAGES, POSITIONS, SEARCH

CONNECTIONS, THREADS, USERS, ADS = 200, 32, 2_000, 200
TIMEOUT_S = 2.0
SEARCHES = [text for text in QUERIES if text]


class Everyone(RankClient, PreRankClient, RecommendClient):
    """A client of a server that offers every method."""


class Load:
    """Paced requests over all connections, from a pool of threads."""

    def __init__(self, address: str, seed: int = 1) -> None:
        self._client = Everyone(address, TIMEOUT_S, channels=CONNECTIONS)
        self._pick = random.Random(seed)
        self._lock = threading.Lock()
        self.codes: Counter[str] = Counter()
        self.milliseconds: list[float] = []
        self.degraded = 0
        self._wanted = {column.name for column in self._client.describe(timeout_s=10.0).columns}

    def run(self, seconds: float, per_second: float) -> None:
        """Ask for some seconds; a request that finds no free thread waits for one."""
        started, i = time.monotonic(), 0
        with ThreadPoolExecutor(THREADS) as pool:
            while (now := time.monotonic()) < started + seconds:
                if now < started + i / per_second:
                    time.sleep(started + i / per_second - now)
                pool.submit(self._one, self._request(i))
                i += 1

    def _request(self, i: int) -> tuple[str, dict[str, Any], list[int]]:
        pick = self._pick
        page = pick.choice(PAGES)
        visit = {
            "user_id": pick.randint(1, USERS),
            "context": pick.choice(CONTEXTS),
            "page": page,
            "query": pick.choice(SEARCHES) if page == PAGES[SEARCH] else "",
            "position": pick.randrange(POSITIONS),
        }
        method = ("rank", "rank", "rank", "prerank", "recommend")[i % 5]
        return method, visit, pick.sample(range(1, ADS + 1), 150)

    def _one(self, request: tuple[str, dict[str, Any], list[int]]) -> None:
        method, visit, ads = request
        visit = {name: value for name, value in visit.items() if name in self._wanted}
        before = time.perf_counter()
        try:
            if method == "rank":
                answer: Any = self._client.rank(visit, {"ad_id": ads})
            elif method == "prerank":
                del visit["position"]
                answer = self._client.prerank(visit, None, 100)
            else:
                answer = self._client.recommend(visit, 10, 100, items=RecommendItems(excluded=ads[:5]))
            code, degraded = "OK", bool(answer.degraded)
        except grpc.RpcError as error:
            code, degraded = error.code().name, False
        except Exception as error:  # counted as an error that nobody expects
            code, degraded = repr(error), False
        took = (time.perf_counter() - before) * 1000
        with self._lock:
            self.codes[f"{method} {code}"] += 1
            self.degraded += degraded
            if code == "OK":
                self.milliseconds.append(took)


def _main(address: str, seconds: str, per_second: str) -> None:
    load = Load(address)
    print("ready", flush=True)
    load.run(float(seconds), float(per_second))
    p50, p99 = np.percentile(load.milliseconds, [50, 99]) if load.milliseconds else (None, None)
    print(json.dumps({"codes": load.codes, "degraded": load.degraded, "p50_ms": p50, "p99_ms": p99}))


if __name__ == "__main__":
    _main(*sys.argv[1:])
