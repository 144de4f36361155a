"""Clients of the demo: each visit pre-ranks the whole catalogue, then ranks the chosen ads.

    python -m livectr.demo.load --rank HOST:PORT --prerank HOST:PORT --per-second 20

writes a JSON line of counts and latencies about every second, and the last line at SIGTERM. Every reply is
checked: the requested number of results, their order, finite numbers. An answer that is older than one before
is counted apart: a single server must give none, but several servers take a version at times of their own.
"""

import argparse
import json
import math
import random
import signal
import sys
import time
from collections.abc import Callable, Sequence
from dataclasses import dataclass, field
from itertools import pairwise
from typing import Any

import grpc
import numpy as np

from livectr.client.clients import PreRankClient, RankClient
from livectr.simulator.records import CONTEXTS, QUERIES
from livectr.simulator.truth import PAGES, POSITIONS, SEARCH

TIMEOUT_S = 5.0
SEARCHES = [text for text in QUERIES if text]
COLD_CANDIDATES = 20  # ads that nobody has heard of, in every rank request


@dataclass
class Role:
    """Requests to a server, and its replies."""

    requests: int = 0
    candidates: int = 0
    errors: int = 0
    older: int = 0
    """Answers of an older version than one before."""
    version: int = 0
    last_error: str = ""
    seconds: list[float] = field(default_factory=list)

    def summary(self) -> dict[str, Any]:
        """Counts, and latencies at the client in milliseconds (None before the first answer)."""
        p50, p99 = np.percentile(self.seconds, [50, 99]) * 1000 if self.seconds else (None, None)
        return {
            "requests": self.requests,
            "candidates": self.candidates,
            "errors": self.errors,
            "older": self.older,
            "p50_ms": p50 and round(float(p50), 3),
            "p99_ms": p99 and round(float(p99), 3),
            "version": self.version,
            "last_error": self.last_error,
        }


class Clients:
    """Client of each server. A request holds the columns of a visit that the server requires."""

    def __init__(
        self,
        rank: str,
        prerank: str,
        users: int,
        seed: int,
        *,
        timeout_s: float = TIMEOUT_S,
        wait_s: float = 0.0,
    ) -> None:
        self.roles = {"rank": Role(), "prerank": Role()}
        self._users = users
        self._random = random.Random(seed)
        self._rank, self._prerank = RankClient(rank, timeout_s), PreRankClient(prerank, timeout_s)
        self._asks = {
            "rank": {column.name for column in _described(self._rank, wait_s).columns},
            "prerank": {column.name for column in _described(self._prerank, wait_s).columns},
        }

    def visit(self) -> None:
        """Page view: pre-rank all ads, then rank the chosen ads."""
        pick = self._random
        page = pick.choice(PAGES)
        visit = {
            "user_id": pick.randint(1, self._users + self._users // 20),  # every 20th user is unknown
            "context": pick.choice(CONTEXTS),
            "page": page,
            "query": pick.choice(SEARCHES) if page == PAGES[SEARCH] else "",
            "position": pick.randrange(POSITIONS),
        }
        context = {role: {k: v for k, v in visit.items() if k in asks} for role, asks in self._asks.items()}
        wanted = pick.randint(100, 400)
        chosen = self._ask("prerank", lambda: self._prerank.prerank(context["prerank"], None, wanted))
        ads = list(chosen.ids.values) if chosen else []
        self.roles["prerank"].candidates += len(ads)
        if chosen:
            self._check("prerank", chosen.score, len(set(ads)) == len(ads) == len(chosen.score) <= wanted)
        ads += [10**9 + pick.randrange(10**6) for _ in range(COLD_CANDIDATES)]
        bids = [round(pick.uniform(0.1, 2), 2) for _ in ads]
        ranked = self._ask("rank", lambda: self._rank.rank(context["rank"], {"ad_id": ads}, bids))
        self.roles["rank"].candidates += len(ads)
        if ranked:
            whole = sorted(ranked.index) == list(range(len(ads)))
            self._check("rank", ranked.ecpm, whole and all(0 < p < 1 for p in ranked.pctr))

    def _ask(self, name: str, call: Callable[[], Any]) -> Any:
        role = self.roles[name]
        role.requests += 1
        began = time.perf_counter()
        try:
            answer = call()
        except grpc.RpcError as error:
            role.errors += 1
            role.last_error = f"{error.code().name}: {error.details()}"
            return None
        role.seconds.append(time.perf_counter() - began)
        role.older += answer.version < role.version
        role.version = max(role.version, answer.version)
        return answer

    def _check(self, name: str, values: Sequence[float], sound: bool) -> None:
        """`values` come best first."""
        falling = all(a >= b for a, b in pairwise(values))
        if not (sound and falling and all(map(math.isfinite, values))):
            self.roles[name].errors += 1
            self.roles[name].last_error = "an answer that is not in order, complete and finite"

    def summary(self) -> dict[str, Any]:
        """Counts and latencies of each role: see `Role.summary`."""
        return {name: role.summary() for name, role in self.roles.items()}


def _described(client: RankClient | PreRankClient, wait_s: float) -> Any:
    """Description of a server, which may start later than its client: by at most `wait_s` seconds."""
    end = time.monotonic() + wait_s
    while True:
        try:
            return client.describe()
        except grpc.RpcError as error:
            if error.code() != grpc.StatusCode.UNAVAILABLE or time.monotonic() > end:
                raise
            time.sleep(0.5)


def main() -> int:
    """Run the load that the command line describes, until it is told to stop."""
    parser = argparse.ArgumentParser(
        description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter
    )
    parser.add_argument("--rank", required=True)
    parser.add_argument("--prerank", required=True)
    parser.add_argument("--per-second", type=float, default=20.0)
    parser.add_argument("--users", type=int, default=2000)
    parser.add_argument("--seed", type=int, default=1)
    parser.add_argument("--timeout-s", type=float, default=TIMEOUT_S, help="deadline of a request")
    parser.add_argument("--start-wait-s", type=float, default=0.0, help="wait this long for the servers")
    given = parser.parse_args()
    stopping: list[int] = []
    signal.signal(signal.SIGTERM, lambda number, _: stopping.append(number))
    clients = Clients(
        given.rank, given.prerank, given.users, given.seed,
        timeout_s=given.timeout_s, wait_s=given.start_wait_s,
    )  # fmt: skip
    due = reported = time.monotonic()
    while not stopping:
        clients.visit()
        due += 1 / given.per_second
        if time.monotonic() - reported >= 1:
            reported = time.monotonic()
            print(json.dumps(clients.summary()), flush=True)
        time.sleep(max(0.0, due - time.monotonic()))
        due = max(due, time.monotonic() - 1)  # after a pause, do not catch up with a burst
    print(json.dumps(clients.summary()), flush=True)
    return 0


if __name__ == "__main__":
    sys.exit(main())
