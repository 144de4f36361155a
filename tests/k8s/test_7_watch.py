"""Prometheus: it finds every pod, and every expression of dashboards and rules has data."""

from __future__ import annotations

import json
import re
import subprocess
import sys
import time
from collections.abc import Iterator
from urllib.request import urlopen

import pytest

from k8s.demo import NAMESPACE, ROOT, Cluster
from tests.k8s.report import fact
from tests.k8s.traffic import pods

EXPRESSIONS = ROOT / "k8s" / "lab" / "exprs.py"
FILES = [*sorted((ROOT / "k8s" / "dashboards").glob("*.json")), ROOT / "k8s" / "rules" / "livectr.yaml"]
# cAdvisor, a GPU's exporter and Redis' exporter are no parts of the local overlay.
WITHOUT = ("container_", "DCGM_", "redis_")


@pytest.fixture(scope="module")
def prometheus(deployed: Cluster) -> Iterator[str]:
    """Address of the deployed Prometheus."""
    command = [deployed.program, f"--namespace={NAMESPACE}", "port-forward", "service/prometheus", ":9090"]
    with subprocess.Popen(command, env=deployed.variables, stdout=subprocess.PIPE, text=True) as forward:
        try:
            assert forward.stdout is not None
            found = re.search(r"127\.0\.0\.1:(\d+)", forward.stdout.readline())
            assert found is not None
            yield f"http://127.0.0.1:{found[1]}"
        finally:
            forward.terminate()


def test_prometheus_finds_every_pod(deployed: Cluster, prometheus: str) -> None:
    want = {name: len(pods(deployed, name)) for name in ("trainer", "rank", "prerank")}
    end = time.monotonic() + 120
    while True:
        with urlopen(f"{prometheus}/api/v1/targets?state=active", timeout=30) as answer:
            targets = json.load(answer)["data"]["activeTargets"]
        up = [each["labels"]["job"] for each in targets if each["health"] == "up"]
        if {name: up.count(name) for name in want} == want:
            return
        assert time.monotonic() < end, (want, [(t["labels"], t["health"], t["lastError"]) for t in targets])
        time.sleep(2)


def test_every_expression_has_data(deployed: Cluster, prometheus: str) -> None:
    words = [f"--without={name}" for name in WITHOUT]
    command = [sys.executable, str(EXPRESSIONS), prometheus, *map(str, FILES), *words]
    end = time.monotonic() + 300
    while True:  # a quantile or a rate needs some scrapes
        done = subprocess.run(command, capture_output=True, text=True)
        empty = [line for line in done.stdout.splitlines() if line.startswith("EMPTY")]
        if done.returncode == 0:
            break
        assert time.monotonic() < end, "\n".join(empty)
        time.sleep(15)
    lines = done.stdout.splitlines()
    fact(f"- {sum(line.startswith('ok') for line in lines)} expressions of dashboards and rules have data")
