"""Monitoring comes with the deployment: the same dashboards and rules, and all that is to be scraped."""

from __future__ import annotations

import json
import os
import re
import shutil
import subprocess
import sys
from pathlib import Path

import pytest
import yaml

from tests.k8s_static.rendering import (
    K8S,
    OVERLAYS,
    ROOT,
    containers,
    manifests,
    matches,
    of_kind,
    only,
    pods,
)

WATCHED = ("local", "production")
KUBECTL_LIMIT = 262_144
"""Bytes of all annotations of an object; client-side `kubectl apply` keeps the whole object in one."""


def rules() -> object:
    return yaml.safe_load((K8S / "rules" / "livectr.yaml").read_text())["groups"]


@pytest.mark.parametrize("name", WATCHED)
def test_dashboards_are_those_of_the_code(name: str) -> None:
    found = {
        file: text
        for config in of_kind(name, "ConfigMap")
        if config["metadata"].get("labels", {}).get("grafana_dashboard") == "1"
        for file, text in config["data"].items()
    }
    assert found == {path.name: path.read_text() for path in K8S.glob("dashboards/*.json")}


def test_rules_are_those_of_the_code_with_and_without_an_operator() -> None:
    (rule,) = of_kind("production", "PrometheusRule")
    assert rule["spec"]["groups"] == rules()
    (config,) = [m for m in of_kind("local", "ConfigMap") if "livectr.yaml" in m["data"]]
    assert yaml.safe_load(config["data"]["livectr.yaml"])["groups"] == rules()
    template = dict(pods("local"))["Deployment/prometheus"]
    mounted = {v["configMap"]["name"]: v["name"] for v in template["spec"]["volumes"] if "configMap" in v}
    mounts = {m["name"]: m["mountPath"] for m in template["spec"]["containers"][0]["volumeMounts"]}
    assert mounts[mounted[config["metadata"]["name"]]] == "/etc/prometheus-rules"


def test_prometheus_understands_its_configuration(tmp_path: Path) -> None:
    promtool = shutil.which("promtool", path=f"{Path(sys.executable).parent}:{os.environ['PATH']}")
    assert promtool, "promtool is missing: `make setup` installs Debian's prometheus"
    (config,) = [m for m in of_kind("local", "ConfigMap") if "prometheus.yml" in m["data"]]
    text = config["data"]["prometheus.yml"]
    assert "/etc/prometheus-rules/livectr.yaml" in text
    (tmp_path / "prometheus.yml").write_text(text.replace("/etc/prometheus-rules", str(K8S / "rules")))
    command = [promtool, "check", "config", "--syntax-only", str(tmp_path / "prometheus.yml")]
    done = subprocess.run(command, capture_output=True, text=True, check=False)
    assert done.returncode == 0, done.stdout + done.stderr


def test_everything_with_a_metrics_port_is_scraped() -> None:
    """By the name of the port, in both ways of scraping; jobs have the names that dashboards ask for."""
    (monitor,) = of_kind("production", "PodMonitor")
    for name in WATCHED:
        for title, template in pods(name):
            labels, ports = (
                template["metadata"]["labels"],
                [p for c in containers(template) for p in c.get("ports", [])],
            )
            if any(port["name"] == "metrics" for port in ports) and name == "production":
                (expression,) = monitor["spec"]["selector"]["matchExpressions"]
                assert labels[expression["key"]] in expression["values"], title
    assert monitor["spec"]["jobLabel"] == "app.kubernetes.io/name"


def test_monitors_of_services_find_what_those_of_pods_do() -> None:
    """Each pod with metrics is behind one Service with the port, of either track and ready or not."""
    assert not of_kind("service-monitors", "PodMonitor")
    monitor = only("service-monitors", "ServiceMonitor", "livectr")["spec"]
    (pod_monitor,) = of_kind("production", "PodMonitor")
    assert monitor["selector"] == pod_monitor["spec"]["selector"]
    (endpoint,), (asked,) = monitor["endpoints"], pod_monitor["spec"]["podMetricsEndpoints"]
    assert {name: endpoint[name] for name in asked} == asked
    services = [
        service
        for service in of_kind("service-monitors", "Service")
        if matches(monitor["selector"], service["metadata"]["labels"])
        and endpoint["port"] in {port["name"] for port in service["spec"]["ports"]}
    ]
    assert all(service["spec"]["publishNotReadyAddresses"] is True for service in services)
    found = set()
    for title, template in pods("service-monitors"):
        if not any(port["name"] == "metrics" for c in containers(template) for port in c.get("ports", [])):
            continue
        labels = template["metadata"]["labels"]
        if labels["app.kubernetes.io/name"] == "redis":
            continue
        for track in ("stable", "canary"):
            if (track, labels["app.kubernetes.io/name"]) == ("canary", "trainer"):
                continue  # its Service is the canary's
            behind = [
                s
                for s in services
                if matches({"matchLabels": s["spec"]["selector"]}, labels | {"livectr.dev/track": track})
            ]
            assert len(behind) == 1, (title, track)
            found.add(behind[0]["metadata"]["labels"][monitor["jobLabel"]])
    assert found == {"trainer", "rank", "prerank", "recommend"}


