"""Deployed Prometheus, asked from here."""

from __future__ import annotations

import json
import re
import subprocess
import time
from collections.abc import Iterator
from contextlib import contextmanager
from typing import Any
from urllib.request import urlopen

from k8s.demo import NAMESPACE, Cluster
from tests.k8s.traffic import pods
from tests.waiting import until


@contextmanager
def prometheus(cluster: Cluster) -> Iterator[str]:
    """Address of the deployed Prometheus while this is open."""
    command = [cluster.program, f"--namespace={NAMESPACE}", "port-forward", "service/prometheus", ":9090"]
    with subprocess.Popen(command, env=cluster.variables, stdout=subprocess.PIPE, text=True) as forward:
        try:
            assert forward.stdout is not None
            found = re.search(r"127\.0\.0\.1:(\d+)", forward.stdout.readline())
            assert found is not None
            yield f"http://127.0.0.1:{found[1]}"
        finally:
            forward.terminate()


def until_all_answer(cluster: Cluster, address: str, scheme: str = "http") -> None:
    """Wait until metrics of all pods of trainer and servers are read by the scheme, and those of no other."""
    want = {name: len(pods(cluster, name)) for name in ("trainer", "rank", "prerank")}
    targets: list[dict[str, Any]] = []

    def answering() -> dict[str, int]:
        with urlopen(f"{address}/api/v1/targets?state=active", timeout=30) as answer:
            targets[:] = json.load(answer)["data"]["activeTargets"]
        up = [
            each["labels"]["job"]
            for each in targets
            if each["health"] == "up" and each["scrapeUrl"].startswith(f"{scheme}://")
        ]
        return {name: up.count(name) for name in want}

    until(
        answering,
        equals=want,
        patience_s=120,
        why=lambda: [(t["labels"], t["health"], t["lastError"]) for t in targets],
        turn=lambda: time.sleep(2),
    )


def target_health(address: str, job: str) -> list[str]:
    """Health of the targets of a job."""
    with urlopen(f"{address}/api/v1/targets?state=active", timeout=30) as answer:
        targets = json.load(answer)["data"]["activeTargets"]
    return [each["health"] for each in targets if each["labels"]["job"] == job]
