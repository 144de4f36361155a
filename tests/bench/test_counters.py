"""The parts of bench.counters that need no peer."""

from __future__ import annotations

import numpy as np

from bench.counters import speed
from bench.counters.log import HOURS, START_MS, drifting
from bench.counters.worth import measured


def test_click_rates_drift() -> None:
    columns, logit = drifting(1, 20_000)
    passed_h = (columns["ts"] - START_MS) / 3_600_000
    rates = {}
    for name, of in (
        ("first", passed_h < 1),
        ("next", (passed_h > 1) & (passed_h < 2)),
        ("last", passed_h > HOURS - 1),
    ):
        rates[name] = np.array([logit[of & (columns["ad"] == ad)].mean() for ad in range(8)])
    apart = {name: float(np.abs(rates[name] - rates["first"]).mean()) for name in ("next", "last")}
    assert apart["next"] < 0.7 < apart["last"] + 0.2
    again, _ = drifting(1, 20_000)
    assert all((columns[name] == again[name]).all() for name in columns)


def test_cost_has_a_row_for_each_way_to_draw_keys() -> None:
    found = speed.rows(quick=True)
    assert [line["unit"] for line in found] == ["events/s"] * 5 + ["bytes"]
    assert all(float(str(line["ours"])) > 0 for line in found)


def test_both_models_are_measured_on_the_last_half() -> None:
    alone, counted, known = measured(1, 2_000)
    assert 0.4 < alone < known and 0.4 < counted < known
