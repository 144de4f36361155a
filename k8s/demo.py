#!/usr/bin/env python3
"""Bring the whole loop up on a cluster, and ask it for click probabilities.

The cluster is that of KUBECONFIG, else the current context of kubectl, else the lab, which it starts.
"""

from __future__ import annotations

import argparse
import json
import os
import shutil
import subprocess
import sys
import time
from collections.abc import Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

ROOT = Path(__file__).resolve().parents[1]
LAB = ROOT / "k8s" / "lab" / "lab.py"
BUILD = ROOT / "k8s" / "image" / "build.py"
OVERLAY = ROOT / "k8s" / "overlays" / "local"
NAMESPACE = "livectr"
QUERY = ("livectr", "query", "rank", "--server", "rank:50051", "--context", "user_id=42", "page=search",
         "position=1", "query=new books", 'context={"device": {"os": "ios"}}', "--candidates",
         "ad_id=1,2,3")  # fmt: skip
"""Asked from a pod, so it goes through the Service."""


class DemoError(Exception):
    """Failure with a sentence for the user."""


@dataclass(frozen=True)
class Cluster:
    """Cluster that kubectl reaches.

    Args:
        variables: environment of kubectl.
        is_lab: it is the lab, which has no registry.
    """

    variables: dict[str, str]
    is_lab: bool

    @property
    def program(self) -> str:
        """Path of kubectl. Raises DemoError where there is none."""
        found = shutil.which("kubectl", path=self.variables.get("PATH"))
        if found is None:
            raise DemoError("kubectl is missing; install it, or run `make setup`.")
        return found

    def kubectl(self, *words: str, text: str | None = None, check: bool = True) -> str:
        """Standard output of kubectl in the namespace. Raises DemoError when it fails."""
        done = subprocess.run(
            [self.program, f"--namespace={NAMESPACE}", *words],
            env=self.variables, input=text, capture_output=True, text=True,
        )  # fmt: skip
        if check and done.returncode != 0:
            raise DemoError(f"`kubectl {' '.join(words)[:150]}` failed:\n{done.stderr.strip()[-1500:]}")
        return done.stdout

    def deliver(self, archives: Path) -> None:
        """Bring the images of a folder to the nodes. Raises DemoError for a cluster with a registry."""
        context = "" if self.is_lab else self.kubectl("config", "current-context").strip()
        if self.is_lab:
            _run([sys.executable, str(LAB), "images", str(archives)])
            return
        for archive in sorted(archives.glob("*.tar")):
            if context.startswith("kind-"):
                _run(["kind", "load", "image-archive", str(archive), "--name", context.removeprefix("kind-")])
            elif context == "minikube":
                _run(["minikube", "image", "load", str(archive)])
            else:
                raise DemoError(
                    f"the cluster of the context {context!r} takes images from a registry: push {archives} "
                    "there, name it in an overlay of yours (kustomize, `images:`), and apply that."
                )

    def apply(self, overlay: Path = OVERLAY) -> None:
        """Apply an overlay."""
        self.kubectl("apply", "--server-side", "--force-conflicts", f"--kustomize={overlay}")

    def wait(self, timeout_s: float) -> None:
        """Wait until every StatefulSet and Deployment has its pods ready. Raises DemoError if it has not."""
        end = time.monotonic() + timeout_s
        found = json.loads(self.kubectl("get", "statefulsets,deployments", "--output=json"))["items"]
        for item in found:
            if _is_rolled_out(item):
                continue  # a kubectl for each of them takes seconds of the node's CPU
            name = f"{item['kind'].lower()}/{item['metadata']['name']}"
            left = max(1, round(end - time.monotonic()))
            try:
                self.kubectl("rollout", "status", name, f"--timeout={left}s")
            except DemoError as error:
                raise DemoError(f"{error}\n{self._last_words()}") from None

    def _last_words(self) -> str:
        """All pods, and the ends of the logs of containers that are not ready, before their restart, too."""
        said = [self.kubectl("get", "pods", "--output=wide", check=False)]
        for pod in json.loads(self.kubectl("get", "pods", "--output=json"))["items"]:
            name = pod["metadata"]["name"]
            for container in pod["status"].get("containerStatuses", ()):
                if container["ready"]:
                    continue
                logs = ["logs", name, f"--container={container['name']}", "--tail=15"]
                for when in ["--previous=true"] * (container["restartCount"] > 0) + ["--previous=false"]:
                    said.append(f"{name} {when}:\n{self.kubectl(*logs, when, check=False)}")
        return "\n".join(said)

    def ask(self) -> list[float]:
        """Click probabilities of three ads, asked by a pod through the Service."""
        answer = json.loads(self.kubectl("exec", "deployment/client", "--", *QUERY, "--json"))
        return [float(row["pctr"]) for row in answer["results"]]


