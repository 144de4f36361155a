"""Start of processes: of a trainer to its first step, of servers to their first answer.

*Cold*: a pipeline that this machine has never seen, an empty cache, and no compiler on the PATH; the kernel
library comes with the package, and the feature plan runs as calls into it. *Warm*: the cache has the fused
plan. Servers load the dense model of a million published rows, and a pre-rank server the vectors of all ads,
too. The check of the settings, which a pod runs first, is measured beside.
"""

from __future__ import annotations

import statistics
import subprocess
import sys
import tempfile
import time
from collections.abc import Callable, Mapping
from pathlib import Path

from bench.serving.process import ROOT, environment, serving
from bench.serving.published import NOW_MS, publish
from livectr.client.clients import PreRankClient, RankClient
from livectr.local.ports import free_ports
from livectr.local.valkey import LocalRedis

COLD_S, WARM_S = 5.0, 2.5
"""Goals of a trainer and of a rank server."""
STARTS = 5
PIPELINE = "bench/serving/pipeline.py"
TRAINED = "examples/display_ads/pipeline.py"


def run(quick: bool = False) -> list[dict[str, object]]:
    """Seconds to a first step and to first answers, cold and warm, and of the check before: medians."""
    users, ads = (5_000, 5_000) if quick else (500_000, 500_000)
    starts = 1 if quick else STARTS
    visit = {"user_id": 7, "ts": NOW_MS, "query": "red winter Shoes", "device": "phone", "site": "news"}
    chosen = list(range(100))
    with (
        tempfile.TemporaryDirectory() as folder,
        LocalRedis(f"127.0.0.1:{free_ports(1)}") as server,
    ):
        url = f"{server.url}/0"
        publish(url, users, ads)
        work = Path(folder)
        (work / "no-compiler").mkdir()
        logs = f"file:{work / 'logs'}"
        _run("logs", "simulate", "--to", logs, "--seconds", "5", "--fast")

        def check(variables: Mapping[str, str]) -> float:
            _run("inspect", "--pipeline", PIPELINE, variables=variables)
            return time.monotonic()

        def train(variables: Mapping[str, str]) -> float:
            words = ("--pipeline", TRAINED, "--source", logs, "--until-end", "--set", "max_steps=1")
            _run("train", *words, variables=variables)
            return time.monotonic()

        def rank(variables: Mapping[str, str]) -> float:
            with (
                serving("rank", url, variables=variables) as address,
                RankClient(address) as client,
            ):
                client.rank({**visit, "position": 1}, {"ad_id": chosen})
                return time.monotonic()

        def prerank(variables: Mapping[str, str]) -> float:
            with (
                serving("prerank", url, variables=variables) as address,
                PreRankClient(address) as client,
            ):
                client.prerank(visit, chosen, 10)
                return time.monotonic()

        rows = f"{users + ads:,} rows published"
        figures: list[tuple[str, str, bool, Callable[[Mapping[str, str]], float]]] = [
            ("first step of a trainer, and its report", TRAINED, True, train),
            ("first answer of a rank server", rows, True, rank),
            (f"first answer of a pre-rank server, {ads:,} ads", rows, False, prerank),
        ]
        found = [_row("settings checked", f"{rows}, livectr inspect", None, _seconds(check, {}, starts))]
        for figure, workload, has_goal, start in figures:
            warm = {"LIVECTR_CACHE_DIR": str(work / "warm")}
            start(warm)  # fills the cache
            warm_s = _seconds(start, warm, starts)
            cold_s = [_cold(start, work, number) for number in range(starts)]
            goals = (COLD_S, WARM_S) if has_goal else (None, None)
            found.append(_row(figure, f"{workload}; cold, without a compiler", goals[0], cold_s))
            found.append(_row(figure, f"{workload}; warm", goals[1], warm_s))
        return found


def _cold(start: Callable[[Mapping[str, str]], float], work: Path, number: int) -> float:
    with tempfile.TemporaryDirectory(dir=work, prefix=f"cold-{number}-") as cache:
        variables = {"LIVECTR_CACHE_DIR": cache, "PATH": str(work / "no-compiler"), "CXX": ""}
        return _seconds(start, variables, 1)[0]


def _seconds(
    start: Callable[[Mapping[str, str]], float], variables: Mapping[str, str], starts: int
) -> list[float]:
    """Seconds of several starts; `start` returns the instant of the answer, before it ends the process."""
    seconds = []
    for _ in range(starts):
        began = time.monotonic()
        seconds.append(start(variables) - began)
    return seconds


def _run(*words: str, variables: Mapping[str, str] | None = None) -> None:
    command = [sys.executable, "-m", "livectr", *words]
    subprocess.run(command, cwd=ROOT, env=environment(variables or {}), check=True, stdout=subprocess.DEVNULL)


def _row(figure: str, workload: str, goal_s: float | None, seconds: list[float]) -> dict[str, object]:
    ours = statistics.median(seconds)
    met = None if goal_s is None else ours < goal_s
    return {"figure": figure, "workload": workload, "unit": "s", "ours": ours, "goal": goal_s, "met": met}
