"""Prometheus' own checks, by Debian's promtool. `make setup` brings it; without it the tests fail."""

from __future__ import annotations

import os
import shutil
import subprocess
import sys
import urllib.request
from pathlib import Path

from tests.waiting import left_s


def promtool() -> str:
    """Path of promtool: beside this Python, where setup.sh puts it, or on the PATH."""
    folders = os.pathsep.join([str(Path(sys.executable).parent), os.environ["PATH"]])
    path = shutil.which("promtool", path=folders)
    assert path, "promtool is missing: run ./setup.sh, or install Debian's package `prometheus`"
    return path


def complaints(scrape: str) -> str:
    """Answer of `promtool check metrics` to a scrape; empty where all names, types and helps are right."""
    done = subprocess.run(
        [promtool(), "check", "metrics"],
        input=scrape,
        capture_output=True,
        text=True,
        timeout=left_s(),
        check=False,
    )
    answer = done.stdout + done.stderr
    assert answer or done.returncode == 0, f"promtool ended with {done.returncode}"
    return answer


def checked_scrape(port: int) -> str:
    """Live metrics at 127.0.0.1:`port`, after promtool has found nothing to complain about."""
    with urllib.request.urlopen(f"http://127.0.0.1:{port}/metrics", timeout=left_s()) as answer:
        text: str = answer.read().decode()
    assert complaints(text) == ""
    return text
