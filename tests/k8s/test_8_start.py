"""Cold start of a rank pod with a million rows published: in a Valkey of its own, beside the deployment."""

from __future__ import annotations

import json
import time
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest

from k8s.demo import QUERY, Cluster, DemoError
from tests.k8s.probes import LABELS, NEVER_READY, end, pod, start, trainer_probe
from tests.k8s.report import note
from tests.waiting import until

MILLION = (Path(__file__).parent / "million.py").read_text()
STORE, PUBLISHER, SERVER = "probe-store", "probe-publisher", "probe-start"
LISTEN = ["valkey-server", "--save", "", "--protected-mode", "no", "--dir", "/tmp",
          "--user", "server", "on", "nopass", "~*", "&*", "+@all"]  # fmt: skip


@pytest.fixture(scope="module")
def published(deployed: Cluster) -> Iterator[str]:
    """Address of a Valkey with the rows. The policies take it for the router."""
    image = "jsonpath={.spec.template.spec.containers[0].image}"
    valkey = {
        "image": deployed.kubectl("get", "statefulset/valkey", f"--output={image}"),
        "command": LISTEN,
        "volumeMounts": [{"name": "tmp", "mountPath": "/tmp"}],
    }
    volumes = [{"name": "tmp", "emptyDir": {}}]
    publisher = trainer_probe(deployed, PUBLISHER, {})
    start(deployed, pod(STORE, "router", valkey, volumes), publisher)
    address = deployed.kubectl("get", "pod", STORE, "--output=jsonpath={.status.podIP}") + ":6379"
    program = ("python3", "-", "/etc/livectr/pipeline.py", f"redis://{address}")
    began = time.monotonic()
    rows = deployed.kubectl("exec", "--stdin", PUBLISHER, "--", *program, text=MILLION)
    note(f"{int(rows):,} rows are published", time.monotonic() - began)
    end(deployed, PUBLISHER)
    yield address
    end(deployed, STORE, SERVER)


def rank_pod(cluster: Cluster, redis: str) -> dict[str, Any]:
    """Manifest of a pod of the rank Deployment that reads another Redis."""
    template = json.loads(cluster.kubectl("get", "deployment/rank", "--output=json"))["spec"]["template"]
    spec = {**template["spec"], **NEVER_READY}
    server = spec["containers"][0]
    server["command"] += [f"--redis=redis://server@{redis}"]
    about = {"name": SERVER, "labels": LABELS["server"]}
    return {"apiVersion": "v1", "kind": "Pod", "metadata": about, "spec": spec}


def test_a_rank_pod_starts_with_a_million_rows(deployed: Cluster, published: str) -> None:
    """From the apply of the pod, with its checks of settings and kernels, to its first answer."""
    query = [word.replace("rank:50051", "localhost:50051") for word in QUERY]
    manifest = json.dumps(rank_pod(deployed, published))
    began = time.monotonic()
    deployed.kubectl("apply", "--filename=-", text=manifest)
    started = "--for=jsonpath={.status.containerStatuses[0].started}=true"
    deployed.kubectl("wait", started, "--timeout=120s", f"pod/{SERVER}")  # a query would take its CPU
    answer = until(
        lambda: deployed.kubectl("exec", SERVER, "--container=server", "--", *query, "--json"),
        patience_s=120,
        despite=DemoError,
        turn=lambda: time.sleep(0.2),
    )
    note("first answer of a rank pod, a million rows published", time.monotonic() - began)
    assert len(json.loads(answer)["results"]) == 3
