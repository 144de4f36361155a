"""Run of one step: a program with a time limit, whose output goes to OUT/log.txt as it is written."""

from __future__ import annotations

import os
import shutil
import signal
import subprocess
import time
from contextlib import suppress
from importlib.util import find_spec
from pathlib import Path

from bench.gpu_kit.events import OUT, Status, note
from bench.gpu_kit.steps import Step

LOG = "log.txt"
LAST = 5
"""Lines of a failed step's output that the console shows."""


def run(step: Step, out: Path, limit_s: float) -> Status:
    """Run a step, note how it ended, and say so on the console; it never raises for what the step does.

    Args:
        step: program, and what it needs.
        out: folder of the log.
        limit_s: it is ended after this time, with all processes that it has started.
    """
    start = time.monotonic()
    why = lacking(step)
    status: Status = "not run"
    if not why and limit_s < 1:
        why = "no time was left"
    if not why:
        why = _ended(step, out, limit_s)
        status = "failed" if why else "passed"
    spent = time.monotonic() - start
    note("step", name=step.name, status=status, seconds=spent, limit_s=limit_s, why=why)
    print(f"{step.name:24} {status:8} {spent:6.1f} s  {why.splitlines()[0] if why else ''}", flush=True)
    for line in why.splitlines()[1:]:
        print(f"    {line}", flush=True)
    return status


def lacking(step: Step) -> str:
    """Sentence on what is not there and needed; empty: nothing."""
    packages = [name for name in step.packages if find_spec(name) is None]
    if packages:
        return f"needs {' and '.join(packages)}, which this Python lacks"
    return "" if step.tool is None or shutil.which(step.tool) else f"{step.tool} is not there"


def _ended(step: Step, out: Path, limit_s: float) -> str:
    """Run the program; returns why it failed, with its last lines, or nothing."""
    path = out / LOG
    with path.open("ab") as log:
        log.write(f"\n=== {step.name}: {' '.join(step.command)}\n".encode())
        log.flush()
        begin = log.tell()
        process = subprocess.Popen(
            step.command,
            stdin=subprocess.DEVNULL,
            stdout=log,
            stderr=log,
            env=os.environ | {OUT: str(out)},
            start_new_session=True,
        )
        try:
            code = process.wait(limit_s)
            failure = f"ended with {code}" if code else ""
        except subprocess.TimeoutExpired:
            failure = f"did not end in {limit_s:.0f} s"
        finally:
            _end(process)
    if not failure:
        return ""
    said = path.read_bytes()[begin:].decode(errors="replace").strip().splitlines()
    return "\n".join([failure, *said[-LAST:]])


def _end(process: subprocess.Popen[bytes]) -> None:
    """End a program's session: also what it has started and left."""
    with suppress(ProcessLookupError):
        os.killpg(process.pid, signal.SIGKILL)
    process.wait()
