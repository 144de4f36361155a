"""`livectr train` on two nodes as in pods: real ranks, kills, evictions, probes; the model of one process."""

from __future__ import annotations

import os
import random
import signal
import subprocess
import sys
from collections.abc import Iterator
from pathlib import Path

import psutil
import pytest

from livectr.cli import main
from livectr.config.sources import resolve
from livectr.config.supervision import gang_of
from livectr.local.ports import free_ports
from livectr.local.ranks import UNFINISHED
from livectr.trainer.checkpoint.manifest import newest_manifest
from tests.livectr.nodes import ROOT
from tests.livectr.settings_words import settings_words
from tests.serving.kubelet import Kubelet
from tests.trainer.ad_logs import write_files
from tests.trainer.kills import IMPRESSIONS, OPTIONS, generation
from tests.trainer.processes import finish, start
from tests.trainer.run_result import Result, assert_close
from tests.waiting import alive, left_s, until

PIPELINE = "from tests.trainer.ad_logs import ad_pipeline\n\npipeline = ad_pipeline()\n"


class Pods:
    """Commands of two nodes.

    Args:
        folder: files of the test.
        flags: of `livectr train`.
    """

    def __init__(self, folder: Path, source: str, **flags: object) -> None:
        (folder / "pipeline.py").write_text(PIPELINE)
        self.root = folder / "checkpoint"
        given: dict[str, object] = {"pipeline": folder / "pipeline.py", "source": source}
        given |= {
            "checkpoint": self.root,
            "batch_size": 64,
            "batch_ramp": 0,
            "threads": 1,
            "nodes": 2,
        }
        given |= {"rendezvous": f"127.0.0.1:{free_ports(1)}", "publish_interval_s": 0.15, **flags}
        self._command = [sys.executable, "-m", "livectr", "train"]
        self._command += settings_words(given)
        self.running: dict[int, subprocess.Popen[str]] = {}
        self._folder, self._starts = folder, 0

    def start(self, node: int, *flags: str) -> None:
        environment = os.environ | {"PYTHONPATH": str(ROOT), "LIVECTR_NODE": str(node)}
        self._starts += 1
        with (self._folder / f"pod-{self._starts}-node-{node}.log").open("w") as log:
            self.running[node] = subprocess.Popen(
                [*self._command, *flags], cwd=ROOT, env=environment, text=True, stdout=log, stderr=log
            )

    def rank(self, node: int) -> psutil.Process:
        """The rank of a node, once it runs."""
        children: list[psutil.Process] = []

        def runs() -> bool:
            children[:] = psutil.Process(self.running[node].pid).children()
            return bool(children)

        until(runs)
        return children[0]

    def proceed(self) -> None:
        """Wait for another commit."""
        before = generation(self.root)
        until(lambda: generation(self.root) > before)


@pytest.fixture
def ended() -> Iterator[list[Pods]]:
    pods: list[Pods] = []
    yield pods
    for each in pods:
        for process in each.running.values():
            process.kill()
            process.wait()


@pytest.mark.full
def test_kills_and_evictions_leave_the_model_of_one_process(tmp_path: Path, ended: list[Pods]) -> None:
    """A rank is killed, a supervisor is killed, and both are told to stop, in the middle of a log."""
    source = write_files(tmp_path / "logs", IMPRESSIONS)
    finish(start(1, {**OPTIONS, "source": source, "checkpoint": str(tmp_path / "unbroken")}))
    pods = Pods(tmp_path, source, restarts=3)
    ended.append(pods)
    for node in (1, 0):
        pods.start(node, "--until-end")
    pods.proceed()
    pods.rank(random.randrange(2)).kill()
    pods.proceed()
    lost = random.randrange(2)
    pods.running[lost].kill()
    pods.running[lost].wait()
    pods.start(lost, "--until-end")
    pods.rank(lost)
    pods.proceed()  # the ranks of the round before have committed, too, when their supervisor died
    pods.running[random.randrange(2)].terminate()
    assert [pods.running[node].wait(left_s()) for node in (0, 1)] == [UNFINISHED, UNFINISHED]
    for node in (0, 1):
        pods.start(node, "--until-end")
    assert [pods.running[node].wait(left_s()) for node in (0, 1)] == [0, 0]
    assert_close(Result(pods.root), Result(tmp_path / "unbroken"))


