"""One ConfigMap with the settings of all processes: checked here, and in the cluster before a roll-out."""

from __future__ import annotations

import re
from pathlib import Path
from urllib.parse import urlsplit

import pytest
import yaml

from livectr.ingest.pipeline import load_pipeline
from tests.k8s_static.rendering import (
    K8S,
    OVERLAYS,
    ROOT,
    containers,
    lives,
    manifests,
    of_kind,
    only,
    pods,
    settings,
)  # fmt: skip

every_overlay = pytest.mark.parametrize("name", OVERLAYS)


@every_overlay
def test_settings_and_pipeline_are_valid(name: str, tmp_path: Path) -> None:
    (config,) = [m for m in of_kind(name, "ConfigMap") if "livectr.toml" in m["data"]]
    assert config["metadata"]["name"] not in ("livectr", "livectr-canary"), (
        "no hash: no roll-out when it changes"
    )
    chosen = settings(name, tmp_path)
    (tmp_path / "pipeline.py").write_text(config["data"]["pipeline.py"])
    assert load_pipeline(tmp_path / "pipeline.py").fingerprint
    assert chosen.log_format == "json"
    assert chosen.pipeline == "/etc/livectr/pipeline.py"


def test_the_pipeline_is_the_examples() -> None:
    """kustomize reads no file outside of its folder, so the base has a copy: the only one."""
    example = (ROOT / "examples" / "display_ads" / "pipeline.py").read_bytes()
    (copy,) = K8S.rglob("pipeline.py")
    assert copy == K8S / "base" / "pipeline.py" and copy.read_bytes() == example


def test_the_rule_of_the_size_is_the_same_everywhere() -> None:
    rules = {
        path: path.read_text().replace("trainer-canary", "trainer")
        for path in sorted(K8S.glob("*/nodes.yaml"))
    } | {
        p: p.read_text().replace("trainer-canary", "trainer")
        for p in sorted(K8S.glob("overlays/*/nodes.yaml"))
    }
    assert len(rules) >= 3 and len(set(rules.values())) == 1


@every_overlay
def test_settings_are_validated_before_a_process_starts(name: str) -> None:
    checked = 0
    for title, template in pods(name):
        (main, *_) = template["spec"]["containers"]
        if not lives(main):
            continue
        checked += 1
        (check,) = [c for c in containers(template) if c["name"] == "validate"]
        files = {f for f in main["command"] if f.startswith("--config=")}
        words = ["features", "compile"] if "serve" in main["command"] else ["inspect"]
        assert check["command"][: 1 + len(words)] == ["livectr", *words] and files <= set(check["command"]), (
            title
        )
        assert "--pipeline=/etc/livectr/pipeline.py" in check["command"], title
        assert check["image"].rpartition(":")[2] == main["image"].rpartition(":")[2], title
    assert checked >= 3


@pytest.mark.parametrize("name", ["local", "production"])
def test_the_check_can_be_applied_alone(name: str) -> None:
    """Objects with the label livectr.dev/stage=check are all that the Job `validate` needs but the Secret."""
    chosen = {
        (m["kind"], m["metadata"]["name"])
        for m in manifests(name)
        if m["metadata"].get("labels", {}).get("livectr.dev/stage") == "check"
    }
    spec = only(name, "CronJob", "validate")["spec"]["jobTemplate"]["spec"]["template"]["spec"]
    needed = {("Namespace", "livectr"), ("CronJob", "validate")}
    needed |= {("ServiceAccount", spec["serviceAccountName"]), ("PriorityClass", spec["priorityClassName"])}
    needed |= {("ConfigMap", v["configMap"]["name"]) for v in spec["volumes"] if "configMap" in v}
    assert chosen == needed


@every_overlay
def test_ports_are_those_of_the_settings(name: str, tmp_path: Path) -> None:
    chosen = settings(name, tmp_path)
    assert chosen.health_listen is not None
    for title, template in pods(name):
        (main, *_) = template["spec"]["containers"]
        if not lives(main):
            continue
        ports = {p["name"]: p["containerPort"] for p in main["ports"]}
        assert ports["metrics"] == chosen.metrics_port, title
        assert ports["health"] == int(chosen.health_listen.rpartition(":")[2]), title
        if "serve" in main["command"]:
            assert ports["grpc"] == int(chosen.listen.rpartition(":")[2]), title
    for address in (chosen.listen, chosen.health_listen, chosen.metrics_listen + ":0"):
        assert address.startswith("0.0.0.0:"), "a pod is reached from others"


def test_addresses_are_services_of_the_overlay(tmp_path: Path) -> None:
    chosen = settings("local", tmp_path)
    services = {
        m["metadata"]["name"]: {p["port"] for p in m["spec"]["ports"]} for m in of_kind("local", "Service")
    }
    for url in (chosen.source, chosen.publish, chosen.redis):
        parts = urlsplit(str(url))
        assert parts.port in services[str(parts.hostname)], url


@every_overlay
def test_users_of_redis_have_a_password_file(name: str, tmp_path: Path) -> None:
    """`publish` is the trainer's user, `redis` the servers'; each pod mounts its own password alone."""
    chosen = settings(name, tmp_path)
    assert urlsplit(str(chosen.publish)).username == "trainer" and urlsplit(chosen.redis).username == "server"
    for title, template in pods(name):
        for volume in template["spec"].get("volumes", []):
            if volume["name"] == "redis-auth" and "items" in volume["secret"]:
                (item,) = volume["secret"]["items"]
                user = (
                    "server"
                    if re.search("rank|recommend", title)
                    else "monitor"
                    if title == "Deployment/redis"
                    else "trainer"
                )
                assert item["key"] == user, title


def test_overlays_change_only_what_they_mean_to() -> None:
    """Settings that an overlay replaces have all keys of the base's: a forgotten one would be a default."""
    import tomllib

    base = tomllib.loads((K8S / "base" / "livectr.toml").read_text())
    for path in sorted(K8S.glob("overlays/*/livectr.toml")):
        assert base.keys() <= tomllib.loads(path.read_text()).keys(), path
    assert yaml.safe_load((K8S / "base" / "kustomization.yaml").read_text())["configMapGenerator"]
