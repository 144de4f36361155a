"""Pods that are killed, evicted, replaced and resized under traffic: no request fails, training continues."""

from __future__ import annotations

import json
import random
import re
import subprocess
import sys
import time
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path
from typing import Any

import pytest

from k8s.demo import LAB, NAMESPACE, Cluster, DemoError
from tests.k8s.probes import IMAGE
from tests.k8s.report import fact, note
from tests.k8s.traffic import newer_version, pods, traffic, variant, without_failures
from tests.waiting import until

KINDS = ("rank", "prerank", "trainer", "redis", "valkey", "sentinel")
KEPT = 'predictions = "/checkpoint/predictions"'
"""Prediction log of the trainer, for the comparison with an unbroken run at the end."""
NEXT = "0.2.0-next"
QUICKLY = {"type": "Pods", "value": 2, "periodSeconds": 15}
"""Scaling down; the overlay does it in minutes."""
KILL = "import os; [os.kill(int(pid), 9) for pid in open('/proc/1/task/1/children').read().split()]"
"""Ends the ranks of a pod: the children of its first process, the supervisor."""


@pytest.fixture(scope="module")
def overlays(tmp_path_factory: pytest.TempPathFactory) -> Path:
    return tmp_path_factory.mktemp("overlays")


@pytest.fixture(scope="module")
def tag(deployed: Cluster) -> str:
    """Tag of other images of the same content; those of the release where no other can be made."""
    if not deployed.is_lab:
        return IMAGE.rpartition(":")[2]
    for image in (IMAGE, IMAGE.replace("serve", "train")):
        new = image.rpartition(":")[0] + f":{NEXT}"
        subprocess.run([sys.executable, str(LAB), "tag", image, new], check=True)
    return NEXT


def test_an_update_of_images_and_settings(deployed: Cluster, overlays: Path, tag: str) -> None:
    """All pods of servers and trainer are replaced; the trainer resumes from its checkpoint."""
    kinds = ("rank", "prerank", "trainer")
    before = set().union(*(uids(deployed, kind) for kind in kinds))
    with without_failures(deployed, "update of servers and trainer to other images and settings"):
        deployed.apply(variant(overlays / "kept", tag=tag, settings=KEPT))
        deployed.wait(900)
        newer_version(deployed, 180)
    assert not before & set().union(*(uids(deployed, kind) for kind in kinds))


def uids(cluster: Cluster, kind: str) -> set[str]:
    """Numbers of the pods of a kind that are not about to end."""
    selector = f"--selector=app.kubernetes.io/name={kind}"
    found = json.loads(cluster.kubectl("get", "pods", selector, "--output=json"))
    about = [item["metadata"] for item in found["items"]]
    return {each["uid"] for each in about if "deletionTimestamp" not in each}


@pytest.mark.parametrize("how", ["deleted", "killed"])
def test_pods_that_go_cost_no_request(deployed: Cluster, how: str) -> None:
    """A pod of each kind, one kind soon after the other: told to stop, or killed without a word.

    Of Valkey it is the primary, whose replica must take over; of the others, a random pod.
    """
    primary = primary_of_redis(deployed)
    words = ["--wait=false"] if how == "deleted" else ["--grace-period=0", "--force"]
    with without_failures(deployed, f"a pod of each of {len(KINDS)} kinds is {how}"):
        for kind in KINDS:
            name = primary if kind == "valkey" else random.choice(pods(deployed, kind))
            deployed.kubectl("delete", "pod", name, *words)
            time.sleep(2)
        deployed.wait(300)
        newer_version(deployed, 180)
    assert primary_of_redis(deployed) != primary


def primary_of_redis(cluster: Cluster) -> str:
    """Name of the pod that a sentinel calls the primary."""
    ask = ("valkey-cli", "-p", "26379", "--raw", "sentinel", "get-master-addr-by-name", "primary")
    answer = cluster.kubectl("exec", pods(cluster, "sentinel")[0], "--", *ask)
    return answer.split()[0].partition(".")[0]


