"""k8s/apply.sh: JobSets get the name of their content, and an autoscaler of somebody else is refused."""

from __future__ import annotations

import json
import os
import re
import subprocess
from pathlib import Path

import pytest
import yaml

from tests.k8s_static.rendering import K8S, OVERLAYS, Manifest, kubectl, manifests, moved, of_kind

SCRIPT = K8S / "apply.sh"
FAKE = """\
#!/bin/sh
[ "$1" = kustomize ] && exec {kubectl} "$@"
echo "$@" >> "$0.log"
case "$*" in *{kind}*jsonpath*) cat "$0.answer" ;; esac
"""
"""A kubectl that renders, notes all other calls, and answers what there is of a kind."""


@pytest.fixture
def cluster(tmp_path: Path) -> Path:
    """Folder of a `kubectl` that knows no object; `kubectl.answer` is what it knows."""
    folder = tmp_path / "bin"
    folder.mkdir()
    (folder / "kubectl").write_text(FAKE.format(kubectl=kubectl(), kind=""))
    (folder / "kubectl").chmod(0o755)
    (folder / "kubectl.answer").write_text("")
    return folder


def run(cluster: Path, *words: str | Path) -> subprocess.CompletedProcess[str]:
    environment = os.environ | {"PATH": f"{cluster}:{os.environ['PATH']}"}
    return subprocess.run([SCRIPT, *words], env=environment, capture_output=True, text=True)


def rendered(cluster: Path, folder: Path) -> list[Manifest]:
    done = run(cluster, "--render", folder)
    assert done.returncode == 0, done.stderr
    return [each for each in yaml.load_all(done.stdout, yaml.CSafeLoader) if each]


def jobset(found: list[Manifest]) -> Manifest:
    (one,) = [each for each in found if each["kind"] == "JobSet"]
    return one


def calls(cluster: Path) -> list[str]:
    log = cluster / "kubectl.log"
    return log.read_text().splitlines() if log.exists() else []


def test_a_jobset_has_the_hash_of_its_content(cluster: Path, tmp_path: Path) -> None:
    """The same content has the same name, and another image, setting or size another one."""
    first = jobset(rendered(cluster, OVERLAYS["gang"]))
    assert re.fullmatch(r"trainer-[0-9a-f]{8}", name := first["metadata"]["name"])
    assert f"{name}-nodes-0-0.trainer:29400" in json.dumps(first)
    assert jobset(rendered(cluster, OVERLAYS["gang"])) == first
    folder = tmp_path / "changed"
    folder.mkdir()
    moved(OVERLAYS["gang"], folder, "livectr")
    overlay = yaml.safe_load((folder / "kustomization.yaml").read_text())
    overlay["images"] = [{"name": "livectr/train", "newTag": "0.2.1"}]
    (folder / "kustomization.yaml").write_text(yaml.safe_dump(overlay))
    assert jobset(rendered(cluster, folder))["metadata"]["name"] != name


def test_nothing_else_is_changed(cluster: Path) -> None:
    for name in ("gang", "queue"):
        known = [each for each in manifests(name) if each["kind"] != "JobSet"]
        assert [each for each in rendered(cluster, OVERLAYS[name]) if each["kind"] != "JobSet"] == known


def test_the_former_jobset_ends_before_the_next_is_applied(cluster: Path) -> None:
    own = jobset(rendered(cluster, OVERLAYS["gang"]))["metadata"]["name"]
    (cluster / "kubectl.answer").write_text(f"trainer trainer-0123abcd {own} trainer-canary-0123abcd other")
    assert run(cluster, OVERLAYS["gang"]).returncode == 0
    told = [call.removeprefix("--namespace livectr ") for call in calls(cluster)]
    assert told[0].startswith("apply --server-side --dry-run=server")
    assert told[-1].startswith("apply --server-side --filename")
    deleted = [call for call in told if call.startswith("delete")]
    assert deleted == [
        f"delete jobset {each} --cascade=foreground" for each in ("trainer", "trainer-0123abcd")
    ]


def test_an_autoscaler_of_another_name_is_refused_before_anything_is_applied(cluster: Path) -> None:
    (cluster / "kubectl.answer").write_text("rank by-hand \nother foreign \n")
    done = run(cluster, OVERLAYS["queue"])
    assert done.returncode == 3 and "HorizontalPodAutoscaler/by-hand scales rank" in done.stderr
    assert not [call for call in calls(cluster) if " apply " in call]


def test_autoscalers_that_keda_owns_or_takes_over_are_none_of_it(cluster: Path) -> None:
    (cluster / "kubectl.answer").write_text("rank keda-hpa-rank ScaledObject\nprerank prerank \n")
    assert run(cluster, "--check", OVERLAYS["queue"]).returncode == 0
    told = [call for call in calls(cluster) if " apply " in call]
    assert len(told) == 1 and "--dry-run=server" in told[0]
    for scaler in of_kind("queue", "ScaledObject"):
        assert scaler["metadata"]["annotations"]["scaledobject.keda.sh/transfer-hpa-ownership"] == "true"
        taken = scaler["spec"]["advanced"]["horizontalPodAutoscalerConfig"]["name"]
        assert taken == scaler["spec"]["scaleTargetRef"]["name"]
        assert taken in {m["metadata"]["name"] for m in of_kind("local", "HorizontalPodAutoscaler")}
    assert not of_kind("queue", "HorizontalPodAutoscaler")


def test_without_an_overlay_it_says_how_it_is_used(cluster: Path) -> None:
    done = run(cluster)
    assert done.returncode == 2 and "OVERLAY" in done.stderr and not calls(cluster)
