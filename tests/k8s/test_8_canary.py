"""A canary on a cluster: its share of requests, promotion and rollback by k8s/canary.sh."""

from __future__ import annotations

import json
import subprocess
import time
from collections.abc import Iterator

import pytest

from k8s.demo import ROOT, Cluster
from tests.k8s.report import note
from tests.waiting import until

OVERLAY = ROOT / "k8s" / "overlays" / "canary"
ROLES = ("rank", "prerank")


def tracks(cluster: Cluster, service: str) -> set[str]:
    """Tracks of the pods that get the requests to a Service."""
    selector = f"--selector=kubernetes.io/service-name={service}"
    slices = json.loads(cluster.kubectl("get", "endpointslices", selector, "--output=json"))["items"]
    ends = [end for each in slices for end in each["endpoints"] or () if end["conditions"]["ready"]]
    return {"canary" if "-canary-" in end["targetRef"]["name"] else "stable" for end in ends}


def until_tracks(cluster: Cluster, *want: str) -> None:
    """Ask until pods of these tracks, and no others, get the requests; no request may fail."""
    until(
        lambda: {role: tracks(cluster, role) for role in ROLES},
        equals={role: set(want) for role in ROLES},
        patience_s=120,
        turn=lambda: answered(cluster),
    )
    for _ in range(5):
        answered(cluster)


def answered(cluster: Cluster) -> None:
    """Ask for click probabilities. Raises DemoError when the request fails."""
    answers = cluster.ask()
    assert len(answers) == 3 and all(0 < each < 1 for each in answers)


def canary(cluster: Cluster, *words: str) -> None:
    """Run k8s/canary.sh, which is told where the stable trainer's prediction log is, if elsewhere."""
    found = cluster.kubectl("get", "configmaps", "--output=jsonpath={.items[*].data}")
    runs = {"RUNS": "/stable/predictions /checkpoint/run"} if "/checkpoint/predictions" in found else {}
    subprocess.run([ROOT / "k8s" / "canary.sh", *words], env=cluster.variables | runs, check=True)


@pytest.fixture(scope="module")
def beside(deployed: Cluster) -> Iterator[Cluster]:
    """Cluster with the canary's overlay, all pods ready; without it afterwards."""
    began = time.monotonic()
    deployed.apply(OVERLAY)
    deployed.wait(600)
    note("a canary has continued the stable run and serves", time.monotonic() - began)
    yield deployed
    deployed.kubectl("delete", "--ignore-not-found", f"--kustomize={OVERLAY}", "--timeout=120s")


def test_it_continues_the_stable_run(beside: Cluster) -> None:
    """Its first generation is the stable trainer's, of which it reads the disk."""
    logs = beside.kubectl("logs", "trainer-canary-0", "--container=trainer")
    assert "continues /stable/run after step" in logs


def test_a_rule_rolls_back_or_promotes(beside: Cluster) -> None:
    """By what both trainers predict for the same examples while users go on."""
    canary(beside, "share", "1")
    with pytest.raises(subprocess.CalledProcessError) as refused:
        canary(beside, "promote", "examples >= 500 and auc > 0.9")
    assert refused.value.returncode == 1
    until_tracks(beside, "stable")
    canary(beside, "promote", "examples >= 500 and auc > -0.9")
    until_tracks(beside, "canary")
    canary(beside, "rollback")


def test_a_canary_is_promoted_and_rolled_back(beside: Cluster) -> None:
    """Requests go to both tracks, to the canary alone, and to the stable track alone; none fails."""
    canary(beside, "share", "1")
    until_tracks(beside, "canary", "stable")
    canary(beside, "promote")
    until_tracks(beside, "canary")
    canary(beside, "rollback")
    until_tracks(beside, "stable")


def test_the_stable_track_outlives_the_canary(beside: Cluster) -> None:
    """Deleting the overlay takes nothing of the stable track with it."""
    beside.kubectl("delete", f"--kustomize={OVERLAY}", "--timeout=120s")
    left = beside.kubectl("get", "statefulsets,deployments,persistentvolumeclaims", "--output=name")
    assert "canary" not in left and {"statefulset.apps/trainer", "deployment.apps/rank"} <= set(left.split())
    answered(beside)
