"""TLS between clients and servers and of metrics, by the components `tls` and `prometheus-tls`.

cert-manager is not in the lab: certificates are issued here, with the names and Secrets that its
`Certificate`s ask for. All else is applied as it is.
"""

from __future__ import annotations

import json
import os
import subprocess
import time
from base64 import b64encode
from typing import Any

import pytest
import yaml

from k8s.demo import OVERLAY, QUERY, ROOT, Cluster, DemoError
from tests.k8s.report import note
from tests.k8s.scrape import prometheus, until_all_answer
from tests.k8s.traffic import pods
from tests.serving.certificates import Authority

CERT_MANAGER = ("Certificate", "Issuer")
WITH_TLS = """\
apiVersion: kustomize.config.k8s.io/v1beta1
kind: Kustomization
namespace: livectr
resources:
  - {local}
components:
  - {components}/tls
  - {components}/prometheus-tls
patches:
  - patch: |
      apiVersion: apps/v1
      kind: Deployment
      metadata:
        name: client
      spec:
        template:
          spec:
            containers:
              - name: client
                command: [sleep, infinity]
                volumeMounts:
                  - name: tls
                    mountPath: /tls
            volumes:
              - name: tls
                secret:
                  secretName: client-tls
                  defaultMode: 0440
"""
"""The client of the local overlay speaks no TLS; here it waits for commands, with a client's certificate."""
SHOWN = ("--tls-cert=/tls/tls.crt", "--tls-key=/tls/tls.key")


def secret(certificate: dict[str, Any], authority: Authority) -> dict[str, Any]:
    """Secret that cert-manager makes of a `Certificate`."""
    spec = certificate["spec"]
    pair = authority.issue(spec["secretName"], 1, *spec.get("dnsNames", []))
    files = dict(zip(("tls.crt", "tls.key", "ca.crt"), (*pair, authority.ca), strict=True))
    return {
        "apiVersion": "v1", "kind": "Secret", "metadata": {"name": spec["secretName"]},
        "data": {name: b64encode(path.read_bytes()).decode() for name, path in files.items()},
    }  # fmt: skip


@pytest.fixture(scope="module")
def encrypted(deployed: Cluster, tmp_path_factory: pytest.TempPathFactory) -> Cluster:
    """The local overlay with TLS, all pods ready."""
    folder = tmp_path_factory.mktemp("tls")
    local = os.path.relpath(OVERLAY, folder.resolve())
    components = os.path.relpath(ROOT / "k8s" / "components", folder.resolve())
    (folder / "kustomization.yaml").write_text(WITH_TLS.format(local=local, components=components))
    command = [deployed.program, "kustomize", str(folder)]
    rendered = subprocess.run(command, env=deployed.variables, check=True, capture_output=True, text=True)
    manifests = list(yaml.safe_load_all(rendered.stdout))
    authority = Authority(tmp_path_factory.mktemp("authority"))
    asked = [each for each in manifests if each["kind"] == "Certificate" and not each["spec"].get("isCA")]
    assert {each["spec"]["secretName"] for each in asked} >= {"rank-tls", "prerank-tls", "client-tls"}
    secrets = [secret(each, authority) for each in asked]
    rest = [each for each in manifests if each["kind"] not in CERT_MANAGER]
    deployed.kubectl("apply", "--server-side", "--filename=-", text=yaml.safe_dump_all(secrets))
    began = time.monotonic()
    former = [f"pod/{name}" for name in pods(deployed, "client")]
    words = ("apply", "--server-side", "--force-conflicts", "--filename=-")
    deployed.kubectl(*words, text=yaml.safe_dump_all(rest))
    deployed.wait(600)
    deployed.kubectl("wait", "--for=delete", "--timeout=60s", *former)
    note("servers, trainer and Prometheus get TLS", time.monotonic() - began)
    return deployed


def ask(cluster: Cluster, *words: str) -> list[float]:
    """Click probabilities, asked by the client's pod through the Service."""
    answer = json.loads(cluster.kubectl("exec", "deployment/client", "--", *QUERY, "--json", *words))
    return [float(row["pctr"]) for row in answer["results"]]


def test_a_client_with_a_certificate_is_answered(encrypted: Cluster) -> None:
    answers = ask(encrypted, "--tls-ca=/tls/ca.crt", *SHOWN)
    assert len(answers) == 3 and all(0 < each < 1 for each in answers)


@pytest.mark.parametrize("words", [(), ("--tls-ca=/tls/ca.crt",)], ids=["plain", "without a certificate"])
def test_other_clients_are_refused(encrypted: Cluster, words: tuple[str, ...]) -> None:
    with pytest.raises(DemoError, match="cannot answer"):
        ask(encrypted, *words)


def test_metrics_are_read_by_https_alone(encrypted: Cluster) -> None:
    with prometheus(encrypted) as address:
        until_all_answer(encrypted, address, "https")
