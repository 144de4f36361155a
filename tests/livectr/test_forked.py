"""Forked commands of tests are processes as `subprocess` starts them."""

from __future__ import annotations

import os
import signal
import subprocess
import sys
from pathlib import Path

import psutil
import pytest

from livectr.trainer.checkpoint.manifest import newest_manifest
from tests.commands import Command, run
from tests.docs.forked import ForkedOnPath
from tests.livectr.wrong_logs import LABELLED, row, write_arrow
from tests.waiting import alive, left_s, until

SHOWS = """
import json, os, signal, sys
from pathlib import Path
number, default = signal.SIGTERM, signal.SIG_DFL
leads = os.getsid(0) == os.getpid()
print(json.dumps([sys.argv[1:], os.getcwd(), os.environ["MINE"], sys.stdin.read(), leads]))
assert signal.getsignal(number) == default and signal.getsignal(signal.SIGINT) is signal.default_int_handler
assert "TAKEN" not in os.environ and sys.path[0] == os.getcwd()
print("said", file=sys.stderr)
sys.exit(7)
"""


def test_a_command_has_files_folder_environment_and_exit_code_of_its_own(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    (tmp_path / "shows.py").write_text(SHOWS)
    monkeypatch.setenv("TAKEN", "1")
    environment = {name: value for name, value in os.environ.items() if name != "TAKEN"} | {"MINE": "mine"}
    with Command(
        [sys.executable, "-m", "shows", "a", "b c"],
        cwd=tmp_path,
        env=environment,
        start_new_session=True,
        text=True,
        stdin=subprocess.PIPE,
        stdout=subprocess.PIPE,
        stderr=subprocess.PIPE,
    ) as process:
        assert psutil.Process(process.pid).ppid() == os.getpid()
        out, err = process.communicate("asked", timeout=left_s())
    assert out == f'[["a", "b c"], "{tmp_path}", "mine", "asked", true]\n' and err == "said\n"
    assert process.returncode == 7


@pytest.mark.parametrize("number", [signal.SIGTERM, signal.SIGKILL])
def test_a_signal_ends_a_command(tmp_path: Path, number: signal.Signals) -> None:
    (tmp_path / "waits.py").write_text("import time\nprint('here', flush=True)\ntime.sleep(6000)\n")
    command = [sys.executable, "-m", "waits"]
    with Command(command, cwd=tmp_path, text=True, stdout=subprocess.PIPE) as process:
        assert process.stdout is not None and process.stdout.readline() == "here\n"
        process.send_signal(number)
        assert process.wait(left_s()) == -number


def test_an_exception_is_shown(tmp_path: Path) -> None:
    (tmp_path / "fails.py").write_text("1 / 0\n")
    done = run(
        [sys.executable, "-m", "fails"], cwd=tmp_path, capture_output=True, text=True, timeout=left_s()
    )
    assert done.returncode == 1 and done.stderr.endswith("ZeroDivisionError: division by zero\n")


def test_a_server_has_no_metrics_of_a_trainer() -> None:
    """`livectr status` would take it for a trainer."""
    names = "print(*(name for names in REGISTRY._collector_to_names.values() for name in names))"
    code = "from prometheus_client import REGISTRY; from tests import commands; "
    code += f"{names}; commands.leave_metrics_to_trainers(); {names}"
    done = run([sys.executable, "-c", code], capture_output=True, text=True, timeout=left_s())
    of_both, of_a_server = (line.split() for line in done.stdout.splitlines())
    assert {"livectr_pending_joins", "livectr_examples_total"} <= set(of_both) - set(of_a_server)
    assert "livectr_build_info" in of_a_server


def test_ranks_are_forks_of_their_supervisor(tmp_path: Path) -> None:
    """Python itself would find no module; a rank that is told to stop commits, as one that Python starts."""
    write_arrow(tmp_path / "logs", "shown", [row(number) for number in range(2_000)], partitions=2)
    (tmp_path / "p.py").write_text(LABELLED)
    command = [sys.executable, "-m", "livectr", "train", "--pipeline", "p.py", "--source", "file:logs"]
    command += ["--checkpoint", "c", "--ranks", "2", "--set", "threads=1"]
    environment = os.environ | {"PYTHONHOME": str(tmp_path)}
    with Command(command, cwd=tmp_path, env=environment, stderr=subprocess.PIPE, text=True) as process:
        supervisor = psutil.Process(process.pid)
        until(lambda: len(supervisor.children()) == 2, process=process)
        ranks = supervisor.children()
        until(lambda: all(os.getsid(rank.pid) == rank.pid for rank in ranks), process=process)
        until(lambda: newest_manifest(tmp_path / "c") is not None, process=process)
        process.terminate()
        _, said = process.communicate(timeout=left_s())
    assert process.returncode == 0, said
    assert alive(ranks) == []


def test_a_shell_finds_a_command_that_is_forked(tmp_path: Path) -> None:
    """Its output, exit code and signals; a program that is killed takes its command along."""
    with ForkedOnPath(tmp_path / "forked") as forked:
        environment = os.environ | {"PATH": f"{forked.path}{os.pathsep}{os.environ['PATH']}"}
        simulate = f"livectr logs simulate --to file:{tmp_path / 'logs'} --seconds 600"
        script = "livectr --version; livectr train; echo $?; "
        script += f"{simulate} 2> said & until [ -s said ]; do sleep 0.1; done; kill $!; wait $!; echo $?"
        done = subprocess.run(
            ["bash", "-c", script],
            env=environment,
            cwd=tmp_path,
            capture_output=True,
            text=True,
            timeout=left_s(),
        )
        version, mistake, ended = done.stdout.splitlines()
        assert version.startswith("livectr ") and mistake == "2" and int(ended) == 128 + signal.SIGTERM
        assert "say --pipeline" in done.stderr and forked.commands == 3
        children = {child.pid for child in psutil.Process().children()}
        left = subprocess.Popen(["livectr", *simulate.split()[1:]], env=environment, cwd=tmp_path)
        until(lambda: forked.commands >= 4)
        begun = [c for c in psutil.Process().children() if c.pid not in {*children, left.pid}]
        assert len(begun) == 1
        left.kill()
        left.wait()
    assert alive(begun) == []
