"""The trainer's pods: one number for the size, a checkpoint that outlives them, groups of one spec."""

from __future__ import annotations

import copy
from pathlib import Path
from typing import Any
from urllib.parse import parse_qsl, urlsplit

import pytest
import yaml

from livectr.config.sources import from_environment
from tests.k8s_static.rendering import K8S, OVERLAYS, Manifest, manifests, of_kind, only, render, settings

SETS = [name for name in OVERLAYS if name != "gang"]
"""Overlays whose trainer is a StatefulSet."""


def trainer(rendered: list[Manifest] | tuple[Manifest, ...]) -> Manifest:
    (found,) = [
        m for m in rendered if m["kind"] == "StatefulSet" and m["metadata"]["name"].startswith("trainer")
    ]
    return found


def environment(template: Manifest) -> dict[str, Any]:
    """Variable → value or source, of the container that trains."""
    (container,) = template["spec"]["containers"]
    return {v["name"]: v.get("value", v.get("valueFrom")) for v in container["env"]}


@pytest.mark.parametrize("name", SETS)
def test_nodes_are_the_replicas(name: str) -> None:
    spec = trainer(manifests(name))["spec"]
    found = environment(spec["template"])
    assert found["LIVECTR_NODES"] == str(spec["replicas"])
    assert found["LIVECTR_NODE"] == {
        "fieldRef": {"fieldPath": "metadata.labels['apps.kubernetes.io/pod-index']"}
    }


@pytest.mark.parametrize("overlay", ["local", "production"])
def test_a_resize_is_one_number(tmp_path: Path, overlay: str) -> None:
    """Change `count` in a copy of the overlay: replicas and nodes follow, and nothing else changes."""
    folder = tmp_path / "k8s"
    for source in sorted(p for p in K8S.rglob("*") if p.is_file()):
        target = folder / source.relative_to(K8S)
        target.parent.mkdir(parents=True, exist_ok=True)
        target.write_bytes(source.read_bytes())
    path = folder / "overlays" / overlay / "kustomization.yaml"
    kustomization = yaml.safe_load(path.read_text())
    (size,) = [r for r in kustomization["replicas"] if r["name"] == "trainer"]
    before, size["count"] = size["count"], 7
    path.write_text(yaml.safe_dump(kustomization))
    resized = trainer(render(path.parent))
    assert resized["spec"]["replicas"] == 7
    assert environment(resized["spec"]["template"])["LIVECTR_NODES"] == "7"
    former = yaml.safe_dump(trainer(manifests(overlay)))
    changed = [
        (a, b)
        for a, b in zip(former.splitlines(), yaml.safe_dump(resized).splitlines(), strict=True)
        if a != b
    ]
    assert [a.strip() for a, _ in changed] == [f"replicas: {before}", f"value: '{before}'"]


@pytest.mark.parametrize("name", SETS)
def test_pods_start_and_update_without_waiting_for_the_group(name: str) -> None:
    spec = trainer(manifests(name))["spec"]
    assert spec["podManagementPolicy"] == "Parallel"
    assert spec["updateStrategy"] == {"type": "RollingUpdate"}
    revision = {"fieldRef": {"fieldPath": "metadata.labels['controller-revision-hash']"}}
    assert environment(spec["template"])["LIVECTR_GENERATION"] == revision


@pytest.mark.parametrize("name", OVERLAYS)
def test_the_supervisor_outlives_its_ranks(name: str, tmp_path: Path) -> None:
    """It answers the probes, is never told to give up, and resumes from no checkpoint of days ago."""
    chosen = settings(name, tmp_path)
    assert chosen.until_stopped is True and not chosen.restarts
    assert 0 < chosen.max_checkpoint_age_s <= 7 * 86400 and not chosen.accept_stale
    assert chosen.checkpoint is not None and chosen.checkpoint.startswith("/checkpoint/")


@pytest.mark.parametrize("name", SETS)
def test_nodes_meet_at_node_0(name: str, tmp_path: Path) -> None:
    spec = trainer(manifests(name))
    service = only(name, "Service", spec["spec"]["serviceName"])
    assert service["spec"]["clusterIP"] == "None" and service["spec"]["publishNotReadyAddresses"] is True
    host, _, port = (settings(name, tmp_path).rendezvous or "").rpartition(":")
    assert host == f"{spec['metadata']['name']}-0.{service['metadata']['name']}"
    assert int(port) in [p["port"] for p in service["spec"]["ports"]]


