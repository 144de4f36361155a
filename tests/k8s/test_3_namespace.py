"""Another namespace: the API server accepts each overlay there, custom resources apart."""

from __future__ import annotations

import json
from collections.abc import Iterator
from pathlib import Path

import pytest
import yaml

from k8s.demo import Cluster
from tests.k8s_static.rendering import OVERLAYS, moved, render

OTHER = "ads-eu"
CUSTOM = ("cert-manager.io", "coreos.com", "jobset.x-k8s.io", "keda.sh", "strimzi.io")
"""Ends of the API groups that the cluster need not have."""


@pytest.fixture(scope="module")
def elsewhere(cluster: Cluster) -> Iterator[Cluster]:
    """Cluster with a restricted namespace that has another name."""
    level = {"pod-security.kubernetes.io/enforce": "restricted"}
    space = {"apiVersion": "v1", "kind": "Namespace", "metadata": {"name": OTHER, "labels": level}}
    cluster.kubectl("apply", "--server-side", "--filename=-", text=json.dumps(space))
    yield cluster
    cluster.kubectl("delete", "namespace", OTHER, "--wait=false")


@pytest.mark.parametrize("name", OVERLAYS)
def test_an_overlay_is_accepted_in_another_namespace(elsewhere: Cluster, name: str, tmp_path: Path) -> None:
    """A dry run of the server. A StorageClass is the cluster's, and its provisioner never changes."""
    known = [
        each
        for each in render(moved(OVERLAYS[name], tmp_path, OTHER))
        if not each["apiVersion"].partition("/")[0].endswith(CUSTOM) and each["kind"] != "StorageClass"
    ]
    words = (
        "apply",
        "--server-side",
        "--force-conflicts",
        "--dry-run=server",
        "--filename=-",
        "--output=name",
    )
    told = elsewhere.kubectl(f"--namespace={OTHER}", *words, text=yaml.safe_dump_all(known))
    assert len(told.splitlines()) == len(known)
