"""Offline work as Indexed Jobs: parts, retries and evictions."""

from __future__ import annotations

import pytest

from livectr.cli import build_parser
from livectr.ingest.materialized.parts import Part
from tests.k8s_static.rendering import Manifest, only


def job(name: str) -> Manifest:
    spec: Manifest = only("queue", "CronJob", name)["spec"]
    assert spec["suspend"] is True, "nothing runs by the clock"
    return spec["jobTemplate"]["spec"]


@pytest.mark.parametrize("name", ["materialize", "encode"])
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


@pytest.mark.parametrize("name", ["materialize", "encode"])
def test_parts_fail_alone_and_mistakes_end_the_job(name: str) -> None:
    spec = job(name)
    evicted, mistake = spec["podFailurePolicy"]["rules"]
    assert spec["backoffLimitPerIndex"] > 0 and "backoffLimit" not in spec
    assert evicted["action"] == "Ignore" and evicted["onPodConditions"][0]["type"] == "DisruptionTarget"
    assert mistake["action"] == "FailJob" and mistake["onExitCodes"]["values"] == [2, 3]
    assert spec["template"]["spec"]["restartPolicy"] == "Never"
