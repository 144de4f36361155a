"""Offline work as Jobs: parts, retries and evictions; a backfill that is stopped and resumes."""

from __future__ import annotations

import json
import os
import subprocess
import sys
from pathlib import Path

import pytest

from livectr.cli import build_parser
from livectr.commands.watch.evaluate import SCORING
from livectr.ingest.materialized.parts import Part
from livectr.local.ranks import UNFINISHED
from livectr.trainer.checkpoint.manifest import newest_manifest
from tests.k8s_static.rendering import Manifest, only
from tests.trainer.ad_logs import write_files
from tests.trainer.break_off import BREAK_OFF, write_pipeline
from tests.trainer.kills import OPTIONS
from tests.trainer.processes import finish, start
from tests.trainer.run_result import Result, assert_close
from tests.waiting import left_s

ROOT = Path(__file__).parents[2]
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


def backfill() -> tuple[Manifest, Manifest]:
    """Pod and container of a backfill."""
    pod = job("backfill")["template"]["spec"]
    (container,) = pod["containers"]
    return pod, container


def test_a_backfill_resumes_after_a_stop_and_ends_after_a_mistake() -> None:
    spec = job("backfill")
    evicted, stopped, mistake = spec["podFailurePolicy"]["rules"]
    assert evicted["action"] == "Ignore" and evicted["onPodConditions"][0]["type"] == "DisruptionTarget"
    assert stopped["action"] == "Ignore" and stopped["onExitCodes"]["values"] == [UNFINISHED]
    assert mistake["action"] == "FailJob" and mistake["onExitCodes"]["values"] == [2, 3]
    names = {rule["onExitCodes"]["containerName"] for rule in (stopped, mistake)}
    assert names == {backfill()[1]["name"]}
    assert spec["completions"] == spec["parallelism"] == 1 and spec["backoffLimit"] > 0
    assert spec["podReplacementPolicy"] == "Failed", "two trainers never share a checkpoint"
    trainer = only("queue", "StatefulSet", "trainer")["spec"]["template"]["spec"]
    pod, _ = backfill()
    assert pod["terminationGracePeriodSeconds"] >= trainer["terminationGracePeriodSeconds"]
    assert pod["restartPolicy"] == "Never"


def test_a_backfill_has_all_to_itself_and_publishes_nothing() -> None:
    """Pods of one Job share namespace, checkpoint and report; those of another Job do not."""
    pod, container = backfill()
    name = {"fieldRef": {"fieldPath": "metadata.labels['batch.kubernetes.io/job-name']"}}
    assert {"name": "JOB", "valueFrom": name} in container["env"]
    given = build_parser().parse_args(container["command"][1:])
    assert given.setting_until_end and given.setting_namespace == "$(JOB)"
    assert given.setting_checkpoint.startswith("/offline/$(JOB)/")
    assert given.setting_report.startswith("/offline/$(JOB)/")
    assert not hasattr(given, "setting_publish") and given.config is None
    assert {entry["name"] for entry in container["env"]} == {"HOME", "JOB"}
    claims = {v["persistentVolumeClaim"]["claimName"] for v in pod["volumes"] if "persistentVolumeClaim" in v}
    assert claims == {"offline"}
    # A thread of a rank waits for the other ranks at every operation.
    assert given.setting_ranks == container["resources"]["requests"]["cpu"] and "threads=1" in given.assigned


@pytest.mark.full
def test_a_backfill_that_is_stopped_learns_what_one_process_learns(tmp_path: Path) -> None:
    """The command of the Job itself; only places are those of this machine."""
    source = write_files(tmp_path / "logs", 40 * 64)
    unbroken = {**OPTIONS, "source": source, "checkpoint": str(tmp_path / "unbroken")}
    finish(start(1, unbroken))
    pipeline = write_pipeline(tmp_path / "pipeline.py", ranks=4)
    places = {"$(JOB)": "backfill-1", "/offline/": f"{tmp_path}/offline/"}
    places |= {"/etc/livectr/pipeline.py": str(pipeline), "kafka://kafka:9092": source}
    program, *words = backfill()[1]["command"]
    assert program == "livectr"
    for place, here in places.items():
        words = [word.replace(place, here) for word in words]
    (tmp_path / "offline").mkdir()
    root = tmp_path / "offline" / "backfill-1"

    def pod(**more: str) -> tuple[int, str]:
        command = [sys.executable, "-m", "livectr", *words]
        environment = os.environ | {"PYTHONPATH": str(ROOT)} | more
        done = subprocess.run(
            command, cwd=ROOT, env=environment, capture_output=True, text=True, timeout=left_s()
        )
        return done.returncode, done.stderr

    code, said = pod(**{BREAK_OFF: "15"})
    assert code == UNFINISHED, said
    stopped = newest_manifest(root / "checkpoint")
    assert stopped is not None and 15 <= stopped.step < 40 and stopped.world == 4
    assert json.loads((root / "report.json").read_text())["complete"] is False
    code, said = pod()
    assert code == 0, said
    report = json.loads((root / "report.json").read_text())
    assert report["complete"] is True and report["world"] == 4 and report["published_versions"] == 0
    assert_close(Result(root / "checkpoint"), Result(tmp_path / "unbroken"))
