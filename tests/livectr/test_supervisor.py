"""Parts of a run are started, restarted, replaced and ended until all are as parts.json says."""

from __future__ import annotations

import os
import signal
import socket
import time
from collections.abc import Iterator
from dataclasses import replace
from pathlib import Path

import pytest
import redis

from livectr.cli import main
from livectr.local.ports import free_ports, is_free, listens
from livectr.system.errors import InternalError, InUseError
from livectr.up.folder import Kind, Part, Phase, RunFolder, Running, State
from livectr.up.supervisor import Supervisor, last_line
from tests.waiting import until

PIPELINE = """
from livectr import Pipeline, Stream, labelled
from livectr.models import LR

shown = Stream("shown", key="user_id", time="ts", columns=dict(user_id="int64", ts="int64", clicked="int32"))
log = labelled(shown, label="clicked")
pipeline = Pipeline(log, sparse=dict(user=log.user_id), rank=LR())
"""


def redis_part(name: str, port: int) -> Part:
    listen = f"127.0.0.1:{port}"
    return Part(name, Kind.REDIS, ("local", "redis", "--listen", listen), listen, "Redis answers at")


class Run:
    """Supervisor whose turns the test takes."""

    def __init__(self, folder: RunFolder) -> None:
        self.folder = folder
        self.supervisor = Supervisor(folder)

    def until(self, name: str, phase: Phase, restarts: int = 0) -> Running:
        def found() -> Running | None:
            state = self.folder.state()
            return next((o for o in state.parts if o.name == name), None) if state else None

        def met() -> Running | None:
            one = found()
            return one if one and one.phase is phase and one.restarts >= restarts else None

        one = until(met, f"{name} {phase}", turn=self.turn, why=found)
        assert one is not None
        return one

    def turn(self) -> None:
        self.supervisor.look()
        time.sleep(0.02)

    def end(self) -> None:
        self.supervisor.run(lambda: True)


@pytest.fixture
def run(tmp_path: Path) -> Iterator[Run]:
    folder = RunFolder(tmp_path / "run")
    with folder.owned():
        one = Run(folder)
        try:
            yield one
        finally:
            one.end()


def answers(port: int) -> bool:
    with redis.Redis("127.0.0.1", port) as client:
        return bool(client.ping())


def test_parts_come_go_and_come_back(run: Run) -> None:
    first, second = free_ports(1), free_ports(1)
    with run.folder.changing() as parts:
        parts["a"] = redis_part("a", first)
    ready = run.until("a", Phase.READY)
    assert answers(first) and ready.restarts == 0 and ready.reason == ""

    os.kill(ready.pid, signal.SIGKILL)
    back = run.until("a", Phase.READY, restarts=1)
    assert back.pid != ready.pid and back.reason.startswith("was killed by SIGKILL"), back.reason

    with run.folder.changing() as parts:
        parts["b"] = redis_part("b", second)
        del parts["a"]
    run.until("b", Phase.READY)
    until(lambda: run.folder.wait(lambda state: True, 1).settled(run.folder.parts()), turn=run.turn)
    assert answers(second)
    with pytest.raises(redis.ConnectionError):
        answers(first)

    moved = redis_part("b", first)  # no server of ours: the old one ends first
    with run.folder.changing() as parts:
        parts["b"] = moved
    until(lambda: run.folder.wait(lambda state: True, 1).settled({"b": moved}), turn=run.turn)
    assert answers(first)


def test_a_mistake_is_not_repeated(run: Run) -> None:
    wrong = Part("trainer", Kind.TRAINER, ("train", "--pipeline", "nowhere.py", "--source", "file:x"))
    with run.folder.changing() as parts:
        parts["trainer"] = wrong
    failed = run.until("trainer", Phase.FAILED)
    assert "exit code 2: " in failed.reason and "nowhere.py" in failed.reason and failed.restarts == 0
    state = run.folder.state()
    assert state is not None
    with pytest.raises(InternalError, match=r"trainer ended with exit code 2: .*nowhere\.py"):
        state.settled(run.folder.parts())


@pytest.mark.parametrize(
    ("output", "last"),
    [
        (
            "livectr: generation 3 is torn.\nlivectr: training failed: rank 0 ended with exit code 1.\n",
            "generation 3 is torn.",
        ),
        (
            "2026-11-30 03:22:37,241 INFO livectr.trainer.run: resumed\n"
            "livectr: training failed: rank 0 was killed by SIGKILL.\n",
            "training failed: rank 0 was killed by SIGKILL.",
        ),
        ("2026-11-30 03:22:37,241 rank 0 ERROR livectr.x: no space\n\n", "no space"),
        ("", ""),
    ],
)
def test_the_reason_is_what_a_rank_has_said(output: str, last: str) -> None:
    assert last_line(output) == last


