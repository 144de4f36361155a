"""NetworkPolicies of the deployment: named edges pass, every other is blocked, in both directions."""

from __future__ import annotations

import json
import time
from collections.abc import Iterator
from typing import Any

import pytest

from k8s.demo import NAMESPACE, Cluster, DemoError
from tests.k8s.test_1_lab import IMAGE, SECURITY

CONNECT = "import socket, sys; socket.create_connection((sys.argv[1], int(sys.argv[2])), 3).close()"
ADDRESSES = {
    "rank": ("rank", 50051),
    "prerank": ("prerank", 50051),
    "redis": ("redis", 6379),
    "kafka": ("kafka", 9092),
    "prometheus": ("prometheus", 9090),
}
LABELS = {
    "client": {"livectr.dev/client": "true"},
    "producer": {"livectr.dev/producer": "true"},
    "trainer": {"app.kubernetes.io/name": "trainer"},
    "server": {"app.kubernetes.io/name": "rank"},
    "stranger": {"app": "stranger"},
}
"""Kinds of pods, by the labels that the policies select. A probe is never ready, so no Service has it."""
ALLOWED = {
    "client": {"rank", "prerank"},
    "producer": {"kafka"},
    "trainer": {"kafka", "redis"},
    "server": {"redis"},
    "stranger": set(),
}


def probe(kind: str) -> dict[str, Any]:
    """A pod with the labels of a kind, which is never ready."""
    container = {
        "name": "main", "image": IMAGE, "imagePullPolicy": "IfNotPresent",
        "command": ["python3", "-c", "import time; time.sleep(1e6)"], "securityContext": SECURITY,
        "readinessProbe": {"exec": {"command": ["false"]}},
    }  # fmt: skip
    spec = {
        "containers": [container],
        "automountServiceAccountToken": False,
        "terminationGracePeriodSeconds": 1,
    }
    about = {"name": f"probe-{kind}", "namespace": NAMESPACE, "labels": LABELS[kind]}
    return {"apiVersion": "v1", "kind": "Pod", "metadata": about, "spec": spec}


@pytest.fixture(scope="module")
def probes(deployed: Cluster) -> Iterator[Cluster]:
    items = [probe(kind) for kind in LABELS]
    content = json.dumps({"apiVersion": "v1", "kind": "List", "items": items})
    deployed.kubectl("apply", "--filename=-", text=content)
    names = [f"pod/probe-{kind}" for kind in LABELS]
    deployed.kubectl("wait", "--for=jsonpath={.status.phase}=Running", "--timeout=120s", *names)
    yield deployed
    deployed.kubectl("delete", "--grace-period=1", *names)


def passes(cluster: Cluster, kind: str, host: str, port: int) -> bool:
    words = ["exec", f"probe-{kind}", "--", "python3", "-c", CONNECT, host, str(port)]
    try:
        cluster.kubectl(*words)
    except DemoError as error:
        # A name that does not resolve would pass for a blocked edge.
        assert "TimeoutError" in str(error) or "timed out" in str(error), error
        return False
    return True


@pytest.mark.parametrize("kind", list(LABELS))
def test_only_named_edges_pass(probes: Cluster, kind: str) -> None:
    """A new pod's edges open when the network plugin has seen the pod: within seconds."""
    end = time.monotonic() + 60
    for name in ALLOWED[kind]:
        while not passes(probes, kind, *ADDRESSES[name]):
            assert time.monotonic() < end, f"{kind} does not reach {name}"
    others = ADDRESSES.keys() - ALLOWED[kind]
    assert [name for name in others if passes(probes, kind, *ADDRESSES[name])] == []


def test_metrics_and_rendezvous_are_closed_to_clients(probes: Cluster) -> None:
    for kind in ("client", "stranger"):
        assert not passes(probes, kind, "trainer-0.trainer", 9100)
        assert not passes(probes, kind, "trainer-0.trainer", 29400)
