"""Memory of one more rank worker: its private pages, with the demo's pipeline and sizes.

The version is of the demo: simulated traffic, trained and published. The figure is the unique set size of one
of two workers of `livectr serve rank` after its warm-up. The table says which step took it, and what kind of
page it is: the supervisor's steps are there once for all workers, which are forked from it.
"""

from __future__ import annotations

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
from bench.serving.memory_stages import LAST_STEP
from bench.serving.private_pages import KINDS, private_mib
from bench.serving.process import ROOT, started, talking
from livectr.client.clients import RankClient
from livectr.local.parts import descendants
from livectr.local.ports import free_ports
from livectr.local.valkey import LocalRedis
from livectr.simulator.records import CONTEXTS
from livectr.simulator.truth import PAGES, POSITIONS

PIPELINE = "examples/display_ads/pipeline.py"
USERS, ADS, CANDIDATES, CONNECTIONS = 2_000, 500, 400, 8
GOAL_MIB = 150.0
Step = tuple[str, dict[str, float]]
"""Name of a step and MiB by kind."""


def result(quick: bool) -> tuple[list[dict[str, object]], list[dict[str, object]]]:
    """Row, and tables of steps and kinds."""
    requests = 100 if quick else 2_000
    with demo_version(10 if quick else 60) as url:
        of_supervisor, of_worker = _supervisor(), _worker(url, requests)
    last = of_worker[-1][1]
    workload = f"rank worker of two, {PIPELINE}, {USERS:,} users, after {requests:,} requests"
    row = bounded("private memory of one more worker", workload, "MiB", sum(last.values()), goal=GOAL_MIB)
    lines = [["step", "MiB", *KINDS], *_lines("supervisor", of_supervisor), *_lines("each worker", of_worker)]
    return [row], [{"title": "Private memory of a rank server, MiB that each step adds", "lines": lines}]


def _lines(process: str, steps: list[Step]) -> Iterator[list[str]]:
    """Lines of the table: what each step adds, and all."""
    before = dict.fromkeys(KINDS, 0.0)
    for name, kinds in steps:
        yield _line(f"{process}: {name}", {kind: kinds[kind] - before[kind] for kind in KINDS})
        before = kinds
    yield _line(f"{process}: all", before)


def _line(name: str, more: dict[str, float]) -> list[str]:
    return [name, *(f"{mib:.1f}" for mib in (sum(more.values()), *(more[kind] for kind in KINDS)))]


@contextmanager
def demo_version(seconds: int) -> Iterator[str]:
    """URL of Redis with the last version of a trainer that learned from some seconds of traffic."""
    with ExitStack() as stack:
        folder = Path(stack.enter_context(tempfile.TemporaryDirectory(prefix="livectr-bench-")))
        server = stack.enter_context(LocalRedis(f"127.0.0.1:{free_ports(1)}"))
        url, log = f"{server.url}/0", f"file:{folder / 'logs'}"
        sizes = ["--users", str(USERS), "--ads", str(ADS), "--seconds", str(seconds)]
        _livectr("logs", "simulate", "--to", log, "--fast", *sizes)
        _livectr("train", "--pipeline", PIPELINE, "--source", log, "--until-end", "--publish", url)
        yield url


def _livectr(*words: str) -> None:
    command = [sys.executable, "-m", "livectr", *words]
    subprocess.run(command, cwd=ROOT, check=True, stdout=subprocess.DEVNULL, stderr=subprocess.DEVNULL)


def _worker(url: str, requests: int) -> list[Step]:
    """Private memory of the larger worker of a real server, with its first requests and with all."""
    command = [sys.executable, "-m", "livectr", "serve", "rank", "--pipeline", PIPELINE, "--redis", url]
    steps = []
    with started([*command, "--listen", "127.0.0.1:0", "--workers", "2"]) as (process, address):
        for name, more in (("first version", CONNECTIONS), ("requests", requests)):
            ask(address, more)
            workers = [private_mib(pid) for pid in descendants(process.pid)]
            steps.append((name, max(workers, key=lambda kinds: sum(kinds.values()))))
    return steps


def _supervisor() -> list[Step]:
    """Private memory of a process that imports what the supervisor imports, step by step."""
    command = [sys.executable, "-m", "bench.serving.memory_stages", PIPELINE]
    found: list[Step] = []
    with talking(command) as first, talking(command) as twin:
        while not found or found[-1][0] != LAST_STEP:
            _next(twin)
            done = _next(first)
            found.append((done["step"], done["mib"]))
    return found


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
