"""The cluster itself: names, NetworkPolicies and Pod Security, before anything is deployed."""

from __future__ import annotations

import json
from collections.abc import Iterator
from functools import partial

import pytest

from k8s.demo import Cluster, DemoError
from tests.k8s.probes import IMAGE, SECURITY
from tests.waiting import until

SPACE = "livectr-check"
LISTEN = "from http.server import *; HTTPServer(('', 8000), SimpleHTTPRequestHandler).serve_forever()"
REACH = "import urllib.request; urllib.request.urlopen('http://{host}:8000', timeout=3)"


def pod(name: str, *command: str, labels: dict[str, str], **security: object) -> dict[str, object]:
    """Manifest of a pod of the serve image."""
    container = {
        "name": "main", "image": IMAGE, "imagePullPolicy": "IfNotPresent",
        "command": ["python3", "-c", *command], "securityContext": {**SECURITY, **security},
    }  # fmt: skip
    spec = {
        "containers": [container],
        "automountServiceAccountToken": False,
        "terminationGracePeriodSeconds": 1,
    }
    about = {"name": name, "namespace": SPACE, "labels": labels}
    return {"apiVersion": "v1", "kind": "Pod", "metadata": about, "spec": spec}


def apply(cluster: Cluster, *manifests: object) -> None:
    content = {"apiVersion": "v1", "kind": "List", "items": list(manifests)}
    cluster.kubectl("apply", f"--namespace={SPACE}", "--filename=-", text=json.dumps(content))


def reaches(cluster: Cluster, source: str, host: str) -> bool:
    words = ["exec", f"--namespace={SPACE}", source, "--", "python3", "-c", REACH.format(host=host)]
    try:
        cluster.kubectl(*words)
    except DemoError as error:
        assert "Error" in str(error) or "timed out" in str(error), error
        return False
    return True


@pytest.fixture(scope="module")
def space(cluster: Cluster) -> Iterator[Cluster]:
    """A restricted namespace with a listening pod, its Service, and two pods that ask."""
    level = {"pod-security.kubernetes.io/enforce": "restricted"}
    apply(cluster, {"apiVersion": "v1", "kind": "Namespace", "metadata": {"name": SPACE, "labels": level}})
    service = {"selector": {"app": "server"}, "ports": [{"port": 8000}]}
    about = {"name": "server", "namespace": SPACE}
    apply(
        cluster,
        pod("server", LISTEN, labels={"app": "server"}),
        pod("friend", "import time; time.sleep(1e6)", labels={"app": "friend"}),
        pod("stranger", "import time; time.sleep(1e6)", labels={"app": "stranger"}),
        {"apiVersion": "v1", "kind": "Service", "metadata": about, "spec": service},
    )
    pods = ["pod/server", "pod/friend", "pod/stranger"]
    cluster.kubectl("wait", f"--namespace={SPACE}", "--for=condition=Ready", "--timeout=600s", *pods)
    yield cluster
    cluster.kubectl("delete", "namespace", SPACE, "--wait=false")


def test_names_of_services_resolve(space: Cluster) -> None:
    """The node adds a Service's rules when it comes to it: after its pods are ready."""
    for host in ("server", f"server.{SPACE}.svc.cluster.local"):
        until(partial(reaches, space, "friend", host), f"{host} answers")


def test_network_policies_are_enforced(space: Cluster) -> None:
    """A policy that nobody enforces would let every later check pass."""
    allowed = {"podSelector": {"matchLabels": {"app": "friend"}}}
    spec = {
        "podSelector": {"matchLabels": {"app": "server"}},
        "policyTypes": ["Ingress"],
        "ingress": [{"from": [allowed], "ports": [{"port": 8000}]}],
    }
    about = {"name": "friends", "namespace": SPACE}
    apply(
        space,
        {"apiVersion": "networking.k8s.io/v1", "kind": "NetworkPolicy", "metadata": about, "spec": spec},
    )
    until(
        lambda: not reaches(space, "stranger", "server"),
        "a stranger is refused: else no part of this cluster enforces NetworkPolicies",
    )
    until(lambda: reaches(space, "friend", "server"), "the friend's answer")


def test_restricted_refuses_a_spoiled_pod(space: Cluster) -> None:
    with pytest.raises(DemoError, match='violates PodSecurity "restricted:latest": allowPrivilegeEscalation'):
        apply(space, pod("spoiled", "pass", labels={}, allowPrivilegeEscalation=True))
