"""Processes that have ended: a zombie has, whoever has to reap it."""

from __future__ import annotations

import subprocess
import sys

import psutil

from tests.waiting import alive, until


def test_a_zombie_has_ended() -> None:
    process = subprocess.Popen([sys.executable, "-c", "input()"], stdin=subprocess.PIPE)
    found = psutil.Process(process.pid)
    assert alive([found]) == [found]
    assert process.stdin
    process.stdin.close()
    until(lambda: found.status() == psutil.STATUS_ZOMBIE)
    assert found.is_running() and alive([found]) == []
    process.wait()
    assert alive([found]) == []
