"""Limits of a pod: Pod Security `restricted` and more, and its resources."""

from __future__ import annotations

import re
from typing import Any

import pytest

from tests.k8s_static.rendering import OVERLAYS, Manifest, containers, manifests, of_kind, pods

VOLUMES = {
    "configMap",
    "csi",
    "downwardAPI",
    "emptyDir",
    "ephemeral",
    "persistentVolumeClaim",
    "projected",
    "secret",
}
"""Kinds of volumes that `restricted` allows."""

every_overlay = pytest.mark.parametrize("name", OVERLAYS)


def breaches(template: Manifest) -> list[str]:
    """Rules of Pod Security `restricted`, and ours, that a pod breaks."""
    spec, found = template["spec"], []
    pod: dict[str, Any] = spec.get("securityContext", {})
    found += [f"{flag}" for flag in ("hostNetwork", "hostPID", "hostIPC") if spec.get(flag)]
    found += ["runAsNonRoot"] * (pod.get("runAsNonRoot") is not True)
    found += ["runAsUser"] * (not pod.get("runAsUser"))
    found += ["seccompProfile"] * (pod.get("seccompProfile", {}).get("type") != "RuntimeDefault")
    for volume in spec.get("volumes", []):
        kinds = set(volume) - {"name"}
        found += [f"volume {volume['name']}"] * (not kinds <= VOLUMES)
    for container in containers(template):
        context: dict[str, Any] = container.get("securityContext", {})
        rules = {
            "allowPrivilegeEscalation": context.get("allowPrivilegeEscalation") is False,
            "readOnlyRootFilesystem": context.get("readOnlyRootFilesystem") is True,
            "capabilities": context.get("capabilities") == {"drop": ["ALL"]},
            "privileged": not context.get("privileged"),
            "runAsNonRoot of a container": context.get("runAsNonRoot", True) is True,
            "runAsUser of a container": context.get("runAsUser", 1) != 0,
            "hostPort": not any("hostPort" in port for port in container.get("ports", [])),
        }
        found += [f"{container['name']}: {rule}" for rule, held in rules.items() if not held]
    return found


@every_overlay
def test_pods_are_restricted(name: str) -> None:
    wrong = {title: found for title, template in pods(name) if (found := breaches(template))}
    assert not wrong, wrong


def test_a_spoiled_pod_is_noticed() -> None:
    _, template = next(pods("local"))
    spoiled = {"spec": template["spec"] | {"hostNetwork": True, "securityContext": {}}}
    assert {"hostNetwork", "runAsNonRoot", "seccompProfile"} <= set(breaches(spoiled))


@pytest.mark.parametrize("name", [name for name in OVERLAYS if name != "canary"])
def test_the_namespace_enforces_restricted(name: str) -> None:
    """A canary is in the namespace of its stable track."""
    for namespace in of_kind(name, "Namespace"):
        labels = namespace["metadata"]["labels"]
        assert labels["pod-security.kubernetes.io/enforce"] == "restricted"
    assert of_kind(name, "Namespace")


@every_overlay
def test_no_pod_has_a_token(name: str) -> None:
    accounts = {m["metadata"]["name"]: m for m in of_kind(name, "ServiceAccount")}
    assert all(account["automountServiceAccountToken"] is False for account in accounts.values())
    for title, template in pods(name):
        spec = template["spec"]
        assert spec["automountServiceAccountToken"] is False, title
        assert spec["serviceAccountName"] != "default", title
        tokens = [
            source
            for volume in spec.get("volumes", [])
            for source in volume.get("projected", {}).get("sources", [])
            if "serviceAccountToken" in source
        ]
        assert not tokens, title


@every_overlay
def test_nobody_has_a_role(name: str) -> None:
    assert not of_kind(name, "Role", "RoleBinding", "ClusterRole", "ClusterRoleBinding")


@every_overlay
def test_services_are_not_in_the_environment(name: str) -> None:
    """Kubernetes would describe a Service `livectr-x` in LIVECTR_… variables, which are settings."""
    assert all(template["spec"]["enableServiceLinks"] is False for _, template in pods(name))


@every_overlay
def test_secrets_are_files(name: str) -> None:
    """A variable is seen by every child and in crash reports; a file is not."""
    for title, template in pods(name):
        for container in containers(template):
            assert "envFrom" not in container, title
            sources = [variable.get("valueFrom", {}) for variable in container.get("env", [])]
            assert not any("secretKeyRef" in source for source in sources), title
        for volume in template["spec"].get("volumes", []):
            if "secret" in volume:
                assert volume["secret"]["defaultMode"] == 0o440, title


def test_production_has_no_secret_in_git() -> None:
    assert not of_kind("production", "Secret")


@every_overlay
def test_every_container_says_what_it_needs(name: str) -> None:
    """CPU has no limit: throttling a server or a rank costs more than it gives a neighbor."""
    for title, template in pods(name):
        for container in containers(template):
            resources = container["resources"]
            assert {"cpu", "memory", "ephemeral-storage"} <= set(resources["requests"]), title
            assert set(resources["limits"]) - {"nvidia.com/gpu"} == {"memory", "ephemeral-storage"}, title
            assert container["imagePullPolicy"] == "IfNotPresent", title


@every_overlay
def test_images_are_pinned(name: str) -> None:
    """The project's images have the version of the manifests; others have the tag of one release."""
    import livectr

    for title, template in pods(name):
        for container in containers(template):
            image, _, tag = container["image"].rpartition(":")
            assert image and re.fullmatch(r"v?\d+\.\d+\.\d+", tag), f"{title}: {container['image']}"
            if "livectr/" in image:
                assert tag == livectr.__version__, f"{title}: {container['image']}"


@every_overlay
def test_volumes_in_memory_and_scratch_are_bounded(name: str) -> None:
    for title, template in pods(name):
        for volume in template["spec"].get("volumes", []):
            assert "sizeLimit" in volume.get("emptyDir", {"sizeLimit": ""}), f"{title}: {volume['name']}"


@every_overlay
def test_everything_carries_the_projects_label(name: str) -> None:
    for manifest in manifests(name):
        labels = manifest["metadata"].get("labels", {})
        assert labels.get("app.kubernetes.io/part-of") == "livectr", manifest["metadata"]["name"]


@every_overlay
def test_kernels_have_a_place(name: str) -> None:
    """The root file system is read-only: what is compiled goes to the folder that the image names."""
    for title, template in pods(name):
        writable = {v["name"] for v in template["spec"].get("volumes", []) if "emptyDir" in v}
        for container in containers(template):
            if "livectr/" in container["image"]:
                mounts = {m["mountPath"]: m["name"] for m in container["volumeMounts"]}
                assert {mounts.get("/tmp"), mounts.get("/var/cache/livectr")} <= writable, title


@every_overlay
def test_a_server_has_kernels_before_it_starts(name: str) -> None:
    """Its image has no compiler."""
    for title, template in pods(name):
        (main, *_) = template["spec"]["containers"]
        if "serve" in main.get("command", []):
            (before,) = [c for c in containers(template) if "compile" in c["command"]]
            assert "livectr/train" in before["image"], title
            assert "--to=/var/cache/livectr/kernels" in before["command"], title
