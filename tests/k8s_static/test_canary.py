"""A canary beside the stable track: it takes nothing of it but its share of requests."""

from __future__ import annotations

import os
import subprocess
from pathlib import Path

import pytest
import yaml

from tests.k8s_static.rendering import K8S, manifests, matches, of_kind, pods, render, settings

ROLES = ("rank", "prerank")
SCRIPT = K8S / "canary.sh"


def test_it_changes_nothing_of_the_stable_track() -> None:
    """No object of the canary has the name of a stable one: `kubectl delete -k` deletes the canary alone."""
    names = {
        overlay: {(m["kind"], m["metadata"]["name"]) for m in manifests(overlay)}
        for overlay in ("local", "canary")
    }
    assert not names["local"] & names["canary"]


def test_all_that_its_pods_name_is_there() -> None:
    """Secrets, ConfigMaps, claims, accounts and priorities are the canary's own or the stable track's."""
    made = {(m["kind"], m["metadata"]["name"]) for name in ("local", "canary") for m in manifests(name)}
    named = set()
    for _, template in pods("canary"):
        spec = template["spec"]
        named |= {
            ("ServiceAccount", spec["serviceAccountName"]),
            ("PriorityClass", spec["priorityClassName"]),
        }
        for volume in spec["volumes"]:
            for kind, source, key in (
                ("Secret", "secret", "secretName"),
                ("ConfigMap", "configMap", "name"),
                ("PersistentVolumeClaim", "persistentVolumeClaim", "claimName"),
            ):
                named |= {(kind, volume[source][key])} if source in volume else set()
    assert {kind for kind, _ in named} >= {"Secret", "ConfigMap", "PersistentVolumeClaim"}
    assert named <= made, named - made


def test_tracks_own_their_pods() -> None:
    """Selectors of Deployments and StatefulSets select the pods of their own track alone."""
    for overlay, other in (("local", "canary"), ("canary", "local")):
        foreign = [template["metadata"]["labels"] for _, template in pods(other)]
        for owner in of_kind(overlay, "Deployment", "StatefulSet"):
            selector = owner["spec"]["selector"]
            assert not any(matches(selector, labels) for labels in foreign), owner["metadata"]["name"]


def test_services_select_both_tracks_and_the_policies_hold_for_both() -> None:
    canary = {
        title.removeprefix("Deployment/"): template["metadata"]["labels"]
        for title, template in pods("canary")
        if title.startswith("Deployment/")
    }
    for role in ROLES:
        labels = canary[f"{role}-canary"]
        assert labels["livectr.dev/track"] == "canary"
        for service in of_kind("local", "Service"):
            if service["metadata"]["name"] in (role, f"{role}-pods"):
                assert matches({"matchLabels": service["spec"]["selector"]}, labels)
        assert any(
            matches(policy["spec"]["podSelector"], labels)
            and policy["metadata"]["name"] == "clients-to-servers"
            for policy in of_kind("local", "NetworkPolicy")
        )


def test_it_has_its_own_model(tmp_path: Path) -> None:
    texts = {
        overlay: next(m for m in of_kind(overlay, "ConfigMap") if "livectr.toml" in m["data"])["data"][
            "livectr.toml"
        ]
        for overlay in ("local", "canary")
    }
    assert 'namespace = "canary"' in texts["canary"] and "namespace" not in texts["local"]
    claims = {m["metadata"]["name"] for m in of_kind("canary", "PersistentVolumeClaim")}
    assert claims == {"checkpoint-canary"}


def test_its_trainer_continues_the_stable_one(tmp_path: Path) -> None:
    """From the claim that the stable trainer writes, which it only reads, with the changed pipeline."""
    found = settings("canary", tmp_path)
    template = dict(pods("canary"))["StatefulSet/trainer-canary"]
    claims = {
        v["name"]: v["persistentVolumeClaim"]["claimName"]
        for v in template["spec"]["volumes"]
        if "persistentVolumeClaim" in v
    }
    mounts = {m["mountPath"]: m for m in template["spec"]["containers"][0]["volumeMounts"]}
    theirs = settings("local", tmp_path).checkpoint
    assert theirs is not None and theirs.startswith("/checkpoint/")
    assert (found.warm_start, found.warm_parts) == (theirs.replace("/checkpoint", "/stable"), "run")
    stable, own = mounts["/stable"], mounts["/checkpoint"]
    assert stable["readOnly"] is True and "readOnly" not in own
    assert (claims[stable["name"]], claims[own["name"]]) == ("checkpoint", "checkpoint-canary")
    assert f"runs=${{RUNS:-{found.warm_start} {found.checkpoint}}}" in SCRIPT.read_text()