def test_a_rank_that_dies_trains_again_ten_times(deployed: Cluster) -> None:
    """The supervisor stays, so no container restarts and none waits in CrashLoopBackOff."""
    slowest = 0.0
    with without_failures(deployed, "ten deaths of a rank"):
        for number in range(10):
            pod = f"trainer-{number % 2}"
            deployed.kubectl("exec", pod, "--container=trainer", "--", "python3", "-c", KILL)
            time.sleep(2)  # until what was under way has been published
            slowest = max(slowest, 2 + newer_version(deployed, 180))
    fact(f"- a rank dies: all train and publish again within {slowest:.0f} s, the slowest of ten")
    restarts = "--output=jsonpath={.items[*].status.containerStatuses[*].restartCount}"
    selector = "--selector=app.kubernetes.io/name=trainer"
    assert set(deployed.kubectl("get", "pods", selector, restarts).split()) == {"0"}


def test_a_drain_waits_for_its_budgets(deployed: Cluster) -> None:
    """Every pod of the servers and of Redis is evicted through the API, all at once as by `kubectl drain`."""
    kinds = ("rank", "prerank", "redis", "valkey")
    with without_failures(deployed, f"eviction of every pod of {', '.join(kinds)}"):
        names = [name for kind in kinds for name in pods(deployed, kind)]
        with ThreadPoolExecutor(len(names)) as pool:
            refused = sum(pool.map(lambda name: evict(deployed, name), names))
        deployed.wait(300)
    fact(f"- drain: {refused} evictions were refused by a budget, and made again until they were allowed")
    assert refused > 0, "no budget held two pods of a kind back"


def evict(cluster: Cluster, name: str) -> int:
    """Evict a pod; the number of refusals before."""
    eviction = {"apiVersion": "policy/v1", "kind": "Eviction", "metadata": {"name": name}}
    path = f"/api/v1/namespaces/{NAMESPACE}/pods/{name}/eviction"
    for refusals in range(100):  # no `until`: refusals are counted
        try:
            cluster.kubectl("create", f"--raw={path}", "--filename=-", text=json.dumps(eviction))
        except DemoError as error:
            assert "disruption budget" in str(error) or "TooManyRequests" in str(error), error
            time.sleep(3)
        else:
            return refusals
    raise AssertionError(f"{name} is not evicted within five minutes")


def set_image(cluster: Cluster, name: str, tag: str) -> None:
    jsonpath = (
        "{range .spec.template.spec.initContainers[*]}{.name}={.image} {end}"
        "{range .spec.template.spec.containers[*]}{.name}={.image} {end}"
    )
    images = cluster.kubectl("get", name, f"--output=jsonpath={jsonpath}").split()
    cluster.kubectl("set", "image", name, *[f"{image.rpartition(':')[0]}:{tag}" for image in images])


def test_an_image_that_is_not_there_stops_at_the_first_pod(deployed: Cluster) -> None:
    """The former pods continue serving; `kubectl rollout undo` ends it."""
    with without_failures(deployed, "an image that is not there, and rollout undo"):
        set_image(deployed, "deployment/rank", "nowhere")
        until(
            lambda: "ImagePull" in deployed.kubectl("get", "pods"),
            patience_s=120,
            why=lambda: deployed.kubectl("get", "pods"),
            turn=lambda: time.sleep(1),
        )
        ready = deployed.kubectl("get", "deployment/rank", "--output=jsonpath={.status.readyReplicas}")
        assert int(ready) >= 2
        deployed.kubectl("rollout", "undo", "deployment/rank")
        deployed.wait(300)


@pytest.mark.parametrize("nodes", [3, 1, 2])
def test_a_resize_of_the_trainer(
    deployed: Cluster, overlays: Path, tag: str, sizes: list[tuple[int, int]], nodes: int
) -> None:
    with without_failures(deployed, f"resize of the trainer to {nodes}"):
        deployed.apply(variant(overlays / f"nodes-{nodes}", tag=tag, nodes=nodes, settings=KEPT))
        deployed.wait(900)
        newer_version(deployed, 240)
    assert len(pods(deployed, "trainer")) == nodes
    resumed = re.search(r"resumed after step (\d+)", deployed.kubectl("logs", "trainer-0"))
    assert resumed is not None
    sizes.append((int(resumed[1]), nodes))


