"""Pods that die, are drained, replaced and resized under traffic: no request fails, training goes on."""

from __future__ import annotations

import json
import random
import time
from collections.abc import Iterator
from contextlib import contextmanager
from typing import Any

import pytest

from k8s.demo import Cluster
from tests.k8s.report import fact, note

KINDS = ("rank", "prerank", "trainer")


def traffic(cluster: Cluster) -> dict[str, Any]:
    """Counts of the client since its start, from its last line."""
    lines = cluster.kubectl("logs", "deployment/client", "--tail=1").strip().splitlines()
    assert lines, "the client has written nothing yet"
    counts: dict[str, Any] = json.loads(lines[-1])
    return counts


def version(cluster: Cluster) -> int:
    """Version of the newest answer that the client got."""
    return int(traffic(cluster)["rank"]["version"])


@contextmanager
def without_failures(cluster: Cluster, what: str) -> Iterator[None]:
    """Fail when a request fails meanwhile, or when none was sent."""
    began, before = time.monotonic(), traffic(cluster)
    yield
    after = traffic(cluster)
    note(what, time.monotonic() - began)
    for role in ("rank", "prerank"):
        sent = after[role]["requests"] - before[role]["requests"]
        failed = after[role]["errors"] - before[role]["errors"]
        fact(f"- {what}: {failed} of {sent} {role} requests failed")
        assert sent > 0
        assert failed == 0, after[role]["last_error"]


def newer_version(cluster: Cluster, timeout_s: float) -> float:
    """Wait until a version is served that is newer than now; the seconds."""
    began, before = time.monotonic(), version(cluster)
    while version(cluster) <= before:
        assert time.monotonic() - began < timeout_s, f"version {before} is served for {timeout_s:.0f} s"
        time.sleep(0.5)
    return time.monotonic() - began


def pods(cluster: Cluster, kind: str) -> list[str]:
    return cluster.kubectl(
        "get", "pods", f"--selector=app.kubernetes.io/name={kind}", "--output=name"
    ).split()


@pytest.mark.parametrize("number", range(10))
def test_a_killed_pod_costs_no_request(deployed: Cluster, number: int) -> None:
    """Deleted pods drain; each kind in turn, a random pod of it."""
    kind = KINDS[number % len(KINDS)]
    with without_failures(deployed, f"a {kind} pod is deleted"):
        deployed.kubectl("delete", random.Random(number).choice(pods(deployed, kind)), "--wait=false")
        time.sleep(5)
        deployed.wait(300)
        newer_version(deployed, 120)


def test_a_rolling_update_of_servers(deployed: Cluster) -> None:
    with without_failures(deployed, "rolling update of rank and pre-rank"):
        deployed.kubectl("rollout", "restart", "deployment/rank", "deployment/prerank")
        deployed.wait(600)


def test_a_rolling_update_of_the_trainer(deployed: Cluster) -> None:
    with without_failures(deployed, "rolling update of the trainer"):
        deployed.kubectl("rollout", "restart", "statefulset/trainer")
        deployed.wait(600)
        newer_version(deployed, 180)


def test_the_primary_of_redis_fails_over(deployed: Cluster) -> None:
    with without_failures(deployed, "failover of Redis"):
        deployed.kubectl("delete", "pod", "valkey-0", "--wait=false")
        time.sleep(5)
        deployed.wait(300)
        newer_version(deployed, 180)
