"""Prometheus: it finds every pod, and every expression of dashboards and rules has data."""

from __future__ import annotations

import subprocess
import sys
import time

from k8s.demo import ROOT, Cluster
from tests.k8s.report import fact
from tests.k8s.scrape import prometheus, until_all_answer
from tests.watch.expressions import ABSENT_IN_THE_LAB

EXPRESSIONS = ROOT / "k8s" / "lab" / "exprs.py"
FILES = [*sorted((ROOT / "k8s" / "dashboards").glob("*.json")), ROOT / "k8s" / "rules" / "livectr.yaml"]


def test_prometheus_finds_every_pod(deployed: Cluster) -> None:
    with prometheus(deployed) as address:
        until_all_answer(deployed, address)


def test_every_expression_has_data(deployed: Cluster) -> None:
    words = [*map(str, FILES), *(f"--without={name}" for name in ABSENT_IN_THE_LAB)]
    end = time.monotonic() + 300
    while True:  # a quantile or a rate needs some scrapes
        # kubectl forwards no further once a connection has broken: each try has a forward of its own.
        with prometheus(deployed) as address:
            done = subprocess.run(
                [sys.executable, EXPRESSIONS, address, *words], capture_output=True, text=True
            )
        empty = [line for line in done.stdout.splitlines() if line.startswith("EMPTY")]
        if done.returncode == 0:
            break
        said = "\n".join([f"exit code {done.returncode}", *empty, done.stderr[-4000:]])
        assert time.monotonic() < end, said
        time.sleep(15)
    lines = done.stdout.splitlines()
    fact(f"- {sum(line.startswith('ok') for line in lines)} expressions of dashboards and rules have data")


def test_pods_are_measured(deployed: Cluster) -> None:
    """The autoscaler needs the metrics of pods."""
    end = time.monotonic() + 120
    while "rank" not in deployed.kubectl("top", "pods", check=False):
        assert time.monotonic() < end
        time.sleep(2)
