"""The resize run: real processes and few rows, and its rows."""

from __future__ import annotations

import pytest

from bench.resize.play import GOAL_S, Played, Resize, play, report


@pytest.mark.full
def test_a_resize_of_real_processes() -> None:
    found = play(2_000, ranks=(1, 2))
    (resize,) = found.resizes
    assert (resize.before, resize.after) == (1, 2)
    assert 0 < resize.ended_s < resize.published_s <= resize.served_s
    assert 0 < resize.cpu_s < 60
    assert found.rows >= 2_000 and found.answered > 100 and not found.failed


def test_a_slow_resize_and_a_failed_request_miss_the_goal() -> None:
    fast, slow = Resize(1, 3, 1.0, 5.0, 5.5, 6.0), Resize(3, 2, 2.0, GOAL_S, GOAL_S + 1, 6.0)
    rows = report(Played((fast, slow), 10, 1, 1000, {"UNAVAILABLE": 1}))["rows"]
    assert isinstance(rows, list)
    assert [row["met"] for row in rows] == [True, False, False]
    assert [row["ours"] for row in rows] == [5.5, GOAL_S + 1, 1]
