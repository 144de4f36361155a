"""The tally of runs: what failed, in any order, with the time of processes that outlived their parents."""

from __future__ import annotations

import os
import re
import subprocess
import sys
from pathlib import Path

import psutil

from tests.tally import ROOT, Run, table

TESTS = """
import subprocess, sys

SPIN = "import time\\nwhile time.process_time() < 0.5: pass"

def test_first(): pass
def test_second(): pass
def test_third(): pass
def test_fails(): assert False
def test_orphan():
    code = f"import subprocess, sys; subprocess.Popen([sys.executable, '-c', {SPIN!r}])"
    subprocess.run([sys.executable, "-c", code], check=True)
"""


def tally(folder: Path, *words: str) -> tuple[int, str]:
    """Exit code and output of two runs of TESTS."""
    (folder / "test_some.py").write_text(TESTS)
    options = ["--", "-v", "-p", "no:cacheprovider", str(folder / "test_some.py"), "--rootdir", str(ROOT)]
    options += ["-c", str(ROOT / "pyproject.toml"), "-p", "tests.conftest"]
    done = subprocess.run(
        [sys.executable, "-m", "tests.tally", "2", *words, *options],
        cwd=ROOT,
        env=os.environ | {"PYTHONPATH": str(ROOT)},
        capture_output=True,
        text=True,
    )
    return done.returncode, done.stdout + done.stderr


def test_runs_are_counted_in_random_order(tmp_path: Path) -> None:
    code, said = tally(tmp_path, "--shuffle", "--busy", "1", "--table", str(tmp_path / "t.md"), "--slow", "1")
    assert code == 1, said
    text = (tmp_path / "t.md").read_text()
    assert text in said and "0 of 2 runs were green." in text
    assert re.search(r"- 2 × `.*::test_fails`", text), text
    lines = [line.split("|") for line in text.splitlines() if re.match(r"\| \d \|", line)]
    assert [(line[5].strip(), line[6].strip()) for line in lines] == [("5", "1")] * 2
    assert all(float(line[4]) >= 1 for line in lines), "the orphan's time is in it"
    orders = [
        re.findall(r"::(test_\w+) (?:PASSED|FAILED)", part) for part in said.split("order: --shuffle=")[1:]
    ]
    assert len(orders) == 2 and orders[0] != orders[1] and sorted(orders[0]) == sorted(orders[1])
    loops = [
        p
        for p in psutil.process_iter(["cmdline"])
        if p.info["cmdline"] == [sys.executable, "-c", "while True: pass"]
    ]
    assert not [p for p in loops if p.ppid() in (1, os.getpid())]


def test_a_table_tells_green_runs() -> None:
    good, broken = Run(None, 10.4, 20.6, 3), Run(7, 1, 1, code=2)
    assert good.green and not broken.green and not Run(None, left=["java"]).green
    text = table([good, broken])
    assert (
        "| 1 | files | 10 | 21 | 3 | 0 | 0 |" in text
        and "| 2 | seed 7 | 1 | 1 | 0 | exit code 2 | 0 |" in text
    )
    assert "1 of 2 runs were green." in text