def test_what_answers_on_a_taken_port_is_not_the_part(run: Run, tmp_path: Path) -> None:
    (tmp_path / "logs").mkdir()
    (tmp_path / "logs" / "shown").mkdir()
    (tmp_path / "pipeline.py").write_text(PIPELINE)
    source, pipeline = f"file:{tmp_path / 'logs'}", str(tmp_path / "pipeline.py")
    with socket.create_server(("127.0.0.1", free_ports(1))) as taken:
        words = ("train", "--pipeline", pipeline, "--source", source)
        port = taken.getsockname()[1]
        with run.folder.changing() as parts:
            parts["trainer"] = Part("trainer", Kind.TRAINER, words, metrics=1, metrics_port=port)
        ready = run.until("trainer", Phase.READY)
    assert ready.metrics != (f"127.0.0.1:{port}",) and not ready.restarts
    os.kill(ready.pid, signal.SIGKILL)
    place = "127.0.0.1", int(ready.metrics[0].rpartition(":")[2])
    until(lambda: is_free(*place), "its ranks have ended")
    with socket.create_server(place):  # stands for a rank that still commits
        run.until("trainer", Phase.WAITING)
        for _ in range(10):
            run.turn()
        state = run.folder.state()
        assert state is not None and state.parts[0].phase is Phase.WAITING, state
    assert run.until("trainer", Phase.READY, restarts=1).metrics == ready.metrics


def test_parts_run_on_while_the_disk_is_full(run: Run) -> None:
    first, second = free_ports(1), free_ports(1)
    with run.folder.changing() as parts:
        parts["a"] = redis_part("a", first)
    run.until("a", Phase.READY)
    full = run.folder.path / f"state.json.{os.getpid()}.new"
    full.symlink_to("/dev/full")
    with run.folder.changing() as parts:
        parts["b"] = redis_part("b", second)
    until(lambda: listens("127.0.0.1", second), turn=run.turn)
    assert answers(first)
    state = run.folder.state()
    assert state is not None and [one.name for one in state.parts] == ["a"]
    full.unlink()
    run.until("b", Phase.READY)


def test_a_folder_has_one_supervisor(run: Run) -> None:
    assert run.folder.running
    with pytest.raises(InUseError, match="is up already"), RunFolder(run.folder.path).owned():
        pass


def test_files_are_read_as_they_are_written(tmp_path: Path) -> None:
    folder = RunFolder(tmp_path)
    assert not folder.exists and not folder.running and folder.parts() == {} and folder.state() is None
    words, secret = ("serve", "rank", "--listen", "127.0.0.1:1", "--redis=redis://r"), "redis://:secret@r"
    part = Part("rank", Kind.SERVER, words, "127.0.0.1:1", "ready on", 2, 9100, {"LIVECTR_REDIS": secret})
    with folder.changing() as parts:
        parts["rank"] = part
    assert folder.parts() == {"rank": part} and folder.exists
    assert (folder.path / "parts.json").stat().st_mode & 0o077 == 0
    words = (*words, "--set", "threads=2", "threads=3")
    said = replace(part, command=words)
    assert [said.setting(name) for name in ("redis", "listen", "threads", "namespace")] == [
        "redis://r",
        "127.0.0.1:1",
        "3",
        None,
    ]
    assert replace(part, command=()).setting("redis") == secret
    state = State(7, (Running(part, Phase.READY, 8, 9, ("127.0.0.1:9100",), "rank.log", 1, "why"),))
    with folder.owned():
        folder.write_state(state)
        assert folder.state() == state and state.settled({"rank": part})
        assert not state.settled({"rank": replace(part, metrics=0)})
    assert folder.state() is None


def test_versions_of_several_runs_are_not_guessed(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    """Else a hold would be that of whichever run has the default Redis."""
    monkeypatch.chdir(tmp_path)
    first, second = (RunFolder(Path(".livectr") / name) for name in ("first", "second"))
    first.write_parts([])
    second.write_parts([])
    with first.owned(), second.owned():
        assert main(["versions", "hold", "--reason", "sale"]) == 2
    assert "several runs are up (.livectr/first, .livectr/second)" in capsys.readouterr().err
