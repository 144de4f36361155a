"""`tests.watch.expressions` tells a Prometheus that does not answer from an expression without data."""

from __future__ import annotations

import subprocess
import sys

from k8s.demo import ROOT
from livectr.local.ports import free_ports
from tests.waiting import left_s


def test_a_prometheus_that_is_away_ends_it_at_the_first_question() -> None:
    address = f"http://127.0.0.1:{free_ports(1)}"
    done = subprocess.run(
        [sys.executable, "-m", "tests.watch.expressions", address],
        cwd=ROOT,
        capture_output=True,
        text=True,
        timeout=left_s(),
    )
    assert (done.returncode, done.stdout) == (2, ""), done.stdout
    (line,) = done.stderr.splitlines()
    assert line.startswith(f"Prometheus at {address} does not answer (")