def test_no_job_of_it_writes_the_stable_checkpoint() -> None:
    for title, template in pods("canary"):
        claims = [v.get("persistentVolumeClaim", {}).get("claimName") for v in template["spec"]["volumes"]]
        assert "checkpoint" not in claims or title == "StatefulSet/trainer-canary"


def test_with_tls_it_shows_the_certificates_of_the_stable_track(tmp_path: Path) -> None:
    """Certificates of its own would fill the same Secrets, and cert-manager issue them in turn for ever."""
    base, *components = (
        os.path.relpath(K8S / part, tmp_path) for part in ("base", "components/tls", "components/canary")
    )
    text = yaml.safe_dump({"resources": [base], "components": components})
    (tmp_path / "kustomization.yaml").write_text(text)
    rendered = render(tmp_path)
    assert not [m["metadata"]["name"] for m in rendered if m["kind"] in ("Certificate", "Issuer")]
    secrets = {
        manifest["metadata"]["name"]: volume["secret"]["secretName"]
        for manifest in rendered
        if manifest["kind"] in ("Deployment", "StatefulSet")
        for volume in manifest["spec"]["template"]["spec"]["volumes"]
        if volume["name"] == "tls"
    }
    assert secrets == {f"{part}-canary": f"{part}-tls" for part in ("trainer", *ROLES)}


KUBECTL = """\
#!/bin/sh
echo "$@" >> "$0.log"
case "$*" in *jsonpath*) echo 4 ;; *" exec "*) echo 'wait: few'; cat "$0.answer" ;; esac
"""
"""Knows 4 stable pods, and what a comparison says at last."""


@pytest.fixture
def told(tmp_path: Path) -> Path:
    """File with the words of every call of a stand-in of kubectl."""
    program = tmp_path / "kubectl"
    program.write_text(KUBECTL)
    program.chmod(0o755)
    return tmp_path / "kubectl.log"


def run(told: Path, *words: str, code: int = 0, answer: str = "") -> list[str]:
    told.write_text("")
    told.with_suffix(".answer").write_text(f"{answer}\n")
    environment = os.environ | {"PATH": f"{told.parent}:{os.environ['PATH']}"}
    assert subprocess.run([SCRIPT, *words], env=environment, check=False).returncode == code
    return told.read_text().splitlines()


def test_promotion_waits_for_the_servers(told: Path) -> None:
    calls = run(told, "promote")
    steps = [
        next(i for i, call in enumerate(calls) if word in call) for word in ("scale", "rollout", "patch")
    ]
    assert steps == sorted(steps)
    assert sum("--replicas=4" in call for call in calls) == 2
    assert sum('{"livectr.dev/track":"canary"}' in call for call in calls) == 2
    assert all(call.startswith("--namespace livectr ") for call in calls)


def test_a_rollback_moves_requests_first(told: Path) -> None:
    calls = run(told, "rollback")
    assert ["patch" in call for call in calls] == [True, True, False, False]
    assert all('"stable"' in call for call in calls[:2]) and all("--replicas=0" in call for call in calls[2:])


def test_a_share_is_a_number(told: Path) -> None:
    assert sum("--replicas=3" in call for call in run(told, "share", "3")) == 2
    assert not run(told, "share", "some", code=2)


RULE = "examples >= 9 and auc > 0"


def test_a_rule_is_asked_in_the_pod_that_has_both_checkpoints(told: Path) -> None:
    asked, *calls = run(told, "promote", RULE, answer="promote: after 9 examples")
    words = "livectr experiment compare /stable/run /checkpoint/run --watch --rule"
    assert (
        asked == f"--namespace livectr exec statefulset/trainer-canary --container trainer -- {words} {RULE}"
    )
    assert calls == run(told, "promote")


def test_a_rule_that_says_no_rolls_back(told: Path) -> None:
    _, *calls = run(told, "promote", RULE, answer="refuse: after 9 examples", code=1)
    assert calls == run(told, "rollback")


def test_a_comparison_that_is_cut_off_changes_nothing(told: Path) -> None:
    """An exit code does not tell: kubectl's own is that of a refusal when it loses the connection."""
    assert len(run(told, "promote", RULE, answer="error: lost connection to pod", code=3)) == 1
