"""Offline work as Indexed Jobs: parts, retries and evictions."""

from __future__ import annotations

import pytest

from livectr.cli import build_parser
from livectr.commands.measure.evaluate import SCORING
from livectr.ingest.materialized.parts import Part
from tests.k8s_static.rendering import Manifest, only

WORK = ["materialize", "encode", "evaluate"]


def job(name: str) -> Manifest:
    spec: Manifest = only("queue", "CronJob", name)["spec"]
    assert spec["suspend"] is True, "nothing runs by the clock"
    return spec["jobTemplate"]["spec"]


@pytest.mark.parametrize("name", WORK)
def test_every_part_has_a_pod(name: str) -> None:
    """The command line is one that `livectr` takes, with the number of the pod as part."""
    spec = job(name)
    (container,) = spec["template"]["spec"]["containers"]
    index = {"fieldRef": {"fieldPath": "metadata.annotations['batch.kubernetes.io/job-completion-index']"}}
    assert {"name": "PART", "valueFrom": index} in container["env"]
    program, *words = [word.replace("$(PART)", "3") for word in container["command"]]
    assert program == "livectr" and spec["completionMode"] == "Indexed"
    part = Part.parse(build_parser().parse_args(words).part)
    assert part.index == 3 and part.count == spec["completions"] == spec["parallelism"]


@pytest.mark.parametrize("name", WORK)
def test_parts_fail_alone_and_mistakes_end_the_job(name: str) -> None:
    spec = job(name)
    evicted, mistake = spec["podFailurePolicy"]["rules"]
    assert spec["backoffLimitPerIndex"] > 0 and "backoffLimit" not in spec
    assert evicted["action"] == "Ignore" and evicted["onPodConditions"][0]["type"] == "DisruptionTarget"
    assert mistake["action"] == "FailJob" and mistake["onExitCodes"]["values"] == [2, 3]
    assert spec["template"]["spec"]["restartPolicy"] == "Never"


def test_evaluation_reads_the_checkpoint_and_writes_beside_it() -> None:
    """Flags that belong together are all there; the trainer's disk is not written."""
    spec = job("evaluate")["template"]["spec"]
    (container,) = spec["containers"]
    given = build_parser().parse_args(container["command"][1:])
    assert not given.files and all(getattr(given, name) is not None for name in SCORING)
    name = {"fieldRef": {"fieldPath": "metadata.labels['batch.kubernetes.io/job-name']"}}
    assert given.to == "/offline/$(JOB)" and {"name": "JOB", "valueFrom": name} in container["env"]
    mounts = {mount["mountPath"]: mount for mount in container["volumeMounts"]}
    assert mounts["/checkpoint"]["readOnly"] is True
    assert given.checkpoint.startswith("/checkpoint/")
    claims = {
        v["persistentVolumeClaim"]["claimName"] for v in spec["volumes"] if "persistentVolumeClaim" in v
    }
    assert claims == {"offline", "checkpoint"}
    trainer = only("queue", "StatefulSet", "trainer")["spec"]["template"]["spec"]
    assert "checkpoint" in {v.get("persistentVolumeClaim", {}).get("claimName") for v in trainer["volumes"]}
