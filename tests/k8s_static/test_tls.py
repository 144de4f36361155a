"""TLS of the components: who shows what to whom, tried with a real Prometheus."""

from __future__ import annotations

import json
import os
import subprocess
import urllib.request
from pathlib import Path
from typing import Any

import pytest
import yaml

from livectr.demo.prometheus import prometheus_program
from livectr.local.ports import free_ports
from livectr.system.children import with_parent
from livectr.system.metrics_server import metrics_server
from livectr.system.tls import TlsFiles
from tests.k8s_static.rendering import K8S, Manifest, manifests, of_kind, only
from tests.serving.certificates import Authority
from tests.waiting import left_s, until

METRICS_NAME = "livectr-metrics"
PLAIN, SECURE = (K8S / "components" / name / "prometheus.yml" for name in ("prometheus", "prometheus-tls"))


def certificates(name: str) -> dict[str, Manifest]:
    """Secret → specification of the Certificate that fills it."""
    return {m["spec"]["secretName"]: m["spec"] for m in of_kind(name, "Certificate")}


def mounted(template: Manifest, path: str) -> str:
    """Secret that the first container finds at the path."""
    (mount,) = [m for m in template["spec"]["containers"][0]["volumeMounts"] if m["mountPath"] == path]
    (volume,) = [v for v in template["spec"]["volumes"] if v["name"] == mount["name"]]
    return str(volume["secret"]["secretName"])


def templates(name: str) -> dict[str, Manifest]:
    """Pod templates of trainer and servers."""
    found = {}
    for manifest in manifests(name):
        part, spec = manifest["metadata"]["name"], manifest.get("spec", {})
        if part in ("trainer", "rank", "prerank", "recommend"):
            if manifest["kind"] == "JobSet":
                found[part] = spec["replicatedJobs"][0]["template"]["spec"]["template"]
            elif manifest["kind"] in ("Deployment", "StatefulSet"):
                found[part] = spec["template"]
    return found


@pytest.mark.parametrize("name", ["queue", "gang", "strimzi-tls"])
def test_metrics_have_certificates_for_the_name_that_is_asked_for(name: str) -> None:
    for part, template in templates(name).items():
        secret = mounted(template, "/tls")
        assert secret == f"{part}-tls"
        wanted = certificates(name)[secret]
        assert METRICS_NAME in wanted["dnsNames"] and wanted["usages"] == ["server auth"]
        given = {v["name"]: v.get("value") for v in template["spec"]["containers"][0]["env"]}
        assert given["LIVECTR_METRICS_TLS_CERT"] == "/tls/tls.crt"
        assert given["LIVECTR_METRICS_TLS_KEY"] == "/tls/tls.key"
        assert given["LIVECTR_METRICS_TLS_CLIENT_CA"] == "/tls/ca.crt"
    assert len(templates(name)) == (4 if name == "strimzi-tls" else 3)


def test_tokens_are_a_folder_that_follows_its_secret() -> None:
    """A file that is mounted by itself would never be renewed."""
    for part, template in templates("strimzi-tls").items():
        if part == "trainer":
            continue
        container = template["spec"]["containers"][0]
        given = {v["name"]: v.get("value") for v in container["env"]}
        assert (given["LIVECTR_TOKEN_FILE"], given["LIVECTR_REFLECTION"]) == ("/tokens/tokens", "false")
        assert mounted(template, "/tokens") == "livectr-tokens"
        assert not [mount for mount in container["volumeMounts"] if "subPath" in mount]


def test_the_operator_scrapes_by_https() -> None:
    spec = only("strimzi-tls", "PodMonitor", "livectr")["spec"]
    (endpoint,) = spec["podMetricsEndpoints"]
    assert endpoint["scheme"] == "https" and endpoint["tlsConfig"]["serverName"] == METRICS_NAME
    asked = endpoint["tlsConfig"]
    secrets = {asked["ca"]["secret"]["name"], asked["cert"]["secret"]["name"], asked["keySecret"]["name"]}
    (secret,) = secrets
    assert certificates("strimzi-tls")[secret]["usages"] == ["client auth"]
    (of_services,) = only("service-monitors", "ServiceMonitor", "livectr")["spec"]["endpoints"]
    assert of_services == endpoint
    (plain,) = only("production", "PodMonitor", "livectr")["spec"]["podMetricsEndpoints"]
    assert "scheme" not in plain


