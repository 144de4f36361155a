"""Ranks that die are started again from the checkpoint, while that gets them on; the exit codes are right."""

from __future__ import annotations

import json
import os
import random
import signal
import subprocess
import sys
import time
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path

import psutil
import pytest

from livectr.cli import main
from livectr.local.ports import free_ports
from livectr.local.ranks import SET_ASIDE, UNFINISHED, Ranks
from livectr.local.supervise import AWAY, DATA, MISTAKE, Supervision, supervise
from livectr.system.errors import InternalError
from livectr.trainer.checkpoint.manifest import newest_manifest
from tests.livectr.settings_words import settings_words
from tests.trainer.ad_logs import write_files
from tests.trainer.kills import IMPRESSIONS, OPTIONS, generation
from tests.trainer.processes import finish, start
from tests.trainer.run_result import Result, assert_close
from tests.waiting import alive, left_s, until

ROOT = Path(__file__).parents[2]
RANK = """
import json, os, signal, sys, time
from pathlib import Path
here, rank = Path(sys.argv[1]), os.environ["RANK"]
starts = len(list(here.glob(f"start-{rank}-*")))
(here / f"start-{rank}-{starts}").write_text(json.dumps(dict(os.environ)))

def commit(step):
    folder = here / "checkpoint" / f"gen-{step:08d}"
    folder.mkdir(parents=True)
    (folder / "MANIFEST.json").write_text(json.dumps({"body": json.dumps({"step": step})}))
"""


def supervision(folder: Path, body: str, ranks: int = 2, restarts: int = 0) -> Supervision:
    (folder / "rank.py").write_text(RANK + body)
    program = Ranks((sys.executable, str(folder / "rank.py"), str(folder)), ranks)
    return Supervision(program, restarts, folder / "checkpoint")


def starts(folder: Path, rank: int = 0) -> int:
    return len(list(folder.glob(f"start-{rank}-*")))


def test_every_rank_knows_its_place(tmp_path: Path) -> None:
    assert supervise(supervision(tmp_path, "", ranks=3)) == 0
    reported = [json.loads((tmp_path / f"start-{rank}-0").read_text()) for rank in range(3)]
    assert [(t["RANK"], t["LOCAL_RANK"], t["WORLD_SIZE"]) for t in reported] == [(r, r, "3") for r in "012"]
    assert len({(t["MASTER_ADDR"], t["MASTER_PORT"]) for t in reported}) == 1


@pytest.mark.parametrize("code", [MISTAKE, DATA])
def test_a_users_mistake_is_not_made_again(tmp_path: Path, code: int) -> None:
    assert supervise(supervision(tmp_path, f"sys.exit({code} if rank == '1' else 0)", restarts=5)) == code
    assert starts(tmp_path) == 1


def test_a_run_that_set_too_many_rows_aside_is_not_made_again(tmp_path: Path) -> None:
    """Its code is that of an address where nothing answers, but nothing is waited for."""
    assert supervise(supervision(tmp_path, f"sys.exit({SET_ASIDE})", restarts=5)) == AWAY
    assert starts(tmp_path) == starts(tmp_path, 1) == 1


def test_a_broker_that_is_away_at_a_restart_is_waited_for(tmp_path: Path) -> None:
    body = "if starts == 0:\n    commit(1)\nsys.exit(7 if starts == 0 else 4 if starts < 4 else 0)"
    assert supervise(supervision(tmp_path, body, ranks=1, restarts=1)) == 0
    assert starts(tmp_path) == 5  # more than `restarts` without a new step


@pytest.mark.parametrize(("checkpoint", "restarts"), [("", 5), ("commit(1)", 0)])
def test_an_address_where_nothing_answers_ends_a_new_run(
    tmp_path: Path, checkpoint: str, restarts: int
) -> None:
    body = f"{checkpoint}\nsys.exit(4)"
    assert supervise(supervision(tmp_path, body, ranks=1, restarts=restarts)) == AWAY
    assert starts(tmp_path) == 1


def test_without_restarts_a_failure_is_the_end(tmp_path: Path) -> None:
    with pytest.raises(InternalError, match=r"training failed: rank 1 ended with exit code 7\."):
        supervise(supervision(tmp_path, "sys.exit(7 if rank == '1' else 0)"))
    assert starts(tmp_path) == 1


def test_it_gives_up_without_progress(tmp_path: Path) -> None:
    body = "commit(3) if starts == 0 and rank == '0' else None\nos.kill(os.getpid(), signal.SIGKILL)"
    with pytest.raises(
        InternalError, match="failed, and 2 starts brought no new step into the checkpoint: rank 0 was killed"
    ):
        supervise(supervision(tmp_path, body, ranks=1, restarts=2))
    assert starts(tmp_path) == 3  # the first got to step 3, and none of the two tries after it further


