"""Workers of pytest-xdist: what they say, and what is left of a run when one crashes."""

from __future__ import annotations

import os
import signal
import subprocess
import sys
from pathlib import Path

ROOT = Path(__file__).parents[1]
CONFTEST = """
from tests.forked_workers import ForkedWorkers
from tests.scheduling import TestByTest

def pytest_configure(config):
    if not hasattr(config, "workerinput"):
        config.pluginmanager.register(ForkedWorkers(lambda: None, lambda: None))

def pytest_xdist_make_scheduler(config, log):
    return TestByTest(config, log)
"""
CRASH = """
import os, signal
from pathlib import Path

import pytest

@pytest.fixture(scope="module")
def shared():
    return 1

@pytest.mark.parametrize("number", range(4))
def test_that_may_crash(number, shared):
    with Path(os.environ["RAN"]).open("a") as ran:
        print(number, file=ran)
    if number == 1:
        pid = os.fork()  # it holds the worker's pipes
        if not pid:
            signal.pause()
        Path(os.environ["FORKED"]).write_text(str(pid))
        os.kill(os.getpid(), signal.SIGKILL)
"""


def pytest_in(folder: Path, **variables: str) -> tuple[int, str]:
    """Run the tests of a folder in two workers; returns the exit code, and what they said."""
    (folder / "conftest.py").write_text(CONFTEST)
    (folder / "pytest.ini").write_text("[pytest]")
    command = [
        sys.executable,
        "-m",
        "pytest",
        "-p",
        "no:cacheprovider",
        "--numprocesses=2",
        "--dist=loadscope",
    ]
    said = folder / "said"  # a pipe would be open as long as what a worker has forked
    with said.open("w") as file:
        code = subprocess.call(
            [*command, str(folder)], cwd=ROOT, env=os.environ | variables, stdout=file, stderr=file
        )
    return code, said.read_text()


def test_a_crash_fails_its_test_alone(tmp_path: Path) -> None:
    (tmp_path / "test_crash.py").write_text(CRASH)
    ran, forked = tmp_path / "ran", tmp_path / "forked"
    try:
        code, said = pytest_in(tmp_path, RAN=str(ran), FORKED=str(forked))
    finally:
        os.kill(int(forked.read_text()), signal.SIGKILL)
    assert code == 1 and "1 failed, 3 passed" in said, said
    assert "crashed while running 'test_crash.py::test_that_may_crash[1]'" in said
    assert "a worker of the tests was ended by SIGKILL" in said
    assert sorted(ran.read_text().split()) == ["0", "1", "2", "3"]


def test_a_module_that_cannot_be_imported_is_named(tmp_path: Path) -> None:
    (tmp_path / "test_import.py").write_text("import nothing_of_that_name")
    (tmp_path / "test_right.py").write_text("def test_right(): pass")
    code, said = pytest_in(tmp_path)
    assert code == 1 and "1 passed, 1 error" in said, said
    assert "No module named 'nothing_of_that_name'" in said
