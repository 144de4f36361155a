"""Pauses of a process count, though no handler runs in them."""

from __future__ import annotations

import subprocess
import sys
import time

import psutil
from prometheus_client.parser import text_string_to_metric_families

from livectr.serving.pauses import INTERVAL_S
from tests.waiting import left_s, until

PROCESS = """
import sys
from prometheus_client import generate_latest
from livectr.serving.pauses import PauseClock

with PauseClock():
    print("runs", flush=True)
    sys.stdin.readline()
sys.stdout.write(generate_latest().decode())
"""
STOP_S = 1.0
BOUND_S = 0.05


def test_a_stopped_process_counts_the_requests_that_would_have_waited() -> None:
    with subprocess.Popen(
        [sys.executable, "-c", PROCESS], stdin=subprocess.PIPE, stdout=subprocess.PIPE, text=True
    ) as child:
        assert child.stdout is not None and child.stdout.readline() == "runs\n"
        process = psutil.Process(child.pid)
        process.suspend()
        until(lambda: process.status() == psutil.STATUS_STOPPED)
        time.sleep(STOP_S)
        process.resume()
        text, _ = child.communicate("end\n", timeout=left_s())
    assert child.returncode == 0
    (family,) = (f for f in text_string_to_metric_families(text) if f.name == "livectr_pause_seconds")
    found = {s.labels.get("le", s.name): s.value for s in family.samples}
    late = found["livectr_pause_seconds_count"] - found[str(BOUND_S)]
    assert late >= (STOP_S - BOUND_S) / INTERVAL_S - 1, "each moment of the stop is one"
    assert found["livectr_pause_seconds_sum"] >= STOP_S**2 / INTERVAL_S / 2 * 0.9, "of the time that was left"
