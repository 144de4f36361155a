"""Places, queue and deadlines of admission: policy only, no server."""

from __future__ import annotations

import threading
import time

import pytest

from livectr.serving.errors import DeadlineError, OverloadError
from livectr.serving.request.admission import Admission
from tests.waiting import left_s, until


def test_no_queue_refuses_at_once() -> None:
    admission = Admission(max_active=1, max_waiting=0)
    with admission.place(None), pytest.raises(OverloadError), admission.place(None):
        pass
    with admission.place(None):  # the place came back
        pass


def test_a_passed_deadline_is_not_admitted() -> None:
    admission = Admission(max_active=1, max_waiting=1)
    with pytest.raises(DeadlineError), admission.place(time.monotonic() - 1):
        pass


def test_waiting_ends_with_the_deadline() -> None:
    admission = Admission(max_active=1, max_waiting=1)
    with admission.place(None), pytest.raises(DeadlineError), admission.place(time.monotonic() + 0.02):
        pass


def test_a_full_queue_refuses_at_once() -> None:
    admission = Admission(max_active=1, max_waiting=1)
    outcomes: list[str] = []

    def wait() -> None:
        with admission.place(time.monotonic() + left_s()):
            outcomes.append("served")

    with admission.place(None):
        waiter = threading.Thread(target=wait)
        waiter.start()
        until(lambda: admission.waiting != 0)
        with pytest.raises(OverloadError), admission.place(time.monotonic() + left_s()):
            pass
    waiter.join()
    assert outcomes == ["served"]


def test_never_more_than_max_active_and_everybody_gets_a_turn() -> None:
    admission = Admission(max_active=2, max_waiting=30)
    lock = threading.Lock()
    now = peak = served = 0

    def request() -> None:
        nonlocal now, peak, served
        with admission.place(time.monotonic() + left_s()):
            with lock:
                now += 1
                peak = max(peak, now)
            time.sleep(0.002)
            with lock:
                now -= 1
                served += 1

    threads = [threading.Thread(target=request) for _ in range(20)]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join()
    assert (peak, served, admission.active, admission.waiting) == (2, 20, 0, 0)