def _is_rolled_out(item: dict[str, Any]) -> bool:
    """Tell if all pods of a StatefulSet or Deployment are of its newest template and available."""
    status, replicas = item["status"], item["spec"]["replicas"]
    counts = ("replicas", "updatedReplicas", "readyReplicas", "availableReplicas")
    seen = status.get("observedGeneration") == item["metadata"]["generation"]
    return seen and all(status.get(name, 0) == replicas for name in counts)


def find_cluster() -> Cluster:
    """Cluster of KUBECONFIG or of kubectl's current context, else the lab, started where it is down."""
    own = {**os.environ, "PATH": f"{ROOT / '.venv' / 'bin'}:{os.environ['PATH']}"}
    program = shutil.which("kubectl", path=own["PATH"])
    current = [program or "kubectl", "config", "current-context"]
    known = program is not None and subprocess.run(current, env=own, capture_output=True).returncode == 0
    if known:
        return Cluster(own, is_lab="k8s-lab" in os.environ.get("KUBECONFIG", ""))
    _run([sys.executable, str(LAB), "up"])
    return lab(own)


def lab(variables: dict[str, str]) -> Cluster:
    """The running lab."""
    done = subprocess.run([sys.executable, str(LAB), "env", "--json"], capture_output=True, text=True)
    if done.returncode != 0:
        raise DemoError(done.stderr.strip())
    return Cluster({**variables, **json.loads(done.stdout)}, is_lab=True)


def build_images(*, is_lab: bool) -> Path:
    """Build the images that are missing; the folder of their archives."""
    words = ["--base=debian", "--stand-ins", "--builder=buildah"] if is_lab else []
    _run([sys.executable, str(BUILD), *words])
    cache = Path(os.environ.get("LIVECTR_CACHE_DIR") or Path.home() / ".cache" / "livectr")
    return cache / "images" / "archives"


def _run(command: Sequence[str]) -> None:
    if shutil.which(command[0]) is None:
        raise DemoError(f"the program {command[0]!r} is missing.")
    if subprocess.run(command).returncode != 0:
        raise DemoError(f"`{' '.join(command)}` failed; its last lines say why.")


def up() -> None:
    """Images, overlay, query; prints the seconds of each step."""
    began = time.monotonic()

    def done(step: str) -> None:
        print(f"{time.monotonic() - began:6.0f} s  {step}", flush=True)

    cluster = find_cluster()
    done("the cluster answers")
    cluster.deliver(build_images(is_lab=cluster.is_lab))
    done("the images are on the nodes")
    cluster.apply()
    done("applied k8s/overlays/local")
    cluster.wait(600)
    done("all pods are ready")
    done(f"click probabilities of three ads: {', '.join(f'{value:.4f}' for value in cluster.ask())}")
    if cluster.is_lab:
        print(f'       eval "$({LAB.relative_to(ROOT)} env)" lets kubectl reach it')
    print("       kubectl -n livectr get pods; make k8s-down ends it")


def down() -> None:
    """Delete what the overlay made; the lab ends with it."""
    status = subprocess.run([sys.executable, str(LAB), "env", "--json"], capture_output=True)
    if status.returncode == 0 and not os.environ.get("KUBECONFIG"):
        _run([sys.executable, str(LAB), "down"])
        return
    find_cluster().kubectl("delete", "--ignore-not-found", f"--kustomize={OVERLAY}")


def main() -> int:
    """Run a command; 1 with a sentence when it failed."""
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("command", choices=["up", "down"])
    given = parser.parse_args()
    try:
        (up if given.command == "up" else down)()
    except DemoError as error:
        print(f"k8s: {error}", file=sys.stderr)
        return 1
    return 0


if __name__ == "__main__":
    sys.exit(main())
