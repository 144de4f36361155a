"""Server processes of the display pipeline."""

from __future__ import annotations

import os
import subprocess
import sys
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path

from tests.commands import Command

HERE = Path(__file__).resolve().parent
ROOT = HERE.parent.parent
PIPELINE = HERE / "display_pipeline.py"


@contextmanager
def server(
    role: str,
    url: str,
    *flags: str,
    pipeline: Path = PIPELINE,
    begin: type[subprocess.Popen[str]] = Command,
) -> Iterator[subprocess.Popen[str]]:
    """Server process.

    Args:
        begin: `subprocess.Popen` for one that Python starts.
    """
    command = [sys.executable, "-m", "livectr", "serve", role, "--pipeline", str(pipeline), "--redis", url]
    process = begin(
        [*command, *flags],
        cwd=ROOT,
        env={**os.environ, "PYTHONPATH": str(ROOT)},
        stdout=subprocess.PIPE,
        stderr=subprocess.PIPE,
        text=True,
    )
    try:
        yield process
    finally:
        if process.poll() is None:
            process.kill()
        process.communicate()


def ready(process: subprocess.Popen[str]) -> tuple[str, str]:
    """Address and version in the ready line."""
    assert process.stdout is not None
    for line in process.stdout:
        if " server ready on " in line:
            words = line.split()
            return words[4], words[6].rstrip(")")
    raise AssertionError(process.communicate())
