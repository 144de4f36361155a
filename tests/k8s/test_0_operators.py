"""JobSet's and KEDA's own code about our manifests; these checks need no cluster, but Go."""

from __future__ import annotations

import copy
import os
import subprocess
from pathlib import Path

import yaml

from k8s.demo import ROOT
from tests.k8s.operator_code import jobs, refusal
from tests.k8s_static.rendering import OVERLAYS, Manifest, kubectl, of_kind

APPLY = ROOT / "k8s" / "apply.sh"


def gang() -> Manifest:
    """The JobSet, as k8s/apply.sh names it."""
    own = os.environ | {"PATH": f"{Path(kubectl()).parent}:{os.environ['PATH']}"}
    words = [str(APPLY), "--render", str(OVERLAYS["gang"])]
    done = subprocess.run(words, env=own, capture_output=True, text=True, check=True)
    (found,) = [each for each in yaml.safe_load_all(done.stdout) if each and each["kind"] == "JobSet"]
    return dict(found)


def of_another_image(jobset: Manifest) -> Manifest:
    changed = copy.deepcopy(jobset)
    (job,) = changed["spec"]["replicatedJobs"]
    job["template"]["spec"]["template"]["spec"]["containers"][0]["image"] = "livectr/train:0.2.1"
    return changed


def test_jobset_accepts_ours(tmp_path: Path) -> None:
    """By the name with a hash, which makes the pods' names longer."""
    assert not refusal("jobset", tmp_path, gang())
    assert not refusal("jobset", tmp_path, gang(), gang())


def test_jobset_refuses_changed_pods(tmp_path: Path) -> None:
    """This is why k8s/apply.sh gives a changed JobSet another name."""
    found = refusal("jobset", tmp_path, of_another_image(gang()), gang())
    assert "field is immutable" in found, found


def test_ranks_meet_at_the_first_pod_of_the_job(tmp_path: Path) -> None:
    """JobSet's controller makes one Job, whose pods have the names that the manifest expects of them."""
    services = of_kind("gang", "Service")
    made = jobs(tmp_path, gang(), services)
    (job,) = made["jobs"]
    spec = job["spec"]["template"]["spec"]
    assert job["spec"]["completions"] == job["spec"]["parallelism"] == 2
    (container,) = spec["containers"]
    told = {each["name"]: each.get("value") for each in container["env"]}
    assert told["LIVECTR_RENDEZVOUS"] == f"{job['metadata']['name']}-0.{spec['subdomain']}:29400"
    names = {each["metadata"]["name"] for each in services}
    assert spec["subdomain"] in names and {s["metadata"]["name"] for s in made["services"]} == names
    (service,) = [s for s in services if s["metadata"]["name"] == spec["subdomain"]]
    labels = job["spec"]["template"]["metadata"]["labels"]
    assert service["spec"]["selector"].items() <= labels.items()


def cluster(*scalers: str) -> list[Manifest]:
    """Deployments of the overlay, and autoscalers of `rank` by these names."""
    (base,) = [m for m in of_kind("local", "HorizontalPodAutoscaler") if m["metadata"]["name"] == "rank"]
    named = [{**base, "metadata": {"name": name, "namespace": "livectr"}} for name in scalers]
    return [*of_kind("queue", "Deployment"), *named]


def test_keda_accepts_ours(tmp_path: Path) -> None:
    for scaled in of_kind("queue", "ScaledObject"):
        assert not refusal("keda", tmp_path, scaled, cluster())


def test_keda_takes_over_the_autoscaler_of_the_base(tmp_path: Path) -> None:
    (rank,) = [m for m in of_kind("queue", "ScaledObject") if m["metadata"]["name"] == "rank"]
    assert not refusal("keda", tmp_path, rank, cluster("rank"))
    plain = {**rank, "metadata": {"name": "rank", "namespace": "livectr"}}
    assert "already managed by the hpa 'rank'" in refusal("keda", tmp_path, plain, cluster("rank"))


def test_keda_refuses_one_of_another_name(tmp_path: Path) -> None:
    """k8s/apply.sh does so before anything is applied, and where the webhook is not installed."""
    (rank,) = [m for m in of_kind("queue", "ScaledObject") if m["metadata"]["name"] == "rank"]
    assert "already managed by the hpa 'by-hand'" in refusal("keda", tmp_path, rank, cluster("by-hand"))
