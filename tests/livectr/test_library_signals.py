"""`livectr.train` in a program: a signal commits what was learned, and then is the program's."""

from __future__ import annotations

import os
import signal
import subprocess
import sys
from pathlib import Path

import pytest

from livectr.trainer.checkpoint.stored import placed
from tests.commands import Command
from tests.trainer.ad_logs import write_files
from tests.waiting import left_s, until

ROOT = Path(__file__).parents[2]
PROGRAM = """
import sys
import livectr
from tests.trainer.ad_logs import ad_pipeline

try:
    livectr.train(ad_pipeline(), source=sys.argv[1], checkpoint=sys.argv[2], until_end=False)
except KeyboardInterrupt:
    print("interrupted")
    sys.exit(7)
print("swallowed")
"""


def catches(pid: int, number: int) -> bool:
    """True if the process has a handler for the signal."""
    line = next(x for x in Path(f"/proc/{pid}/status").read_text().splitlines() if x.startswith("SigCgt"))
    return bool(int(line.split()[1], 16) >> (number - 1) & 1)


@pytest.mark.parametrize(
    ("number", "code", "says"), [(signal.SIGTERM, -signal.SIGTERM, ""), (signal.SIGINT, 7, "interrupted\n")]
)
def test_a_signal_reaches_the_program(tmp_path: Path, number: signal.Signals, code: int, says: str) -> None:
    write_files(tmp_path / "logs", 500)
    checkpoint = tmp_path / "checkpoint"
    process = Command(
        [sys.executable, "-c", PROGRAM, f"file:{tmp_path / 'logs'}", str(checkpoint)],
        cwd=ROOT,
        env=os.environ | {"PYTHONPATH": str(ROOT)},
        stdout=subprocess.PIPE,
        text=True,
    )
    try:
        until(lambda: process.poll() is not None or catches(process.pid, signal.SIGTERM))
        process.send_signal(number)
        out, _ = process.communicate(timeout=left_s())
    finally:
        process.kill()
        process.wait()
    assert (process.returncode, out) == (code, says)
    assert placed(checkpoint).generations()
