"""Pods beside the deployment, with the labels of a kind. No Service has them: they are never ready."""

from __future__ import annotations

import json
from typing import Any

from k8s.demo import NAMESPACE, Cluster

IMAGE = "docker.io/livectr/serve:0.2.0"

SECURITY = {
    "runAsNonRoot": True,
    "runAsUser": 10001,
    "seccompProfile": {"type": "RuntimeDefault"},
    "allowPrivilegeEscalation": False,
    "readOnlyRootFilesystem": True,
    "capabilities": {"drop": ["ALL"]},
}


LABELS = {
    "client": {"livectr.dev/client": "true"},
    "producer": {"livectr.dev/producer": "true"},
    "trainer": {"app.kubernetes.io/name": "trainer"},
    "server": {"app.kubernetes.io/name": "rank"},
    "router": {"app.kubernetes.io/name": "redis"},
    "stranger": {"app": "stranger"},
}
"""Kinds of pods, by the labels that the policies select."""
NEVER_READY = {"readinessGates": [{"conditionType": "livectr.dev/never"}]}
IDLE = ["python3", "-c", "import time; time.sleep(1e6)"]
TRAINER_MOUNTS = {"settings": "/etc/livectr", "cache": "/var/cache/livectr", "tmp": "/tmp"}


def pod(name: str, kind: str, container: dict[str, Any], volumes: list[dict[str, Any]]) -> dict[str, Any]:
    """Manifest of a pod with one container, which gets the security of all pods."""
    defaults = {"name": "main", "imagePullPolicy": "IfNotPresent", "securityContext": SECURITY}
    spec = {
        "containers": [defaults | container],
        "volumes": volumes,
        "automountServiceAccountToken": False,
        "terminationGracePeriodSeconds": 1,
        "securityContext": {"fsGroup": 10001},
        **NEVER_READY,
    }
    about = {"name": name, "namespace": NAMESPACE, "labels": LABELS[kind]}
    return {"apiVersion": "v1", "kind": "Pod", "metadata": about, "spec": spec}


def probe(kind: str) -> dict[str, Any]:
    """Manifest of an idle pod of a kind."""
    return pod(f"probe-{kind}", kind, {"image": IMAGE, "command": IDLE}, [])


def trainer_probe(cluster: Cluster, name: str, mounts: dict[str, str]) -> dict[str, Any]:
    """Manifest of an idle pod of the train image with the trainer's settings.

    Args:
        mounts: volume of the trainer, or a new one → its folder, besides TRAINER_MOUNTS.
    """
    found = json.loads(cluster.kubectl("get", "statefulset/trainer", "--output=json"))
    volumes = {each["name"]: each for each in found["spec"]["template"]["spec"]["volumes"]}
    mounts = TRAINER_MOUNTS | mounts
    container = {
        "image": IMAGE.replace("serve", "train"), "command": IDLE,
        "volumeMounts": [{"name": volume, "mountPath": path} for volume, path in mounts.items()],
        "env": [{"name": "HOME", "value": "/tmp"}, {"name": "LIVECTR_THREADS", "value": "1"}],
    }  # fmt: skip
    return pod(name, "trainer", container, [volumes.get(n, {"name": n, "emptyDir": {}}) for n in mounts])


def start(cluster: Cluster, *pods: dict[str, Any]) -> None:
    """Apply pods and wait until their containers run."""
    content = json.dumps({"apiVersion": "v1", "kind": "List", "items": list(pods)})
    cluster.kubectl("apply", "--filename=-", text=content)
    names = [f"pod/{each['metadata']['name']}" for each in pods]
    cluster.kubectl("wait", "--for=jsonpath={.status.phase}=Running", "--timeout=120s", *names)


def end(cluster: Cluster, *names: str) -> None:
    """Delete pods and wait until they are gone."""
    cluster.kubectl("delete", "--ignore-not-found", "--grace-period=1", "pod", *names)