def jobs(text: str) -> dict[str, dict[str, Any]]:
    return {job["job_name"]: job for job in yaml.safe_load(text)["scrape_configs"]}


def test_both_settings_of_prometheus_differ_in_tls_alone() -> None:
    plain, secure = yaml.safe_load(PLAIN.read_text()), yaml.safe_load(SECURE.read_text())
    with_tls = {
        job["job_name"]
        for job in secure["scrape_configs"]
        if job.pop("scheme", None) and job.pop("tls_config")
    }
    assert plain == secure
    assert with_tls == jobs(PLAIN.read_text()).keys() - {"redis", "prometheus"}


def test_prometheus_shows_a_certificate_of_the_authority() -> None:
    template = only("queue", "Deployment", "prometheus")["spec"]["template"]
    assert certificates("queue")[mounted(template, "/tls")]["usages"] == ["client auth"]
    (config,) = [m for m in of_kind("queue", "ConfigMap") if "prometheus.yml" in m["data"]]
    assert config["data"]["prometheus.yml"] == SECURE.read_text()


def test_a_real_prometheus_gets_the_metrics(tmp_path: Path) -> None:
    """Its settings of TLS are those of the component; the target answers no client without a certificate."""
    authority = Authority(tmp_path)
    cert, key = authority.issue("pod", 1, METRICS_NAME)
    own = dict(zip(("cert_file", "key_file"), map(str, authority.issue("client")), strict=True))
    port, web = free_ports(1), free_ports(1)
    job = jobs(SECURE.read_text())["rank"]
    job = {key: job[key] for key in ("job_name", "scheme", "tls_config")}
    job["tls_config"] |= {"ca_file": str(authority.ca), **own}
    job["static_configs"] = [{"targets": [f"127.0.0.1:{port}"]}]
    nameless = {**job, "job_name": "nameless", "tls_config": {"ca_file": str(authority.ca)}}
    config = {"global": {"scrape_interval": "1s"}, "scrape_configs": [job, nameless]}
    (tmp_path / "prometheus.yml").write_text(yaml.safe_dump(config))
    command = [
        prometheus_program(),
        f"--config.file={tmp_path}/prometheus.yml",
        f"--storage.tsdb.path={tmp_path}/data",
    ]
    with (
        metrics_server(port, "127.0.0.1", TlsFiles(str(cert), str(key), str(authority.ca))),
        (tmp_path / "log").open("wb") as log,
    ):
        process = subprocess.Popen(
            with_parent([*command, f"--web.listen-address=127.0.0.1:{web}"]),
            stdout=log,
            stderr=log,
            env={**os.environ, "GOMAXPROCS": "1"},
        )
        try:
            found = health(web, process, tmp_path / "log")
        finally:
            process.kill()
            process.wait()
    assert found["rank"] == ("up", "")
    state, reason = found["nameless"]
    # In TLS 1.3 a client learns of its refusal when it writes: by the alert, or by the closed connection.
    assert state == "down" and ("certificate" in reason or "connection reset" in reason), reason


def health(web: int, process: subprocess.Popen[bytes], log: Path) -> dict[str, tuple[str, str]]:
    """Job → health and last error of its target, once all targets have been asked."""

    def asked() -> dict[str, tuple[str, str]]:
        with urllib.request.urlopen(f"http://127.0.0.1:{web}/api/v1/targets", timeout=left_s()) as answer:
            targets = json.load(answer)["data"]["activeTargets"]
        known = all(target["health"] != "unknown" for target in targets)
        return {t["labels"]["job"]: (t["health"], t["lastError"]) for t in targets} if known else {}

    return until(asked, despite=OSError, process=process, why=log.read_text)
