"""Speed of a count that grows in bursts."""

from __future__ import annotations

import pytest

from livectr.system.speed import Speed


def test_bursts_are_levelled() -> None:
    """Chunks of 8,192 rows every 2.5 s: two looks 1 s apart would say 0 or 8,192."""
    speed, said = Speed(), []
    for step in range(400):
        now_s = step * 0.25
        said.append(speed.observe(now_s, 8192 * (int(now_s / 2.5) + 1)))
    assert said[:4] == [0] * 4 and said[-1] == pytest.approx(8192 / 2.5)
    assert all(0.75 <= one / (8192 / 2.5) <= 1.25 for one in said[40:])


def test_it_falls_to_zero_when_nothing_comes_and_spans_a_stall() -> None:
    speed = Speed()
    for second in range(20):
        speed.observe(second, 100 * second)
    assert speed.observe(19.5, 10_000) == 100, "it changes once a second"
    for second in range(20, 29):
        assert 0 < speed.observe(second, 1_900) < 100
    assert speed.observe(29, 1_900) == 0
    assert speed.observe(129, 3_900) == 20, "nobody looked for 100 s"
