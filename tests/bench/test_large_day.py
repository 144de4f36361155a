"""The large day: real processes at a small size; its log, and what is read from a course of metrics."""

from __future__ import annotations

import json
from pathlib import Path

import pyarrow.parquet as pq
import pytest

from bench.large_day.log import HOUR_MS, IDS, NEW_EARLY, NEW_LATE, START_MS, DayLog
from bench.large_day.play import QUICK
from bench.large_day.watch import Moment, longest_gap, rate, seconds_of
from bench.run import run_benchmark


def moment(at_s: float, **values: float) -> Moment:
    return Moment(at_s, {(name, ()): value for name, value in values.items()}, 0.0)


def test_the_log_continues_where_it_ended(tmp_path: Path) -> None:
    log = DayLog(tmp_path, users=50)
    log.write(400, HOUR_MS, new=NEW_EARLY)
    log.write(300, HOUR_MS // 2, new=NEW_LATE)
    log.write(10, HOUR_MS // 2, new=NEW_LATE)
    shown = pq.read_table(tmp_path / "impressions")
    clicks = pq.read_table(tmp_path / "clicks")
    times = shown["ts"].to_numpy()
    assert (times[1:] >= times[:-1]).all() and times[0] >= START_MS and times[-1] < log.now_ms
    assert shown["request_id"].to_pylist() == list(range(710)) and log.now_ms == START_MS + 2 * HOUR_MS
    assert set(shown["seen"].combine_chunks().value_lengths().to_pylist()) == {IDS}
    new, known = [], set[int]()
    for ids in shown["seen"].to_pylist():
        new.append(len(set(ids) - known))
        known.update(ids)
    assert all(NEW_EARLY <= count <= IDS for count in new[:400])
    assert max(new[700:]) == NEW_LATE
    assert 10 < len(clicks) < 200 and set(clicks["request_id"].to_pylist()) <= set(range(710))
    assert clicks["ts"].to_numpy().max() < log.now_ms
    assert not list(tmp_path.rglob(".*.parquet"))


def test_what_a_course_says() -> None:
    course = [
        moment(0.0, livectr_examples_total=10, w_sum=1.0, w_count=4),
        moment(0.2, livectr_examples_total=20, w_sum=1.5, w_count=5),
        moment(0.4, livectr_examples_total=20, w_sum=1.5, w_count=5),
        moment(1.2, livectr_examples_total=60, w_sum=1.7, w_count=7),
        moment(9.0, livectr_examples_total=60, w_sum=1.7, w_count=7),  # the log has no more
    ]
    assert seconds_of(course, "w") == pytest.approx([0.5, 0.1, 0.1])
    assert longest_gap(course) == pytest.approx(1.0)
    assert rate(course) == pytest.approx(50 / 1.2)


@pytest.mark.full
def test_a_small_day(tmp_path: Path) -> None:
    target = tmp_path / "large-day.json"
    run_benchmark("large-day", json_file=target, quick=True)
    rows = {row["figure"]: row for row in json.loads(target.read_text())["rows"]}
    idle = ("training waits", "a checkpoint, from")  # a small day's afternoon may have no checkpoint
    assert [name for name, row in rows.items() if row["ours"] <= 0 and not name.startswith(idle)] == []
    first = rows["rows of the first version after the restart"]
    assert first["peer"] >= 2 * QUICK.rows and first["ours"] < first["peer"]
