"""Traffic of the local overlay as its client counts it, and changes to the overlay."""

from __future__ import annotations

import json
import os
import subprocess
import threading
import time
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import Any

from k8s.demo import NAMESPACE, OVERLAY, Cluster
from tests.k8s.report import fact, note
from tests.waiting import until

VARIANT = """\
apiVersion: kustomize.config.k8s.io/v1beta1
kind: Kustomization
namespace: livectr
resources:
  - {local}
configMapGenerator:
  - name: livectr
    behavior: merge
    files:
      - livectr.toml
patches:
  - target:
      kind: Deployment
      name: (pre)?rank
    patch: |
      - op: replace
        path: /spec/template/spec/initContainers/0/image
        value: livectr/train:{tag}
      - op: replace
        path: /spec/template/spec/containers/0/image
        value: livectr/serve:{tag}
  - target:
      kind: StatefulSet
      name: trainer
    patch: |
      - op: replace
        path: /spec/template/spec/initContainers/0/image
        value: livectr/train:{tag}
      - op: replace
        path: /spec/template/spec/containers/0/image
        value: livectr/train:{tag}
replicas:
  - name: trainer
    count: {nodes}
replacements:
  - path: nodes.yaml
"""


def variant(folder: Path, *, tag: str, nodes: int = 2, settings: str = "") -> Path:
    """The local overlay with other images of servers and trainer, another size, and more settings."""
    folder.mkdir(parents=True, exist_ok=True)
    local = os.path.relpath(OVERLAY, folder.resolve())
    (folder / "kustomization.yaml").write_text(VARIANT.format(local=local, tag=tag, nodes=nodes))
    (folder / "nodes.yaml").write_text((OVERLAY / "nodes.yaml").read_text())
    (folder / "livectr.toml").write_text(f"{settings}\n{(OVERLAY / 'livectr.toml').read_text()}")
    return folder


def traffic(cluster: Cluster) -> dict[str, Any]:
    """Counts of the client since its start, from its last line; waits for the first."""
    lines = until(
        lambda: cluster.kubectl("logs", "deployment/client", "--tail=1").splitlines(),
        "the client's first line",
        patience_s=60,
        turn=lambda: time.sleep(1),
    )
    counts: dict[str, Any] = json.loads(lines[-1])
    return counts


@contextmanager
def without_failures(cluster: Cluster, what: str) -> Iterator[None]:
    """Fail when a request fails meanwhile, or until one more of each role is answered."""
    began, before = time.monotonic(), traffic(cluster)
    yield
    note(what, time.monotonic() - began)

    def later() -> dict[str, Any] | None:
        """Counts of a line with more answers."""
        counts = traffic(cluster)
        more = all(counts[role]["requests"] > before[role]["requests"] for role in ("rank", "prerank"))
        return counts if more else None

    after = until(later, "requests after " + what, turn=lambda: time.sleep(1)) or {}
    for role in ("rank", "prerank"):
        sent = after[role]["requests"] - before[role]["requests"]
        failed = after[role]["errors"] - before[role]["errors"]
        older = after[role]["older"] - before[role]["older"]
        fact(f"- {what}: {failed} of {sent} {role} requests failed; {older} answers were of a server behind")
        assert failed == 0, after[role]["last_error"]


def newer_version(cluster: Cluster, timeout_s: float) -> float:
    """Wait until a version is served that is newer than that of the client's last line; the seconds.

    One process follows the log: a kubectl twice a second takes half a core from the pods.
    """
    began, before = time.monotonic(), None
    command = [
        cluster.program,
        f"--namespace={NAMESPACE}",
        "logs",
        "deployment/client",
        "--follow",
        "--tail=1",
    ]
    with subprocess.Popen(command, env=cluster.variables, stdout=subprocess.PIPE, text=True) as follow:
        latest = threading.Timer(timeout_s, follow.terminate)
        latest.start()
        try:
            for line in follow.stdout or ():
                version = int(json.loads(line)["rank"]["version"])
                before = version if before is None else before
                if version > before:
                    return time.monotonic() - began
        finally:
            latest.cancel()
            follow.terminate()
    raise AssertionError(f"version {before} is served for {time.monotonic() - began:.0f} s")


def pods(cluster: Cluster, kind: str) -> list[str]:
    """Names of the pods of a kind that are not about to end."""
    found = json.loads(
        cluster.kubectl("get", "pods", f"--selector=app.kubernetes.io/name={kind}", "--output=json")
    )
    return [
        item["metadata"]["name"]
        for item in found["items"]
        if "deletionTimestamp" not in item["metadata"] and not item["metadata"]["name"].startswith("probe-")
    ]
