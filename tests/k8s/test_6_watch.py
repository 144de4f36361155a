"""Prometheus: it finds every pod, and every expression of dashboards and rules has data."""

from __future__ import annotations

import time

from k8s.demo import Cluster
from tests.k8s.report import fact
from tests.k8s.scrape import prometheus, until_all_answer
from tests.waiting import until
from tests.watch.expressions import ABSENT_IN_THE_LAB, Expression, wanted, without_data


def test_prometheus_finds_every_pod(deployed: Cluster) -> None:
    with prometheus(deployed) as address:
        until_all_answer(deployed, address)


def test_every_expression_has_data(deployed: Cluster) -> None:
    """A quantile or a rate needs some scrapes."""

    def empty() -> list[Expression]:
        # kubectl forwards no further once a connection has broken: each try has a forward of its own.
        with prometheus(deployed) as address:
            return without_data(address, ABSENT_IN_THE_LAB)

    until(empty, equals=[], patience_s=300, despite=OSError, turn=lambda: time.sleep(15))
    fact(f"- {len(wanted(ABSENT_IN_THE_LAB))} expressions of dashboards and rules have data")


def test_pods_are_measured(deployed: Cluster) -> None:
    """The autoscaler needs the metrics of pods."""
    until(
        lambda: "rank" in deployed.kubectl("top", "pods", check=False),
        patience_s=120,
        turn=lambda: time.sleep(2),
    )
