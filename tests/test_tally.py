"""Tally of runs: it counts, and is no worse a parent of orphans than init is."""

import subprocess
import sys
from pathlib import Path

from tests.tally import RECORD, Run, record

ROOT = Path(__file__).parents[1]
ORPHAN = """
import subprocess, sys
import psutil

def test_an_orphan_is_gone_once_it_has_ended():
    starter = "import subprocess as s, sys; print(s.Popen([sys.executable, '-c', 'input()'], stdin=0).pid)"
    with subprocess.Popen(
        [sys.executable, "-c", starter], stdin=subprocess.PIPE, stdout=subprocess.PIPE, text=True
    ) as process:
        orphan = psutil.Process(int(process.stdout.readline()))
    orphan.wait()  # for ever, if nobody reaps it

def test_that_fails():
    assert False
"""


def test_a_run_with_an_orphan_and_a_failure(tmp_path: Path) -> None:
    (tmp_path / "test_orphan.py").write_text(ORPHAN)
    command = [sys.executable, "-m", "tests.tally", "1", "--", "-p", "no:cacheprovider", str(tmp_path)]
    done = subprocess.run(command, cwd=ROOT, capture_output=True, text=True)
    assert done.returncode == 1, done.stdout + done.stderr
    assert "0 of 1 runs were green." in done.stdout
    assert "| 2 | 1 | 0 |" in done.stdout and "test_that_fails" in done.stdout


def test_a_line_of_the_record() -> None:
    done = Run(seed=7, seconds=60.4, cpu_s=90.0, tests=1200, failed=["tests/test_a.py::test_b"], code=1)
    cells = record(done, 2, "0123456789ab").strip("|\n ").split(" | ")
    head = next(line for line in RECORD.read_text().splitlines() if line.startswith("| ended"))
    assert len(cells) == len(head.strip("| ").split(" | "))
    assert cells[1] == "01234567" and cells[3:] == [
        "2 loops",
        "7",
        "60",
        "90",
        "1,200",
        "`tests/test_a.py::test_b`",
    ]
