"""NetworkPolicies of the deployment: named edges pass, every other is blocked, in both directions."""

from __future__ import annotations

import time
from collections.abc import Iterator
from concurrent.futures import ThreadPoolExecutor

import pytest

from k8s.demo import Cluster, DemoError
from tests.k8s.probes import end, probe, start
from tests.waiting import until

Edge = tuple[str, str, int]
"""Kind of pod, host, port."""

CONNECT = "import socket, sys; socket.create_connection((sys.argv[1], int(sys.argv[2])), 3).close()"
ADDRESSES = {
    "rank": ("rank", 50051),
    "prerank": ("prerank", 50051),
    "redis": ("redis", 6379),
    "kafka": ("kafka", 9092),
    "prometheus": ("prometheus", 9090),
}
ALLOWED = {
    "client": {"rank", "prerank"},
    "producer": {"kafka"},
    "trainer": {"kafka", "redis"},
    "server": {"redis"},
    "stranger": set(),
}


@pytest.fixture(scope="module")
def probes(deployed: Cluster) -> Iterator[Cluster]:
    start(deployed, *[probe(kind) for kind in ALLOWED])
    yield deployed
    end(deployed, *[f"probe-{kind}" for kind in ALLOWED])


def answer(cluster: Cluster, kind: str, host: str, port: int) -> str:
    """Outcome of an attempt to connect: "open", "closed", or what else was wrong."""
    words = ["exec", f"probe-{kind}", "--", "python3", "-c", CONNECT, host, str(port)]
    try:
        cluster.kubectl(*words)
    except DemoError as error:
        return "closed" if "TimeoutError" in str(error) or "timed out" in str(error) else str(error)
    return "open"


@pytest.fixture(scope="module")
def passed(probes: Cluster) -> set[Edge]:
    """Edges that pass, all tried at once: a closed one takes its whole time-out.

    A new pod's edges open when the network plugin has seen the pod, within seconds, names of Services too. So
    those that must pass are tried until they do, and a name until it resolves: else it passed for blocked.
    """
    closed = [(kind, "trainer-0.trainer", port) for kind in ("client", "stranger") for port in (9100, 29400)]
    edges = [(kind, *address) for kind in ALLOWED for address in ADDRESSES.values()] + closed
    latest = time.monotonic() + 60

    def reached(edge: Edge) -> bool:
        kind, host, _ = edge
        want = "open" if host in ALLOWED[kind] else "closed"

        def decided() -> str:
            found = answer(probes, *edge)
            return found if found in (want, "open") or time.monotonic() >= latest else ""

        found = until(decided, turn=lambda: time.sleep(0.5))
        assert found in ("open", "closed"), found
        return found == "open"

    with ThreadPoolExecutor(len(edges)) as threads:
        passed = list(threads.map(reached, edges))
    return {edge for edge, open_ in zip(edges, passed, strict=True) if open_}


@pytest.mark.parametrize("kind", list(ALLOWED))
def test_only_named_edges_pass(passed: set[Edge], kind: str) -> None:
    found = {host for source, host, _ in passed if source == kind and host in ADDRESSES}
    assert found == ALLOWED[kind]


def test_metrics_and_rendezvous_are_closed_to_clients(passed: set[Edge]) -> None:
    assert not [edge for edge in passed if edge[1] == "trainer-0.trainer"]
