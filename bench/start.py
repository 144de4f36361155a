"""Cold start of the servers: from the start of the process to its first answer, a million rows published.

A server loads the dense model, and a pre-rank server the vectors of all ads, too. It reads embedding rows
when a request asks for them. The check of the settings, which a pod runs first, is measured beside.
"""

from __future__ import annotations

import statistics
import subprocess
import sys
import time
from collections.abc import Callable

from bench.serving.process import ROOT, serving
from bench.serving.published import NOW_MS, publish
from livectr.local.ports import free_ports
from livectr.local.valkey import LocalRedis
from livectr.serving.client import PreRankClient, RankClient

GOAL_S = 15.0
STARTS = 3
PIPELINE = "bench/serving/pipeline.py"


def run(quick: bool = False) -> list[dict[str, object]]:
    """Seconds to the first answer of a rank and of a pre-rank server, and of the check before: medians."""
    users, ads = (5_000, 5_000) if quick else (500_000, 500_000)
    visit = {"user_id": 7, "ts": NOW_MS, "query": "red winter Shoes", "device": "phone", "site": "news"}
    chosen = list(range(100))
    with LocalRedis(f"127.0.0.1:{free_ports(1)}") as server:
        url = f"{server.url}/0"
        publish(url, users, ads)

        def rank() -> float:
            with serving("rank", url) as address, RankClient(address) as client:
                client.rank({**visit, "position": 1}, {"ad_id": chosen})
                return time.monotonic()

        def prerank() -> float:
            with serving("prerank", url) as address, PreRankClient(address) as client:
                client.prerank(visit, chosen, 10)
                return time.monotonic()

        workload = f"{users + ads:,} rows published"
        return [
            _row("settings checked", f"{workload}, livectr inspect", None, _check),
            _row("first answer of a rank server", workload, GOAL_S, rank),
            _row(f"first answer of a pre-rank server, {ads:,} ads", workload, GOAL_S, prerank),
        ]


def _check() -> float:
    subprocess.run(
        [sys.executable, "-m", "livectr", "inspect", "--pipeline", PIPELINE],
        cwd=ROOT, check=True, stdout=subprocess.DEVNULL,
    )  # fmt: skip
    return time.monotonic()


def _row(figure: str, workload: str, goal_s: float | None, start: Callable[[], float]) -> dict[str, object]:
    """Row of a figure; `start` returns the instant of the answer, before it ends the server."""
    seconds = []
    for _ in range(STARTS):
        began = time.monotonic()
        seconds.append(start() - began)
    ours = statistics.median(seconds)
    met = None if goal_s is None else ours < goal_s
    return {"figure": figure, "workload": workload, "unit": "s", "ours": ours, "goal": goal_s, "met": met}
