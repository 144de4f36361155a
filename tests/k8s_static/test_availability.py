"""Roll-outs, drains, failures of machines and load: what the manifests promise."""

from __future__ import annotations

import re
from pathlib import Path

import pytest
import yaml

from tests.k8s_static.rendering import (
    OVERLAYS,
    Manifest,
    containers,
    lives,
    manifests,
    matches,
    of_kind,
    only,
    pods,
    settings,
)  # fmt: skip

SERVERS = ("rank", "prerank", "recommend")
every_overlay = pytest.mark.parametrize("name", OVERLAYS)


def servers(name: str) -> list[Manifest]:
    return [
        m for m in of_kind(name, "Deployment") if m["metadata"]["name"].removesuffix("-canary") in SERVERS
    ]


@every_overlay
def test_no_budget_blocks_a_drain(name: str) -> None:
    """With minAvailable 1, a single replica could never be moved."""
    for budget in of_kind(name, "PodDisruptionBudget"):
        spec = budget["spec"]
        assert spec["unhealthyPodEvictionPolicy"] == "AlwaysAllow"
        assert "minAvailable" not in spec and spec["maxUnavailable"] == 1


def test_servers_and_redis_have_a_budget() -> None:
    """The trainer has none: all its pods stop when one does, so a budget would protect nothing."""
    guarded = {
        b["spec"]["selector"]["matchLabels"]["app.kubernetes.io/name"]
        for b in of_kind("local", "PodDisruptionBudget")
    }
    assert guarded == {"rank", "prerank", "redis", "valkey", "sentinel", "kafka"}


@every_overlay
def test_a_rollout_keeps_all_servers(name: str) -> None:
    assert servers(name)
    for server in servers(name):
        assert server["spec"]["strategy"]["rollingUpdate"] == {"maxUnavailable": 0, "maxSurge": 1}
        assert server["spec"]["minReadySeconds"] > 0


@every_overlay
def test_servers_spread_over_zones_and_machines_when_they_can(name: str) -> None:
    for server in servers(name):
        spec, labels = server["spec"]["template"]["spec"], server["spec"]["template"]["metadata"]["labels"]
        (zone,) = spec["topologySpreadConstraints"]
        assert (
            zone["topologyKey"] == "topology.kubernetes.io/zone"
            and zone["whenUnsatisfiable"] == "ScheduleAnyway"
        )
        (rule,) = spec["affinity"]["podAntiAffinity"]["preferredDuringSchedulingIgnoredDuringExecution"]
        assert rule["podAffinityTerm"]["topologyKey"] == "kubernetes.io/hostname"
        for selector in (zone["labelSelector"], rule["podAffinityTerm"]["labelSelector"]):
            assert matches(selector, labels)


@every_overlay
def test_serving_goes_before_training(name: str) -> None:
    classes = {m["metadata"]["name"]: m for m in of_kind("local", "PriorityClass")}
    assert classes["livectr-serving"]["value"] > classes["livectr-training"]["value"]
    assert classes["livectr-training"]["preemptionPolicy"] == "Never"
    for title, template in pods(name):
        if not title.startswith(
            ("Deployment/simulator", "Deployment/client", "Deployment/prometheus", "Deployment/grafana")
        ):
            wanted = "training" if "trainer" in title or "CronJob" in title else "serving"
            assert template["spec"]["priorityClassName"] == f"livectr-{wanted}", title


@every_overlay
def test_autoscalers_watch_cpu_and_the_queue_but_never_memory(name: str) -> None:
    targets = set()
    for scaler in of_kind(name, "HorizontalPodAutoscaler"):
        targets.add((scaler["spec"]["scaleTargetRef"]["kind"], scaler["spec"]["scaleTargetRef"]["name"]))
        assert [metric["resource"]["name"] for metric in scaler["spec"]["metrics"]] == ["cpu"]
        assert scaler["spec"]["minReplicas"] >= 2
    for scaler in of_kind(name, "ScaledObject"):
        targets.add((scaler["spec"]["scaleTargetRef"]["kind"], scaler["spec"]["scaleTargetRef"]["name"]))
        assert {trigger["type"] for trigger in scaler["spec"]["triggers"]} == {"cpu", "prometheus"}
    assert targets <= {("Deployment", role) for role in SERVERS}, "the trainer is not scaled by load"
    for kind, target in targets:  # a number in the manifest would undo the autoscaler's at each apply
        assert "replicas" not in only(name, kind, target)["spec"]


