"""Memory of one more rank worker: its private pages, with the demo's pipeline and sizes.

The version is of the demo: simulated traffic, trained and published. The figure is the unique set size of one
of two workers of `livectr serve rank` after its warm-up. The tables say which step of a worker's start took
it, and what kind of page it is.
"""

from __future__ import annotations

import itertools
import json
import subprocess
import sys
import tempfile
from collections.abc import Iterator
from concurrent.futures import ThreadPoolExecutor
from contextlib import ExitStack, contextmanager
from pathlib import Path
from typing import Any

import numpy as np

from bench.rows import bounded
from bench.serving.private_pages import KINDS, private_mib
from bench.serving.process import ROOT, started, talking
from livectr.local.parts import descendants
from livectr.local.ports import free_ports
from livectr.local.valkey import LocalRedis
from livectr.serving.client import RankClient
from livectr.simulator.records import CONTEXTS
from livectr.simulator.truth import PAGES, POSITIONS

PIPELINE = "examples/display_ads/pipeline.py"
USERS, ADS, CANDIDATES, CONNECTIONS = 2_000, 500, 400, 8
GOAL_MIB = 150.0


def result(quick: bool) -> tuple[list[dict[str, object]], list[dict[str, object]]]:
    """Row, and tables of steps and kinds."""
    requests = 100 if quick else 2_000
    with demo_version(10 if quick else 60) as url:
        measured = _steps(url, requests)
        worker = _worker(url, requests)
    workload = f"rank worker of two, {PIPELINE}, {USERS:,} users, after {requests:,} requests"
    row = bounded("private memory of one more worker", workload, "MiB", sum(worker.values()), goal=GOAL_MIB)
    before = dict.fromkeys(KINDS, 0.0)
    lines = [["step", "MiB", *KINDS]]
    for name, kinds in [*measured, ("all", measured[-1][1])]:
        since = before if name != "all" else dict.fromkeys(KINDS, 0.0)
        more = [kinds[kind] - since[kind] for kind in KINDS]
        lines.append([name, *(f"{mib:.1f}" for mib in (sum(more), *more))])
        before = kinds
    return [row], [{"title": "Private memory of a rank worker, MiB that each step adds", "lines": lines}]


@contextmanager
def demo_version(seconds: int) -> Iterator[str]:
    """URL of Redis with the last version of a trainer that learned from some seconds of traffic."""
    with ExitStack() as stack:
        folder = Path(stack.enter_context(tempfile.TemporaryDirectory(prefix="livectr-bench-")))
        server = stack.enter_context(LocalRedis(f"127.0.0.1:{free_ports(1)}"))
        url, log = f"{server.url}/0", f"file:{folder / 'logs'}"
        sizes = ["--users", str(USERS), "--ads", str(ADS), "--seconds", str(seconds)]
        _livectr("simulate", "--to", log, "--fast", *sizes)
        _livectr("train", "--pipeline", PIPELINE, "--source", log, "--until-end", "--publish", url)
        yield url


def _livectr(*words: str) -> None:
    command = [sys.executable, "-m", "livectr", *words]
    subprocess.run(command, cwd=ROOT, check=True, stdout=subprocess.DEVNULL, stderr=subprocess.DEVNULL)


def _worker(url: str, requests: int) -> dict[str, float]:
    """MiB of a worker of a real server, by kind."""
    command = [sys.executable, "-m", "livectr", "serve", "rank", "--pipeline", PIPELINE, "--redis", url]
    with started([*command, "--listen", "127.0.0.1:0", "--workers", "2"]) as (process, address):
        ask(address, requests)
        workers = [private_mib(pid) for pid in descendants(process.pid)]
    return max(workers, key=lambda kinds: sum(kinds.values()))


def _steps(url: str, requests: int) -> list[tuple[str, dict[str, float]]]:
    """Step → MiB by kind, of one of two workers that start in step."""
    command = [sys.executable, "-m", "bench.serving.memory_stages", PIPELINE, url]
    found = []
    with talking(command) as first, talking(command) as twin:
        for _ in itertools.count():
            _next(twin)
            done = _next(first)
            found.append((done["step"], done["mib"]))
            if done["step"] == "requests":
                return found
            if done["address"]:
                ask(done["address"], requests)
    raise AssertionError("unreachable")


def _next(process: subprocess.Popen[str]) -> dict[str, Any]:
    assert process.stdin is not None and process.stdout is not None
    process.stdin.write("\n")
    process.stdin.flush()
    found: dict[str, Any] = json.loads(process.stdout.readline())
    return found


def ask(address: str, requests: int) -> None:
    """Ask from several threads and connections, so that every worker has threads under load."""
    drawn = [_request(seed) for seed in range(requests)]
    with RankClient(address, channels=CONNECTIONS) as client, ThreadPoolExecutor(CONNECTIONS) as pool:
        list(pool.map(lambda request: client.rank(*request), drawn))


def _request(seed: int) -> tuple[dict[str, Any], dict[str, list[int]]]:
    """Context and candidates."""
    rng = np.random.default_rng(seed)
    visit = {
        "user_id": int(rng.integers(1, USERS + 1)),
        "page": PAGES[int(rng.integers(len(PAGES)))],
        "position": int(rng.integers(POSITIONS)),
        "query": "new books",
        "context": CONTEXTS[int(rng.integers(len(CONTEXTS)))],
    }
    return visit, {"ad_id": (rng.permutation(ADS)[:CANDIDATES] + 1).tolist()}