def test_the_autoscaler_follows_the_load(deployed: Cluster) -> None:
    """One pod of rank without traffic, three under load, and one again.

    The target is more than twice what a pod takes without traffic, which on a slow CPU is near the overlay's.
    """
    rate(deployed, 1)
    idle = idle_share(deployed)
    target = {"type": "Utilization", "averageUtilization": max(60, round(230 * idle))}
    metric = {"type": "Resource", "resource": {"name": "cpu", "target": target}}
    behavior = {"scaleDown": {"stabilizationWindowSeconds": 0, "policies": [QUICKLY]}}
    patch = {"spec": {"minReplicas": 1, "metrics": [metric], "behavior": behavior}}
    deployed.kubectl("patch", "hpa", "rank", "--type=merge", f"--patch={json.dumps(patch)}")
    fact(f"- a rank pod without traffic takes {idle:.0%} of its requested CPU")
    began = time.monotonic()
    until_replicas(deployed, 1, 400)
    note("the autoscaler goes down to 1", time.monotonic() - began)
    rate(deployed, 100)
    with without_failures(deployed, "autoscaling of rank from 1 to 3"):
        until_replicas(deployed, 3, 300)
        deployed.wait(300)
    rate(deployed, 1)
    with without_failures(deployed, "autoscaling of rank from 3 to 1"):
        until_replicas(deployed, 1, 600)


def idle_share(cluster: Cluster) -> float:
    """Mean share of the CPU that they request which the rank pods take from now on."""
    path = (
        f"/apis/metrics.k8s.io/v1beta1/namespaces/{NAMESPACE}/pods?labelSelector=app.kubernetes.io/name=rank"
    )
    times: list[list[str]] = []

    def fourth_window() -> list[dict[str, Any]]:
        """Usage of the pods once it is of a fourth time: the first windows began before."""
        items: list[dict[str, Any]] = json.loads(cluster.kubectl("get", f"--raw={path}"))["items"]
        if items and (now := sorted(item["timestamp"] for item in items)) not in times:
            times.append(now)
        return items if len(times) >= 4 else []

    items = until(fourth_window, patience_s=300, why=lambda: times, turn=lambda: time.sleep(2))
    usage = [quantity(box["usage"]["cpu"]) for item in items for box in item["containers"]]
    requests = cluster.kubectl(
        "get",
        "deployment/rank",
        "--output=jsonpath={.spec.template.spec.containers[*].resources.requests.cpu}",
    )
    return sum(usage) / len(items) / sum(map(quantity, requests.split()))


def quantity(text: str) -> float:
    """Cores of a quantity such as 100m or 44123456n."""
    scale = {"n": 1e-9, "u": 1e-6, "m": 1e-3}.get(text[-1:])
    return float(text) if scale is None else float(text[:-1]) * scale


def rate(cluster: Cluster, per_second: int) -> None:
    """Start the client again with another number of visits a second."""
    command = ["python3", "-m", "livectr.demo.load", "--rank=rank:50051", "--prerank=prerank:50051"]
    command += ["--timeout-s=30", "--start-wait-s=60", f"--per-second={per_second}"]
    container = {"name": "client", "command": command}
    patch = {"spec": {"template": {"spec": {"containers": [container]}}}}
    former = [f"pod/{name}" for name in pods(cluster, "client")]
    cluster.kubectl("patch", "deployment", "client", f"--patch={json.dumps(patch)}")
    cluster.kubectl("rollout", "status", "deployment/client", "--timeout=120s")
    cluster.kubectl("wait", "--for=delete", "--timeout=60s", *former)  # its log has other counts
    until(
        lambda: traffic(cluster),
        patience_s=60,
        despite=(AssertionError, json.JSONDecodeError, DemoError),
        turn=lambda: time.sleep(1),
    )


def until_replicas(cluster: Cluster, count: int, timeout_s: float) -> None:
    until(
        lambda: cluster.kubectl("get", "deployment/rank", "--output=jsonpath={.spec.replicas}"),
        equals=str(count),
        patience_s=timeout_s,
        why=lambda: cluster.kubectl("describe", "hpa", "rank"),
        turn=lambda: time.sleep(2),
    )