@every_overlay
def test_a_pod_has_time_to_stop(name: str, tmp_path: Path) -> None:
    """Grace of the pod > preStop + drain + age of connections + grace of requests (docs/processes.md)."""
    chosen = settings(name, tmp_path)
    for server in servers(name):
        spec = server["spec"]["template"]["spec"]
        (container,) = spec["containers"]
        program, seconds = container["lifecycle"]["preStop"]["exec"]["command"]
        assert program == "sleep"
        needed = float(seconds) + chosen.drain_s + 1.2 * chosen.max_connection_age_s + chosen.grace_s
        assert spec["terminationGracePeriodSeconds"] >= needed + 10
    for title, template in pods(name):
        if "trainer" in title:
            assert template["spec"]["terminationGracePeriodSeconds"] >= 60, title


@every_overlay
def test_probes_tell_start_ready_and_alive_apart(name: str, tmp_path: Path) -> None:
    listen = settings(name, tmp_path).health_listen
    assert listen is not None
    health = int(listen.rpartition(":")[2])
    for title, template in pods(name):
        for container in template["spec"]["containers"]:
            if not lives(container):
                continue
            asked = {kind: container[f"{kind}Probe"] for kind in ("startup", "readiness", "liveness")}
            names = {"startup": "startup", "readiness": "ready", "liveness": "live"}
            for kind, probe in asked.items():
                assert probe["grpc"] == {"port": health, "service": names[kind]}, title
                assert probe["failureThreshold"] >= 3, f"{title}: one slow answer must not count"
                assert probe["timeoutSeconds"] >= 3
            assert asked["liveness"]["periodSeconds"] * asked["liveness"]["failureThreshold"] >= 60


@every_overlay
def test_a_slow_start_is_not_ended(name: str) -> None:
    """On a busy node a start takes minutes, and a start that was ended takes them again."""
    for title, template in pods(name):
        for container in template["spec"]["containers"]:
            if probe := container.get("startupProbe", container.get("livenessProbe")):
                seconds = (
                    probe.get("initialDelaySeconds", 0) + probe["periodSeconds"] * probe["failureThreshold"]
                )
                assert seconds >= 600, f"{title}: {container['name']} has {seconds} s to start"


@every_overlay
def test_everything_that_listens_has_probes(name: str) -> None:
    for title, template in pods(name):
        for container in template["spec"]["containers"]:
            if container.get("ports") and "CronJob" not in title:
                assert {"readinessProbe", "livenessProbe"} <= set(container) or "train" in container[
                    "command"
                ], title


@every_overlay
def test_services_find_pods_and_their_ports(name: str) -> None:
    for service in of_kind(name, "Service"):
        title, wanted = service["metadata"]["name"], service["spec"]["selector"]
        found = [
            template
            for _, template in pods(name)
            for beside in ({}, {"livectr.dev/track": "canary"})  # a Service may be for the canary beside it
            if matches({"matchLabels": wanted}, template["metadata"]["labels"] | beside)
        ]
        assert found, f"{title} selects nothing"
        for template in found:
            declared = [port for c in containers(template) for port in c.get("ports", [])]
            for port in service["spec"]["ports"]:
                target = port.get("targetPort", port["port"])
                assert any(target in (p["name"], p["containerPort"]) for p in declared), f"{title}: {port}"


def test_servers_differ_in_their_role_alone() -> None:
    """A recommend server has more memory, for both models; ranking ones may have a claim and log."""
    texts = {
        role: {
            m["kind"] + m["metadata"]["name"].removeprefix(role): yaml.safe_dump(m).replace(role, "ROLE")
            for m in manifests("strimzi-tls")
            if re.match(rf"{role}(-\w+)?$", m["metadata"]["name"])
        }
        for role in SERVERS
    }
    del texts["recommend"]["Service-metrics"]  # of `prometheus`, where the others' are
    deployments = {role: found.pop("Deployment").splitlines() for role, found in texts.items()}
    assert texts["rank"] == texts["prerank"] == texts["recommend"] and len(texts["rank"]) == 5
    differing = [
        pair for pair in zip(deployments["rank"], deployments["recommend"], strict=True) if len(set(pair)) > 1
    ]
    assert {a.split(":")[0].strip() for a, _ in differing} == {"memory"}
    assert set(deployments["prerank"]) <= set(deployments["rank"])
