"""Waits: their end, what a failed wait says, and which processes have ended."""

from __future__ import annotations

import itertools
import subprocess
import sys
from collections.abc import Iterator

import psutil
import pytest

from tests.waiting import alive, left_s, limited, until


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


def test_a_wait_returns_what_it_waited_for() -> None:
    numbers = itertools.count()
    assert until(lambda: next(numbers)) == 1
    assert until(lambda: next(numbers), equals=4) == 4
    assert until(iter(["", "text"]).__next__) == "text"


def test_a_wait_in_vain_says_what_it_saw_last() -> None:
    numbers = itertools.count()
    with pytest.raises(AssertionError, match=r"waited 0 s in vain for the end; last seen: \d+\na log"):
        until(lambda: next(numbers), "the end", equals=-1, patience_s=0.05, why=lambda: "a log")
    with limited(0.05), pytest.raises(AssertionError, match=r"until\(lambda: \[\]\)\; last seen: \[\]"):
        until(lambda: [])


def test_errors_that_mean_not_yet_are_said_and_others_are_raised() -> None:
    answers: Iterator[Exception | int] = iter([ConnectionError("away"), ConnectionError("away"), 7])

    def answer() -> int:
        if isinstance(found := next(answers), Exception):
            raise found
        return found

    assert until(answer, despite=ConnectionError) == 7
    with pytest.raises(ZeroDivisionError):
        until(lambda: 1 / 0, despite=ConnectionError)
    with pytest.raises(AssertionError, match=r"last seen: ZeroDivisionError\("):
        until(lambda: 1 / 0, despite=ZeroDivisionError, patience_s=0.05)


def test_a_process_that_ends_fails_a_wait() -> None:
    process = subprocess.Popen([sys.executable, "-c", "raise SystemExit(3)"])
    with pytest.raises(AssertionError, match="the process ended with 3 before its word; last seen: None"):
        until(lambda: None, "its word", process=process)
    assert until(lambda: process.poll(), process=process) == 3, "what comes with the end counts"


def test_no_wait_is_longer_than_the_test() -> None:
    with limited(100):
        assert 90 < left_s() <= 97
    with limited(0.01):
        assert left_s() == 1.0, "a time-out of 0 would mean none"