def test_progress_is_not_given_up(tmp_path: Path) -> None:
    body = "commit(starts + 1)\nsys.exit(starts < 4)"
    assert supervise(supervision(tmp_path, body, ranks=1, restarts=1)) == 0
    assert starts(tmp_path) == 5


def test_ranks_that_hang_without_the_dead_one_are_killed(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr("livectr.local.ranks.END_S", 0.5)
    body = (
        "if starts == 0:\n    if rank == '0': time.sleep(6000)\n"
        "    while not (here / 'start-0-0').exists(): time.sleep(0.01)\n"
        "    sys.exit(1)"
    )
    began = time.monotonic()
    assert supervise(supervision(tmp_path, body, restarts=1)) == 0
    assert time.monotonic() - began > 0.5
    assert starts(tmp_path, 0) == starts(tmp_path, 1) == 2
    assert not [p for p in psutil.process_iter(["cmdline"]) if str(tmp_path) in (p.info["cmdline"] or [])]


def test_nobody_waits_for_ranks_that_lost_a_killed_one(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr("livectr.local.ranks.END_S", 5000.0)
    body = (
        "if starts == 0:\n    if rank == '0': time.sleep(6000)\n"
        "    while not (here / 'start-0-0').exists(): time.sleep(0.01)\n"
        "    os.kill(os.getpid(), signal.SIGKILL)"
    )
    assert supervise(supervision(tmp_path, body, restarts=1)) == 0


def test_a_mistake_that_is_told_after_another_rank_s_error(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr("livectr.local.ranks.END_S", 5000.0)
    body = "time.sleep(1 - int(rank))\nsys.exit(2 - int(rank))"
    assert supervise(supervision(tmp_path, body, restarts=5)) == MISTAKE
    assert starts(tmp_path) == 1


WAITING = """
signal.signal(signal.SIGTERM, lambda *_: sys.exit(CODE))
(here / f"ready-{rank}").touch()
time.sleep(6000)
"""


@contextmanager
def supervisor(folder: Path, body: str, *, until_end: bool = False) -> Iterator[subprocess.Popen[bytes]]:
    """A supervisor in a process of its own, whose ranks are ready."""
    run = supervision(folder, body)
    program = (
        "import sys; from pathlib import Path; from livectr.local.ranks import Ranks\n"
        "from livectr.local.supervise import Supervision, supervise\n"
        f"ranks = Ranks({tuple(run.ranks.command)!r}, 2)\n"
        f"sys.exit(supervise(Supervision(ranks, 5, Path({str(run.checkpoint)!r}), until_end={until_end})))"
    )
    process = subprocess.Popen([sys.executable, "-c", program], cwd=ROOT, stderr=subprocess.PIPE)
    try:
        until(lambda: all((folder / f"ready-{rank}").exists() for rank in range(2)))
        yield process
    finally:
        process.kill()
        process.wait()


@pytest.mark.parametrize("number", [signal.SIGTERM, signal.SIGINT])
def test_told_to_stop_it_lets_the_ranks_end_and_ends_well(tmp_path: Path, number: signal.Signals) -> None:
    with supervisor(tmp_path, WAITING.replace("CODE", "0")) as process:
        process.send_signal(number)
        assert process.wait(left_s()) == 0
    assert starts(tmp_path) == 1


@pytest.mark.parametrize(
    ("codes", "ends_with"), [("0", 0), ("5", 5), ("5 * int(rank)", 5), ("5 - 4 * int(rank)", 1)]
)
def test_before_the_logs_end_it_ends_with_a_code_of_its_own(
    tmp_path: Path, codes: str, ends_with: int
) -> None:
    """Unless every rank came to the end, or one failed."""
    with supervisor(tmp_path, WAITING.replace("CODE", codes), until_end=True) as process:
        process.terminate()
        assert process.wait(left_s()) == ends_with


def test_ranks_that_were_ended_before_they_began_have_not_come_to_the_logs_end(tmp_path: Path) -> None:
    with supervisor(
        tmp_path, "(here / f'ready-{rank}').touch()\ntime.sleep(6000)", until_end=True
    ) as process:
        process.terminate()
        assert process.wait(left_s()) == UNFINISHED


def test_a_rank_that_a_stranger_stops_is_no_failure(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """The others end with it, a moment later; nobody kills them meanwhile."""
    monkeypatch.setattr("livectr.local.ranks.END_S", 0.1)
    body = f"""
rank == '1' or time.sleep(1)
(here / f'ended-{{rank}}').touch()
sys.exit({UNFINISHED})
"""
    assert supervise(supervision(tmp_path, body, restarts=3)) == UNFINISHED
    assert (tmp_path / "ended-0").exists() and starts(tmp_path) == 1


def test_ranks_that_do_not_end_well_when_told_to_stop(tmp_path: Path) -> None:
    with supervisor(tmp_path, WAITING.replace("CODE", "9")) as process:
        process.terminate()
        _, said = process.communicate(timeout=left_s())
        assert process.returncode == 1 and b"asked to stop, but rank" in said
    assert starts(tmp_path) == 1


def test_a_killed_supervisor_leaves_no_rank(tmp_path: Path) -> None:
    with supervisor(tmp_path, WAITING.replace("CODE", "0")) as process:
        ranks = psutil.Process(process.pid).children()
        assert len(ranks) == 2
        process.kill()
        until(lambda: not alive(ranks))


def test_mistakes(capsys: pytest.CaptureFixture[str], monkeypatch: pytest.MonkeyPatch) -> None:
    pipeline = str(ROOT / "examples" / "display_ads" / "pipeline.py")
    train = ["train", "--pipeline", pipeline, "--source", "file:x"]
    assert main([*train, "--set", "restarts=3"]) == 2
    assert "say --checkpoint DIR too" in capsys.readouterr().err
    monkeypatch.setenv("WORLD_SIZE", "2")
    monkeypatch.setenv("RANK", "0")
    assert main([*train, "--ranks", "3"]) == 2
    assert "ranks is 3, but torchrun started 2" in capsys.readouterr().err


@pytest.mark.full
def test_a_killed_rank_trains_again_and_learns_the_same(tmp_path: Path) -> None:
    """Two ranks under `livectr train`, kill -9 of one of them, against one rank that nothing disturbs."""
    source = write_files(tmp_path / "logs", IMPRESSIONS)
    finish(start(1, {**OPTIONS, "source": source, "checkpoint": str(tmp_path / "unbroken")}))
    pipeline = tmp_path / "pipeline.py"
    pipeline.write_text("from tests.trainer.ad_logs import ad_pipeline\n\npipeline = ad_pipeline()\n")
    root = tmp_path / "checkpoint"
    flags = {"pipeline": pipeline, "source": source, "checkpoint": root, "threads": 1, "ranks": 2}
    flags |= {"batch_size": 64, "batch_ramp": 0, "publish_interval_s": 0.15, "restarts": 3}
    command = [sys.executable, "-m", "livectr", "train", "--until-end"]
    command += settings_words(flags)
    process = subprocess.Popen(
        command, cwd=ROOT, env=os.environ | {"PYTHONPATH": str(ROOT)}, stderr=subprocess.PIPE, text=True
    )
    until(lambda: generation(root) > 0)
    time.sleep(random.random() * 0.3)
    ranks = psutil.Process(process.pid).children()
    assert len(ranks) == 2
    ranks[random.randrange(2)].kill()
    before = generation(root)
    until(lambda: generation(root) > before)
    _, said = process.communicate(timeout=left_s())
    assert process.returncode == 0, said
    assert "was killed by SIGKILL; start 1 of 3" in said
    assert_close(Result(root), Result(tmp_path / "unbroken"))
    manifest = newest_manifest(root)
    assert manifest is not None and manifest.world == 2


@pytest.mark.parametrize(
    ("flags", "says"),
    [
        (["--set", "nodes=2"], "set rendezvous to HOST:PORT"),
        (["--set", "nodes=2", "rendezvous=here"], "must be HOST:PORT"),
        (["--set", "nodes=2", "rendezvous=here:1", "node=2"], "the nodes are 0 to 1"),
    ],
)
def test_mistakes_about_nodes(flags: list[str], says: str, capsys: pytest.CaptureFixture[str]) -> None:
    pipeline = str(ROOT / "examples" / "display_ads" / "pipeline.py")
    assert main(["train", "--pipeline", pipeline, "--source", "file:x", *flags]) == 2
    assert says in capsys.readouterr().err


@pytest.mark.full
def test_sigterm_to_one_of_two_nodes_ends_both_well(tmp_path: Path) -> None:
    """As torchrun does not: it ends with 1 on SIGTERM."""
    (tmp_path / "pipeline.py").write_text(
        "from tests.trainer.ad_logs import ad_pipeline\n\npipeline = ad_pipeline()\n"
    )
    flags = {"pipeline": tmp_path / "pipeline.py", "source": write_files(tmp_path / "logs", 1000)}
    flags |= {"checkpoint": tmp_path / "checkpoint", "batch_size": 64, "threads": 1, "nodes": 2}
    flags |= {"rendezvous": f"127.0.0.1:{free_ports(1)}"}
    train = [
        sys.executable,
        "-m",
        "livectr",
        "train",
        *settings_words(flags),
    ]
    nodes = [
        subprocess.Popen(
            [*train, "--set", f"node={node}"], cwd=ROOT, env=os.environ | {"PYTHONPATH": str(ROOT)}
        )
        for node in range(2)
    ]
    try:
        until(lambda: generation(tmp_path / "checkpoint") > 0)
        nodes[1].terminate()
        assert [node.wait(left_s()) for node in nodes] == [0, 0]
    finally:
        for node in nodes:
            node.kill()
            node.wait()
    manifest = newest_manifest(tmp_path / "checkpoint")
    assert manifest is not None and manifest.world == 2 and manifest.step > 0
