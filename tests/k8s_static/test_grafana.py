"""Grafana with all dashboards from files, routes of alerts, and the label that an operator selects by."""

from __future__ import annotations

import re
from typing import Any

import yaml

from k8s.rules.alerts import ALERTS
from tests.k8s_static.rendering import K8S, Manifest, of_kind, only

NAME = "recommend"
OPERATED = "strimzi-tls"
RELEASED = ("PodMonitor", "PrometheusRule", "AlertmanagerConfig")


def pod() -> tuple[Manifest, Manifest]:
    """Specification of Grafana's pod and its container."""
    spec = only(NAME, "Deployment", "grafana")["spec"]["template"]["spec"]
    (container,) = spec["containers"]
    return spec, container


def mounted(path: str) -> Manifest:
    """Volume at a path."""
    spec, container = pod()
    (name,) = [m["name"] for m in container["volumeMounts"] if m["mountPath"] == path]
    (volume,) = [v for v in spec["volumes"] if v["name"] == name]
    return dict(volume)


def provisioned(path: str) -> Any:
    """File that Grafana reads from a folder of its provisioning."""
    source = mounted(path)["configMap"]
    (item,) = source["items"]
    return yaml.safe_load(only(NAME, "ConfigMap", source["name"])["data"][item["key"]])


def test_every_dashboard_is_a_file_of_its_folder() -> None:
    (provider,) = provisioned("/etc/grafana/provisioning/dashboards")["providers"]
    folder = mounted(provider["options"]["path"])["projected"]["sources"]
    files = {
        name: text
        for source in folder
        for name, text in only(NAME, "ConfigMap", source["configMap"]["name"])["data"].items()
    }
    assert files == {path.name: path.read_text() for path in K8S.glob("dashboards/*.json")}
    assert not provider["allowUiUpdates"]


def test_its_data_source_is_the_prometheus_beside_it() -> None:
    (source,) = provisioned("/etc/grafana/provisioning/datasources")["datasources"]
    _, container = pod()
    told = {each["name"]: each["value"] for each in container["env"]}
    assert source["url"] == "$PROMETHEUS_URL" and source["type"] == "prometheus"
    host, _, port = told["PROMETHEUS_URL"].removeprefix("http://").partition(":")
    assert int(port) in [p["port"] for p in only(NAME, "Service", host)["spec"]["ports"]]


def test_the_password_is_a_file() -> None:
    _, container = pod()
    told = {each["name"]: each["value"] for each in container["env"]}
    assert not [name for name in told if name.endswith("PASSWORD")]
    folder, _, key = told["GF_SECURITY_ADMIN_PASSWORD__FILE"].rpartition("/")
    assert mounted(folder)["secret"]["secretName"] == "grafana-admin" and key == "password"


def matches(matcher: dict[str, str], labels: dict[str, str]) -> bool:
    value = labels.get(matcher["name"], "")
    exact = matcher["matchType"] == "="
    return value == matcher["value"] if exact else re.fullmatch(matcher["value"], value) is not None


def parsed(text: str) -> dict[str, str]:
    """Matcher of Alertmanager's own form, in the operator's words."""
    found = re.fullmatch(r'(\w+) (=~?) "(.+)"', text)
    assert found, text
    return dict(zip(("name", "matchType", "value"), found.groups(), strict=True))


def receiver(route: dict[str, Any], labels: dict[str, str]) -> str:
    """Receiver of an alert: of the first route below that takes it, else of this."""
    for below in route.get("routes", []):
        if all(matches(m if isinstance(m, dict) else parsed(m), labels) for m in below["matchers"]):
            return receiver(below, labels)
    return str(route["receiver"])


def test_pages_and_tickets_go_their_ways_with_and_without_an_operator() -> None:
    plain = yaml.safe_load((K8S / "rules" / "alertmanager.yml").read_text())
    (routes,) = of_kind(OPERATED, "AlertmanagerConfig")
    own = {"matchers": routes["spec"]["route"]["matchers"], **routes["spec"]["route"]}
    for alert in ALERTS:
        labels = {"alertname": alert.full_name, "severity": alert.severity, "namespace": "livectr"}
        assert receiver(plain["route"], labels) == alert.severity
        assert receiver({"receiver": "nobody", "routes": [own]}, labels) == alert.severity
    stranger = {"alertname": "Watchdog", "severity": "page"}
    assert receiver(plain["route"], stranger) == "nobody"
    assert receiver({"receiver": "nobody", "routes": [own]}, stranger) == "nobody"
    for found in (plain["receivers"], routes["spec"]["receivers"]):
        assert {"page", "ticket"} <= {each["name"] for each in found}


def test_alerts_that_others_hide_exist() -> None:
    plain = yaml.safe_load((K8S / "rules" / "alertmanager.yml").read_text())["inhibit_rules"]
    (routes,) = of_kind(OPERATED, "AlertmanagerConfig")
    operated = routes["spec"]["inhibitRules"]
    names = {alert.full_name for alert in ALERTS}
    for rules, ends in (
        (plain, ("source_matchers", "target_matchers")),
        (operated, ("sourceMatch", "targetMatch")),
    ):
        for rule in rules:
            for end in ends:
                (matcher,) = [m if isinstance(m, dict) else parsed(m) for m in rule[end]]
                assert [name for name in names if matches(matcher, {"alertname": name})], matcher


def test_monitors_and_rules_have_the_label_of_a_release() -> None:
    found = [*of_kind(OPERATED, *RELEASED), *of_kind("service-monitors", "ServiceMonitor", "PrometheusRule")]
    for manifest in found:
        assert manifest["metadata"]["labels"]["release"] == "kube-prometheus-stack", manifest["kind"]
    assert {manifest["kind"] for manifest in found} == {*RELEASED, "ServiceMonitor"}
    assert "release" not in of_kind("production", "PodMonitor")[0]["metadata"]["labels"]
