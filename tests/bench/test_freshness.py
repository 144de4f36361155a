"""The freshness run: real processes at a small rate, and the judgement of rates."""

from __future__ import annotations

from dataclasses import replace

import pytest

from bench.freshness.play import GOAL_S, HISTOGRAM, Moment, Run, play
from bench.freshness.report import report
from bench.freshness.search import NEAR, largest
from bench.run import run_benchmark
from livectr.local.scrape import Samples
from livectr.system.errors import ConfigError


def delays(quick: float, slow: float) -> Samples:
    """Events within a second, and slow ones within ten."""
    bounds = {"1.0": quick, "10.0": quick + slow, "+Inf": quick + slow}
    return {(f"{HISTOGRAM}_bucket", (("le", bound),)): count for bound, count in bounds.items()}


def run_of(lags: list[int]) -> Run:
    course = [Moment(float(s), 100 * s, 90 * s, lag, delays(100.0 * s, 50.0)) for s, lag in enumerate(lags)]
    counts = {"impressions": 900, "records_per_batch": 10.0}
    return Run(100.0, len(lags) - 1.0, course, counts, {"examples_trained": 900})


@pytest.mark.full
def test_a_run_with_real_processes_loses_nothing() -> None:
    found = play(1500.0, 6.0)
    assert found.lost == 0 and found.trained is not None
    assert found.trained["dead_letters"] == found.simulated["broken"]
    assert found.simulated["records_per_batch"] > 10
    p50, p99 = found.fresh_s(0.5), found.fresh_s(0.99)
    assert p50 is not None and p99 is not None and 0 < p50 <= p99
    rows = report(found, 1500.0)["rows"]
    assert isinstance(rows, list) and all(row["ours"] is not None for row in rows)


def test_a_rate_holds_when_fresh_bounded_and_complete() -> None:
    good = run_of([0, 5, 9, 4, 8, 6, 7, 9, 5])
    p99 = good.fresh_s(0.99)
    assert good.holds and p99 is not None and p99 <= 1 <= GOAL_S  # the slow ones came before it settled
    assert good.reached == 100
    assert not replace(good, trained={"examples_trained": 899}).holds
    assert not replace(good, trained=None).holds
    assert not run_of([0, 100, 200, 300, 400, 500, 600, 700, 800]).holds
    slow = replace(good.course[-1], delays=delays(800.0, 500.0))
    assert not replace(good, course=[*good.course[:-1], slow]).holds


@pytest.mark.parametrize(("start", "limit"), [(50_000.0, 8700.0), (2000.0, 8700.0), (8000.0, 8700.0)])
def test_the_search_comes_near(start: float, limit: float) -> None:
    tried: list[float] = []

    def attempt(rate: float, seconds: float) -> bool:
        tried.append(rate)
        return rate <= limit

    found = largest(start, start <= limit, seconds=1.0, steps=10, attempt=attempt)
    assert limit / NEAR <= found <= limit and len(tried) <= 7


def test_no_rate_holds() -> None:
    assert largest(2000.0, False, seconds=1.0, steps=10, attempt=lambda rate, seconds: False) == 0


def test_other_benchmarks_have_no_rate() -> None:
    with pytest.raises(ConfigError, match="bench kafka takes no --rate"):
        run_benchmark("kafka", json_file=None, quick=True, options={"rate": 5.0})