def test_the_monitor_of_redis_is_of_a_port_of_its_pods() -> None:
    monitor = only("service-monitors", "ServiceMonitor", "redis")["spec"]
    (service,) = [
        s
        for s in of_kind("service-monitors", "Service")
        if matches(monitor["selector"], s["metadata"]["labels"])
    ]
    template = dict(pods("service-monitors"))["StatefulSet/valkey"]
    assert matches({"matchLabels": service["spec"]["selector"]}, template["metadata"]["labels"])
    ports = {port["name"] for c in containers(template) for port in c.get("ports", [])}
    assert monitor["endpoints"][0]["targetPort"] in ports


def test_prometheus_finds_every_pod_with_metrics_by_dns() -> None:
    """The record _metrics._tcp.SERVICE of a job is of a Service that selects its pods, ready or not."""
    (config,) = [m for m in of_kind("local", "ConfigMap") if "prometheus.yml" in m["data"]]
    found: dict[str, set[str]] = {}
    for job in yaml.safe_load(config["data"]["prometheus.yml"])["scrape_configs"]:
        for name in (name for sd in job.get("dns_sd_configs", []) for name in sd["names"]):
            if name.startswith("_metrics._tcp.recommend"):
                continue
            overlay = "canary" if name.endswith("trainer-canary") else "local"
            service = only(overlay, "Service", name.removeprefix("_metrics._tcp."))["spec"]
            assert service["clusterIP"] == "None" and service["publishNotReadyAddresses"] is True
            assert "metrics" in {port["name"] for port in service["ports"]}
            for track in ("local", "canary"):
                for title, template in pods(track):
                    if matches({"matchLabels": service["selector"]}, template["metadata"]["labels"]):
                        found.setdefault(title.partition("/")[2], set()).add(job["job_name"])
    wanted = {
        title.partition("/")[2]
        for track in ("local", "canary")
        for title, template in pods(track)
        if any(port["name"] == "metrics" for c in containers(template) for port in c.get("ports", []))
    }
    assert found == {name: {name} for name in wanted}


def test_queues_are_scaled_by_metrics_that_exist() -> None:
    page = (ROOT / "docs" / "metrics.md").read_text()
    for scaler in of_kind("queue", "ScaledObject"):
        (query,) = [t["metadata"]["query"] for t in scaler["spec"]["triggers"] if t["type"] == "prometheus"]
        for metric in re.findall(r"livectr_\w+", query):
            assert metric.removesuffix("_sum") in page, metric
        assert f'job="{scaler["metadata"]["name"]}"' in query and 'stage="wait"' in query


@pytest.mark.parametrize("name", OVERLAYS)
def test_objects_are_small_enough_for_kubectl(name: str) -> None:
    for manifest in manifests(name):
        assert len(json.dumps(json.dumps(manifest))) < KUBECTL_LIMIT, manifest["metadata"]["name"]


def test_the_monitor_of_a_canary_has_jobs_of_its_own() -> None:
    (monitor,) = of_kind("production", "PodMonitor")
    (relabel,) = monitor["spec"]["podMetricsEndpoints"][0]["relabelings"]
    match = re.fullmatch(relabel["regex"], "rank;canary")
    assert match and relabel["targetLabel"] == "job" and relabel["replacement"] == "$1-canary"
    assert not re.fullmatch(relabel["regex"], "rank;stable")
    assert only("canary", "Deployment", "rank-canary")


@pytest.mark.parametrize("track", ["stable", "canary"])
def test_prometheus_finds_recommend_servers_where_there_are_some(track: str) -> None:
    (config,) = [m for m in of_kind("recommend", "ConfigMap") if "prometheus.yml" in m["data"]]
    jobs = {
        job["job_name"]: job for job in yaml.safe_load(config["data"]["prometheus.yml"])["scrape_configs"]
    }
    job = jobs["recommend" if track == "stable" else "recommend-canary"]
    (name,) = job["dns_sd_configs"][0]["names"]
    service = only("recommend", "Service", name.removeprefix("_metrics._tcp."))["spec"]
    labels = dict(pods("recommend"))["Deployment/recommend"]["metadata"]["labels"]
    assert matches({"matchLabels": service["selector"]}, labels | {"livectr.dev/track": track})
    assert service["clusterIP"] == "None" and service["publishNotReadyAddresses"] is True
