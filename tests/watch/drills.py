"""Drills: tests that make a fault in a running demo, and see alerts fire."""

from __future__ import annotations

import ast
import subprocess
import sys
import threading
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from functools import wraps
from pathlib import Path

import psutil
import pytest

from tests.waiting import left_s
from tests.watch.demos import WatchedDemo

SPEED = 30
"""Divides all times of the rules."""
MODULES = ("test_faults.py", "test_trainer_faults.py")
"""Files of drills."""
Drill = Callable[[WatchedDemo], None]


def drill(*alerts: str) -> Callable[[Drill], Drill]:
    """Mark a test that makes a fault: it must have seen these alerts fire when it ends."""

    def mark(test: Drill) -> Drill:
        @wraps(test)
        def run(demo: WatchedDemo) -> None:
            demo.seen.clear()
            test(demo)
            assert set(alerts) <= demo.seen, f"{set(alerts) - demo.seen} were not looked for"

        marked: Drill = pytest.mark.full(pytest.mark.timeout(3600)(run))
        return marked

    return mark


def drilled() -> set[str]:
    """Alerts that some drill sees fire, as the decorators of their tests name them."""
    trees = [ast.parse(Path(__file__).with_name(name).read_text()) for name in MODULES]
    return {
        ast.literal_eval(alert)
        for tree in trees
        for node in ast.walk(tree)
        if isinstance(node, ast.Call) and ast.unparse(node.func) == "drill"
        for alert in node.args
    }


def hurried_rules(folder: Path) -> Path:
    """Write the rules with their times divided by SPEED."""
    words = ["--drill", str(SPEED), "--to", str(folder / "rules")]
    subprocess.run([sys.executable, "-m", "k8s.rules", *words], check=True, timeout=left_s())
    return folder / "rules" / "livectr.yaml"


@contextmanager
def stopped(processes: list[psutil.Process]) -> Iterator[None]:
    """Hold processes with SIGSTOP."""
    for process in processes:
        process.suspend()
    try:
        yield
    finally:
        for process in processes:
            process.resume()


@contextmanager
def slowed(processes: list[psutil.Process], held_s: float, free_s: float) -> Iterator[None]:
    """Hold processes with SIGSTOP again and again, as a CPU limit does.

    Args:
        held_s: seconds of each stop.
        free_s: seconds between two stops.
    """
    ended = threading.Event()

    def hold() -> None:
        while not ended.is_set():
            with stopped(processes):
                ended.wait(held_s)
            ended.wait(free_s)

    thread = threading.Thread(target=hold)
    thread.start()
    try:
        yield
    finally:
        ended.set()
        thread.join()
