"""Latency of both servers with features: one client on loopback, real processes and Redis, random rows.

The catalogue is larger than a request, so that its ads change from request to request. The clock starts when
the client packs the request and stops when it has the parsed reply.
"""

from __future__ import annotations

import time
from collections.abc import Callable
from typing import Any

import numpy as np
import numpy.typing as npt

from bench.serving.pipeline import pipeline
from bench.serving.process import serving
from bench.serving.published import NOW_MS, publish
from livectr.local.ports import free_ports
from livectr.local.valkey import LocalRedis
from livectr.serving.client import PreRankClient, RankClient

RANK_CANDIDATES = 400
PRERANK_CANDIDATES = 4_000
RANK_GOAL_MS = 20.0
PRERANK_GOAL_MS = 10.0

F64 = npt.NDArray[np.float64]


def rows(quick: bool) -> list[dict[str, object]]:
    """p50 and p99 of rank (400 candidates) and pre-rank (4,000), in ms at the client."""
    requests = 150 if quick else 2_000
    users, ads = (500, 5_000) if quick else (20_000, 20_000)
    with LocalRedis(f"127.0.0.1:{free_ports(1)}") as server:
        url = f"{server.url}/0"
        publish(url, users, ads)
        rng = np.random.default_rng(0)

        def context() -> dict[str, Any]:
            return {
                "user_id": int(rng.integers(users)),
                "ts": NOW_MS + int(rng.integers(86_400_000)),
                "query": "red winter Shoes",
                "device": "phone",
                "site": "news",
            }

        def ask_rank(client: RankClient) -> Callable[[], object]:
            chosen = rng.choice(ads, RANK_CANDIDATES, replace=False).tolist()
            visit, bids = {**context(), "position": 1}, rng.random(RANK_CANDIDATES).tolist()
            return lambda: client.rank(visit, {"ad_id": chosen}, bids)

        def ask_prerank(client: PreRankClient) -> Callable[[], object]:
            chosen = rng.choice(ads, PRERANK_CANDIDATES, replace=False).tolist()
            visit = context()
            return lambda: client.prerank(visit, chosen, RANK_CANDIDATES)

        with serving("rank", url) as address, RankClient(address) as ranks:
            ranked = latencies_ms(lambda: ask_rank(ranks), requests)
        with serving("prerank", url) as address, PreRankClient(address) as towers:
            preranked = latencies_ms(lambda: ask_prerank(towers), requests)
    fields = len(pipeline.fields)
    return [
        *_rows(
            f"rank {RANK_CANDIDATES} of {ads:,} ads, {fields} fields, DeepFM 256-128", ranked, RANK_GOAL_MS
        ),
        *_rows(f"pre-rank {PRERANK_CANDIDATES:,} of {ads:,} ads, 32-d vectors", preranked, PRERANK_GOAL_MS),
    ]


def _rows(workload: str, times_ms: F64, goal_ms: float) -> list[dict[str, object]]:
    found = []
    for percent, goal in ((50, None), (99, goal_ms)):
        ours = float(np.percentile(times_ms, percent))
        found.append(
            {
                "figure": f"p{percent} latency, one client",
                "workload": workload,
                "unit": "ms",
                "ours": ours,
                "peer_name": None,
                "peer": None,
                "ratio": None,
                "goal": goal,
                "met": None if goal is None else ours < goal,
            }
        )
    return found


def latencies_ms(prepare: Callable[[], Callable[[], object]], requests: int) -> F64:
    """Milliseconds of each prepared call, after a tenth as many that warm the server up."""
    times = np.empty(requests)
    for i in range(-requests // 10, requests):
        call = prepare()
        started = time.perf_counter()
        call()
        if i >= 0:
            times[i] = (time.perf_counter() - started) * 1000
    return times
