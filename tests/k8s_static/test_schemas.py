"""Every manifest against the schemas of every Kubernetes from 1.29 on, custom resources against their CRDs.

Unknown fields are errors.
"""

from __future__ import annotations

import json
from functools import cache
from importlib.resources import files
from typing import Any

import pytest
from jsonschema import Draft202012Validator
from kubernetes_validate.utils import all_versions
from referencing import Registry, Resource

from tests.k8s_static.crd_schemas import FOLDER
from tests.k8s_static.rendering import OVERLAYS, Manifest, manifests

OLDEST = (1, 29)
VERSIONS = list(dict.fromkeys(v for v in all_versions() if tuple(map(int, v.split(".")[:2])) >= OLDEST))
SCHEMAS = files("kubernetes_validate") / "kubernetes-json-schema"


@cache
def definitions(version: str) -> Registry[Any]:
    text = (SCHEMAS / f"v{version}-local-strict" / "_definitions.json").read_text()
    return Resource.from_contents(json.loads(text)) @ Registry()


@cache
def validator(version: str, kind: str, api: str) -> Draft202012Validator | None:
    """Validator of a kind; None: it is neither Kubernetes' own nor in crds/."""
    group, _, number = api.rpartition("/")
    name = "-".join(part for part in (kind.lower(), group.split(".")[0], number) if part)
    path = SCHEMAS / f"v{version}-local-strict" / f"{name}.json"
    if not path.is_file():
        own = FOLDER / f"{kind.lower()}-{group}-{number}.json"
        return Draft202012Validator(json.loads(own.read_text())) if own.exists() else None
    schema = json.loads(path.read_text())
    return Draft202012Validator(schema, registry=Resource.from_contents(schema) @ definitions(version))


def faults(version: str, manifest: Manifest) -> list[str]:
    check = validator(version, manifest["kind"], manifest["apiVersion"])
    title = f"{manifest['kind']}/{manifest['metadata']['name']}"
    if check is None:
        return [f"{title} has no schema"]
    return [f"{title} {error.json_path}: {error.message}" for error in check.iter_errors(manifest)]


def test_versions_reach_beyond_the_lab() -> None:
    assert {"1.29.0", "1.33.0"} <= set(VERSIONS)


@pytest.mark.parametrize("version", VERSIONS)
def test_manifests_fit_kubernetes(version: str) -> None:
    different = {
        json.dumps(manifest, sort_keys=True): manifest for name in OVERLAYS for manifest in manifests(name)
    }
    wrong = [fault for manifest in different.values() for fault in faults(version, manifest)]
    assert not wrong, wrong


def test_a_misspelt_field_is_a_fault() -> None:
    broken = json.loads(json.dumps(next(m for m in manifests("local") if m["kind"] == "Deployment")))
    broken["spec"]["template"]["spec"]["containers"][0]["readynessProbe"] = {}
    assert any("readynessProbe" in fault for fault in faults(VERSIONS[-1], broken))


def test_schemas_of_custom_resources_notice_faults() -> None:
    (monitor,) = [m for m in manifests("production") if m["kind"] == "PodMonitor"]
    broken = json.loads(json.dumps(monitor))
    broken["spec"]["podMetricsEndpoints"][0]["intervall"] = "10s"
    assert not faults(VERSIONS[-1], monitor)
    assert any("intervall" in fault for fault in faults(VERSIONS[-1], broken))


@pytest.mark.parametrize("name", OVERLAYS)
def test_names_are_not_used_twice(name: str) -> None:
    keys = [(m["kind"], m["metadata"].get("namespace"), m["metadata"]["name"]) for m in manifests(name)]
    assert len(keys) == len(set(keys))