@pytest.mark.full
def test_a_pod_that_is_evicted_is_waited_for(tmp_path: Path, ended: list[Pods]) -> None:
    """All ranks commit; the other pod stays, is healthy, and trains on with the next pod of that number."""
    pods = Pods(tmp_path, write_files(tmp_path / "logs", IMPRESSIONS))
    ended.append(pods)
    kubelet = Kubelet()
    pods.start(0, "--set", "until_stopped=true", f"health_listen={kubelet.address}")
    kubelet.until(startup=True, ready=True, live=True)
    pods.start(1, "--set", "until_stopped=true")
    pods.proceed()
    pods.running[1].terminate()
    assert pods.running[1].wait(left_s()) == 0
    ranks = psutil.Process(pods.running[0].pid).children()
    until(lambda: not alive(ranks))
    manifest = newest_manifest(pods.root)
    assert manifest is not None and manifest.world == 2 and manifest.step > 0
    kubelet.until(ready=True, live=True)
    pods.start(1, "--set", "until_stopped=true")
    assert pods.rank(0).pid not in {rank.pid for rank in ranks}
    pods.rank(1)
    for node in (0, 1):
        pods.running[node].send_signal(signal.SIGTERM)
    assert [pods.running[node].wait(left_s()) for node in (0, 1)] == [0, 0]


@pytest.mark.full
def test_a_trainer_that_starts_before_its_log_and_redis_waits(tmp_path: Path, ended: list[Pods]) -> None:
    pods = Pods(tmp_path, "kafka://127.0.0.1:1", nodes=1, publish="redis://127.0.0.1:1")
    ended.append(pods)
    pods.start(0, "--set", "start_wait_s=10m")
    first = pods.rank(0)
    first.wait(left_s())
    assert pods.rank(0).pid != first.pid
    pods.running[0].terminate()
    assert pods.running[0].wait(left_s()) == 0


def test_a_pod_that_is_told_to_stop_while_it_imports(tmp_path: Path, ended: list[Pods]) -> None:
    (tmp_path / "slow").mkdir()
    pods = Pods(tmp_path, "file:/nowhere", nodes=1)
    ended.append(pods)
    imports = tmp_path / "imports"
    (tmp_path / "pipeline.py").write_text(
        f"import time, pathlib\npathlib.Path({str(imports)!r}).touch()\ntime.sleep(6000)\n"
    )
    pods.start(0, "--set", "until_stopped=true")
    until(imports.exists)
    pods.running[0].terminate()
    assert pods.running[0].wait(left_s()) == 0


@pytest.mark.parametrize(
    ("flags", "says"),
    [
        (["--set", "until_stopped=true"], "say --checkpoint DIR too"),
        (["--set", "until_stopped=true", "--checkpoint", "c", "--until-end"], "leave until_end out"),
        (
            ["--set", "until_stopped=true", "--checkpoint", "c", "--set", "max_steps=3"],
            "leave max_steps out",
        ),
        (["--set", "nodes=2", "node=auto", "rendezvous=a:1"], "does not end in -NUMBER"),
        (["--set", "nodes=2", "node=one", "rendezvous=a:1"], "must be a number, or auto"),
        (["--set", "health_listen=8081"], "health_listen is '8081'"),
    ],
)
def test_mistakes(
    flags: list[str], says: str, capsys: pytest.CaptureFixture[str], monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr("socket.gethostname", lambda: "laptop")
    pipeline = str(ROOT / "examples" / "display_ads" / "pipeline.py")
    assert main(["train", "--pipeline", pipeline, "--source", "file:x", *flags]) == 2
    assert says in capsys.readouterr().err


def test_the_number_of_a_pod_is_in_its_host_name() -> None:
    flags = {"nodes": 12, "node": "auto", "rendezvous": "trainer-0.trainer:29400", "generation": "7f9"}
    for name, number in (("trainer-0", 0), ("trainer-11", 11), ("trainer-3.trainer.ads.svc", 3)):
        gang = gang_of(resolve(flags, environment={}), name)
        assert gang is not None and (gang.node, gang.nodes, gang.generation) == (number, 12, "7f9")
