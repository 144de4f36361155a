"""Checks on a real cluster: `make test-k8s`. They run in the order of the files, on one deployment.

The cluster is that of KUBECONFIG, else the lab, which is started before and ended after. With $K8S_KEEP it
stays; with $K8S_IMAGES_READY no image is built. At the end a table has every check with its seconds.
$K8S_REPORT names a file that gets it, too.
"""

from __future__ import annotations

import os
import subprocess
import sys
import time
from collections.abc import Iterator

import pytest

from k8s import demo
from k8s.demo import Cluster
from tests.k8s.report import note, table


@pytest.fixture(scope="session")
def cluster() -> Iterator[Cluster]:
    """An empty cluster with the images on its nodes."""
    own_lab = not os.environ.get("KUBECONFIG")
    if own_lab:
        _timed("the lab starts", [sys.executable, str(demo.LAB), "up"])
        found = demo.lab(dict(os.environ))
    else:
        found = demo.find_cluster()
    if not os.environ.get("K8S_IMAGES_READY"):
        began = time.monotonic()
        archives = demo.build_images(is_lab=found.is_lab)
        note("images are built", time.monotonic() - began)
        began = time.monotonic()
        found.deliver(archives)
        note("images are on the node", time.monotonic() - began)
    yield found
    if os.environ.get("K8S_KEEP"):
        return
    if own_lab:
        _timed("the lab ends", [sys.executable, str(demo.LAB), "down"])
    else:
        found.kubectl("delete", "--ignore-not-found", f"--kustomize={demo.OVERLAY}")


@pytest.fixture(scope="session")
def applied(cluster: Cluster) -> float:
    """Instant of time.monotonic() at which the overlay was applied; nothing has been waited for."""
    began = time.monotonic()
    cluster.apply()
    return began


@pytest.fixture(scope="session")
def sizes() -> list[tuple[int, int]]:
    """Sizes of the trainer, each with the step after which it began."""
    return [(0, 2)]


@pytest.fixture(scope="session")
def deployed(cluster: Cluster, applied: float) -> Cluster:
    """Cluster with the local overlay, all pods ready."""
    cluster.wait(600)
    note("all pods are ready after the apply", time.monotonic() - applied)
    return cluster


def _timed(what: str, command: list[str]) -> None:
    began = time.monotonic()
    subprocess.run(command, check=True)
    note(what, time.monotonic() - began)


def pytest_runtest_logreport(report: pytest.TestReport) -> None:
    if report.when == "call" or report.outcome == "failed":
        name = report.nodeid.rpartition("::")[2].removeprefix("test_").replace("_", " ")
        note(name, report.duration, report.outcome)


def pytest_terminal_summary(terminalreporter: pytest.TerminalReporter) -> None:
    terminalreporter.write_sep("=", "report")
    terminalreporter.write_line(table())
