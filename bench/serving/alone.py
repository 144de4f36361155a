"""Latency of both servers with features: one client on loopback, real processes and Redis, random rows.

The catalogue is larger than a request, so that its ads change from request to request. The clock starts when
the client packs the request and stops when it has the parsed reply.
"""

from __future__ import annotations

import time
from collections.abc import Callable, Mapping
from typing import Any

import numpy as np
import numpy.typing as npt

from bench.rows import bounded, row
from bench.serving.pipeline import pipeline
from bench.serving.process import serving
from bench.serving.published import NOW_MS, publish
from livectr.client.clients import PreRankClient, RankClient
from livectr.local.ports import free_ports
from livectr.local.valkey import LocalRedis
from livectr.protos import livectr_pb2 as pb

RANK_CANDIDATES = 400
PRERANK_CANDIDATES = 4_000
RANK_GOALS_MS = {50: None, 99: 20.0}
PRERANK_GOAL = 2.5
"""Least ratio of rank's median to pre-rank's."""

F64 = npt.NDArray[np.float64]


def rows(quick: bool) -> list[dict[str, object]]:
    """p50 and p99 of rank (400 candidates) and pre-rank (4,000), in ms at the client."""
    requests = 150 if quick else 2_000
    users, ads = (500, 5_000) if quick else (20_000, 20_000)
    with LocalRedis(f"127.0.0.1:{free_ports(1)}") as server:
        url = f"{server.url}/0"
        publish(url, users, ads)
        rng = np.random.default_rng(0)

        def ask_prerank(client: PreRankClient) -> Callable[[], object]:
            chosen = rng.choice(ads, PRERANK_CANDIDATES, replace=False).tolist()
            visit = visit_of(int(rng.integers(users)), rng)
            return lambda: client.prerank(visit, chosen, RANK_CANDIDATES)

        with serving("rank", url) as address, RankClient(address) as ranks:
            ranked = latencies_ms(lambda: rank_call(ranks, users, ads, rng), requests)
        with serving("prerank", url) as address, PreRankClient(address) as towers:
            preranked = latencies_ms(lambda: ask_prerank(towers), requests)
    fields = len(pipeline.fields)
    return [
        *percentiles(
            f"rank {RANK_CANDIDATES} of {ads:,} ads, {fields} fields, DeepFM 256-128", ranked, RANK_GOALS_MS
        ),
        *(
            row(f"p{p} latency, one client", f"pre-rank {PRERANK_CANDIDATES:,} of {ads:,} ads, 32-d vectors",
                "ms", float(np.percentile(preranked, p)), peer_name="rank",
                peer=float(np.percentile(ranked, p)), better="less", goal=goal)
            for p, goal in ((50, PRERANK_GOAL), (99, None))
        ),
    ]  # fmt: skip


def visit_of(user: int, rng: np.random.Generator) -> dict[str, Any]:
    """Context of a request: a user's visit at some time of a day."""
    return {
        "user_id": user,
        "ts": NOW_MS + int(rng.integers(86_400_000)),
        "query": "red winter Shoes",
        "device": "phone",
        "site": "news",
    }


def rank_call(
    client: RankClient, users: int, ads: int, rng: np.random.Generator
) -> Callable[[], pb.RankResponse]:
    """Call that ranks different ads for a user, both drawn at random."""
    chosen = rng.choice(ads, RANK_CANDIDATES, replace=False).tolist()
    visit, bids = (
        {**visit_of(int(rng.integers(users)), rng), "position": 1},
        rng.random(RANK_CANDIDATES).tolist(),
    )
    return lambda: client.rank(visit, {"ad_id": chosen}, bids)


def percentiles(
    workload: str, times_ms: F64, goals_ms: Mapping[int, float | None]
) -> list[dict[str, object]]:
    """A row for each percentile; goals_ms: percent → most milliseconds."""
    return [
        bounded(f"p{p} latency, one client", workload, "ms", float(np.percentile(times_ms, p)), goal=goal)
        for p, goal in goals_ms.items()
    ]


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
