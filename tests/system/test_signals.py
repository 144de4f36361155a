"""Events that signal handlers set, in processes that get many signals."""

from __future__ import annotations

import signal
import subprocess
import sys
import threading
import time

import pytest

from livectr.system.signals import SignalEvent
from tests.waiting import left_s

SIGNALS = 500
SERVER = """
from livectr.serving.workers import StopSignal
stop = StopSignal()
wait = stop.stopped.wait
"""
TRAINER = """
from livectr.trainer.process import stop_signals
import time
stop = stop_signals()
told = stop.__enter__()
wait = lambda _: told() or time.sleep(0.001)
"""
UNTIL_STDIN_ENDS = """
import sys, threading
reader = threading.Thread(target=sys.stdin.read)
reader.start()
print("ready", flush=True)
while reader.is_alive():
    wait(0.0005)
"""


@pytest.mark.parametrize("code", [SERVER, TRAINER], ids=["server", "trainer"])
def test_many_signals_while_the_main_thread_waits(code: str) -> None:
    process = subprocess.Popen(
        [sys.executable, "-c", code + UNTIL_STDIN_ENDS],
        stdin=subprocess.PIPE,
        stdout=subprocess.PIPE,
        text=True,
    )
    try:
        assert process.stdout and process.stdout.readline() == "ready\n"
        for _ in range(SIGNALS):
            process.send_signal(signal.SIGTERM)
            time.sleep(0.002)
        process.communicate(timeout=left_s())
        assert process.returncode == 0
    finally:
        process.kill()


def test_every_waiting_thread_wakes() -> None:
    event, woken = SignalEvent(), []
    threads = [threading.Thread(target=lambda: woken.append(event.wait(left_s()))) for _ in range(3)]
    for thread in threads:
        thread.start()
    assert not event.wait(0.01) and not event.is_set()
    event.set()
    event.set()
    for thread in threads:
        thread.join(left_s())
    assert woken == [True] * 3 and event.is_set() and event.wait() and event.wait(0)
