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


def test_prometheus_finds_recommend_servers_where_there_are_some() -> None:
    (config,) = [m for m in of_kind("recommend", "ConfigMap") if "prometheus.yml" in m["data"]]
    jobs = {
        job["job_name"]: job for job in yaml.safe_load(config["data"]["prometheus.yml"])["scrape_configs"]
    }
    (name,) = jobs["recommend"]["dns_sd_configs"][0]["names"]
    service = only("recommend", "Service", name.removeprefix("_metrics._tcp."))["spec"]
    template = dict(pods("recommend"))["Deployment/recommend"]
    assert matches({"matchLabels": service["selector"]}, template["metadata"]["labels"])
    assert service["clusterIP"] == "None" and service["publishNotReadyAddresses"] is True
