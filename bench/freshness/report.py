"""Rows and tables of the freshness run."""

from __future__ import annotations

from bench.freshness.play import GOAL_S, HISTOGRAM, Moment, Run, since
from bench.rows import row
from livectr.local.scrape import quantile

GOAL_RATE = 50_000.0
LINES = 30
"""Most lines of the course over time."""


def report(found: Run, held: float) -> dict[str, object]:
    """Result of the benchmark: a run, and the largest rate that holds."""
    workload = f"{found.rate:,.0f} events/s for {found.seconds:,.0f} s, 1 rank, 1 server"
    first, last = found.lags
    rows = [
        _most("p99, event to servable", workload, "s", found.fresh_s(0.99), GOAL_S),
        _most("p50, event to servable", workload, "s", found.fresh_s(0.5)),
        _most("impressions that were not learned once", workload, "impressions", _absolute(found.lost), 0.0),
        {**_most("lag, last third", workload, "records", last), "met": found.bounded},
        _most("lag, first third", workload, "records", first),
        _least("events written", workload, found.reached),
        _least("records per batch", workload, found.simulated["records_per_batch"], unit="records"),
        _least("largest rate that holds", "runs of their own, without their last events", held, GOAL_RATE),
    ]
    return {
        "rows": rows,
        "settings": {"rate": found.rate, "seconds": found.seconds},
        "tables": [
            {
                "title": "Course",
                "lines": [["s", "written", "learned", "lag", "p50 s", "p99 s"], *_course(found.course)],
                "note": "p50 and p99: of what became servable since the line before",
            }
        ],
    }


def _course(course: list[Moment]) -> list[list[str]]:
    step = -(-len(course) // LINES)
    lines, before = [], course[0]
    for moment in course[step::step]:
        delays = since(before.delays, moment.delays)
        fresh = [quantile(delays, HISTOGRAM, q) for q in (0.5, 0.99)]
        lines.append(
            [
                *(f"{moment.at_s:.0f}", f"{moment.events:,}", f"{moment.learned:,}", f"{moment.lag:,}"),
                *("–" if delay is None else f"{delay:.2f}" for delay in fresh),
            ]
        )
        before = moment
    return lines


def _absolute(lost: int | None) -> int | None:
    return None if lost is None else abs(lost)


def _most(
    figure: str, workload: str, unit: str, ours: float | None, goal: float | None = None
) -> dict[str, object]:
    met = None if goal is None else ours is not None and ours <= goal
    return {"figure": figure, "workload": workload, "unit": unit, "ours": ours, "goal": goal, "met": met}


def _least(
    figure: str, workload: str, ours: float, goal: float | None = None, unit: str = "events/s"
) -> dict[str, object]:
    return {**row(figure, workload, unit, ours), "goal": goal, "met": None if goal is None else ours >= goal}