@pytest.mark.parametrize("name", SETS)
def test_all_nodes_share_a_checkpoint_that_stays(name: str) -> None:
    """A claim in the template would give each node a folder of its own."""
    spec = trainer(manifests(name))["spec"]
    assert "volumeClaimTemplates" not in spec
    volumes = {v["name"]: v for v in spec["template"]["spec"]["volumes"]}
    claim = only(name, "PersistentVolumeClaim", volumes["checkpoint"]["persistentVolumeClaim"]["claimName"])
    if name in ("local", "production"):
        kept = only(name, "StorageClass", claim["spec"]["storageClassName"])
        assert kept["reclaimPolicy"] == "Retain"
    assert claim["spec"]["storageClassName"] == "livectr-retain"
    one_node = name in ("local", "canary")
    assert claim["spec"]["accessModes"] == ["ReadWriteOnce" if one_node else "ReadWriteMany"]


@pytest.mark.parametrize("name", OVERLAYS)
def test_variables_are_settings(name: str) -> None:
    """Names and values, as the process reads them at its start."""
    for kind in ("StatefulSet", "Deployment"):
        for manifest in of_kind(name, kind):
            for container in manifest["spec"]["template"]["spec"]["containers"]:
                from_environment({v["name"]: v.get("value", "1") for v in container.get("env", [])})


def test_each_gpu_has_a_rank() -> None:
    """The overlay sets the number of GPUs alone."""
    template = trainer(manifests("gpu"))["spec"]["template"]
    (container,) = template["spec"]["containers"]
    gpus = container["resources"]["limits"]["nvidia.com/gpu"]
    assert environment(template)["LIVECTR_RANKS"] == gpus == "4"
    assert container["image"].startswith("livectr/gpu:")


def test_a_gang_is_the_same_pods() -> None:
    """The JobSet differs from the StatefulSet in the variables that number a pod and name its peers."""
    alone = trainer(manifests("queue"))["spec"]["template"]
    (gang,) = (m for m in manifests("gang") if m["kind"] == "JobSet")
    (job,) = gang["spec"]["replicatedJobs"]
    spec = job["template"]["spec"]
    assert not [m for m in of_kind("gang", "StatefulSet") if m["metadata"]["name"] == "trainer"]
    assert spec["parallelism"] == spec["completions"] == int(environment(spec["template"])["LIVECTR_NODES"])
    assert environment(spec["template"])["LIVECTR_RENDEZVOUS"] == "trainer-nodes-0-0.trainer:29400"
    pods = [copy.deepcopy(template) for template in (alone, spec["template"])]
    for template in pods:
        template["spec"]["containers"][0].pop("env")
        template["spec"].pop("restartPolicy", None)
    assert pods[0] == pods[1]


def test_an_eviction_uses_no_restart_up() -> None:
    (gang,) = (m for m in manifests("gang") if m["kind"] == "JobSet")
    rules = gang["spec"]["replicatedJobs"][0]["template"]["spec"]["podFailurePolicy"]["rules"]
    assert rules[0]["action"] == "Ignore" and rules[0]["onPodConditions"][0]["type"] == "DisruptionTarget"
    assert rules[1]["action"] == "FailJob" and rules[1]["onExitCodes"]["values"] == [2, 3]


def test_the_trainer_logs_in_to_kafka_over_tls() -> None:
    """The address names files that are mounted, and a user that the operator makes."""
    template = trainer(manifests("strimzi-tls"))["spec"]["template"]
    address = urlsplit(environment(template)["LIVECTR_SOURCE"])
    asked = dict(parse_qsl(address.query))
    (container,) = template["spec"]["containers"]
    mounts = {m["mountPath"]: m["name"] for m in container["volumeMounts"]}
    volumes = {v["name"]: v.get("secret", {}) for v in template["spec"]["volumes"]}
    user = only("strimzi-tls", "KafkaUser", asked["user"])
    for key, secret in (("ca", "kafka-cluster-ca-cert"), ("password_file", user["metadata"]["name"])):
        folder, _, file = asked[key].rpartition("/")
        assert volumes[mounts[folder]]["secretName"] == secret
        assert [item["path"] for item in volumes[mounts[folder]]["items"]] == [file]
    kafka = only("strimzi-tls", "Kafka", "kafka")["spec"]["kafka"]
    (listener,) = kafka["listeners"]
    assert listener["tls"] is True and listener["port"] == address.port
    assert listener["authentication"]["type"] == user["spec"]["authentication"]["type"]
    assert address.hostname == "kafka-kafka-bootstrap" and kafka["authorization"] == {"type": "simple"}
