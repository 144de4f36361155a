"""Pre-rank of the whole catalogue: the best 400 of a million items, one client.

A request names no candidates. Vectors are random unit vectors, of 32 numbers each.
"""

from __future__ import annotations

import numpy as np

from bench.serving.alone import RANK_CANDIDATES, latencies_ms, percentiles, visit_of
from bench.serving.process import serving
from bench.serving.published import publish
from livectr.client.clients import PreRankClient
from livectr.local.ports import free_ports
from livectr.local.valkey import LocalRedis

OUT = 32
GOALS_MS = {50: None, 99: 20.0}


def rows(quick: bool) -> list[dict[str, object]]:
    """p50 and p99 at the client, in ms."""
    items, users, requests = (100_000, 500, 60) if quick else (1_000_000, 2_000, 500)
    rng = np.random.default_rng(0)
    vectors = rng.standard_normal((items, OUT), np.float32)
    vectors /= np.linalg.norm(vectors, axis=1, keepdims=True)
    with LocalRedis(f"127.0.0.1:{free_ports(1)}") as server:
        url = f"{server.url}/0"
        publish(url, users, users, (np.arange(items), vectors))
        with serving("prerank", url) as address, PreRankClient(address) as client:

            def ask() -> object:
                return client.prerank(visit_of(int(rng.integers(users)), rng), None, RANK_CANDIDATES)

            times = latencies_ms(lambda: ask, requests)
    return percentiles(f"pre-rank {RANK_CANDIDATES} of all {items:,} items, {OUT}-d vectors", times, GOALS_MS)
