"""Rows behind, their rate and the time left; backfill is no freshness."""

import json
import sys
import time
from pathlib import Path

import pytest

from livectr.trainer.stream.backlog import Backlog
from livectr.trainer.stream.header import Flags
from tests.commands import run

PIPELINE = """
from livectr import Pipeline, Stream, labelled
from livectr.models import LR
columns = {"user": "int64", "ad": "int64", "ts": "int64", "label": "int32"}
views = Stream("views", key="user", time="ts", columns=columns)
log = labelled(views, label="label")
pipeline = Pipeline(log, sparse={"ad": log.ad}, rank=LR())
"""


class Rows:
    """Two ranks' logs and a clock: `rate` rows a second are learned, `arriving` come."""

    def __init__(self, behind: int, rate: int, arriving: int) -> None:
        self.unread = self.held = self.told = 0
        self.now, self.behind, self.rate, self.arriving, self.read = 0.0, behind, rate, arriving, 0

    def pass_s(self, seconds: float) -> None:
        read = min(int(self.rate * seconds), self.behind)
        self.now, self.read = self.now + seconds, self.read + read
        self.behind += int(self.arriving * seconds) - read

    @property
    def delivered(self) -> int:
        return self.read

    def tell(self) -> None:
        self.told += 1

    def flags(self) -> list[Flags]:
        return [Flags(done=self.read, behind=self.behind - 1000), Flags(behind=1000)]


@pytest.mark.parametrize(
    ("rows", "line", "left_s"),
    [
        (Rows(1_000_000, 5_000, 0), "900,000 rows behind, 5,000 rows/s, 3 min left", 180),
        (Rows(1_000_000, 5_000, 1_000), "920,000 rows behind, 5,000 rows/s, 3 min left", 230),
        (Rows(100_000_000, 5_000, 1_000), "99,920,000 rows behind, 5,000 rows/s, 6 h 56 min left", 24_980),
        (Rows(1_000_000, 5_000, 6_000), "1,020,000 rows behind, 5,000 rows/s, growing", None),
        (Rows(101_000, 80, 80), "101,000 rows behind, 80 rows/s, growing", None),
        (Rows(1_000, 1_000, 1_000), "", 1.0),
    ],
)
def test_time_left(rows: Rows, line: str, left_s: float | None) -> None:
    backlog = Backlog(rows, lambda: rows.now)
    assert backlog.line() == ""
    for _ in range(81):
        backlog.observe(rows.flags())
        rows.pass_s(0.25)
    assert backlog.line() == line
    assert backlog.left_s == (None if left_s is None else pytest.approx(left_s))


def test_a_run_without_backlog_says_nothing() -> None:
    rows = Rows(5_000, 5_000, 0)
    backlog = Backlog(rows, lambda: rows.now)
    for _ in range(30):
        backlog.observe(rows.flags())
        rows.pass_s(1.0)
    assert backlog.rows == 0 and backlog.left_s == 0 and backlog.line() == ""


def test_a_rank_asks_its_source_once_a_second() -> None:
    rows = Rows(5_000, 100, 0)
    backlog = Backlog(rows, lambda: rows.now)
    seen = []
    for _ in range(8):
        seen.append(backlog.own.behind)
        rows.pass_s(0.5)
    assert seen == [5_000, 5_000, 4_900, 4_900, 4_800, 4_800, 4_700, 4_700]
    assert rows.told == 4, "gauges of a source that nobody polls"


def test_rows_that_are_read_and_not_learned_are_behind() -> None:
    """While a rank learns what it has read, and reads nothing, its backlog grows less."""
    rows = Rows(100_000, 0, 0)
    backlog = Backlog(rows, lambda: rows.now)
    rows.held, rows.read = 50_000, 60_000
    for second in range(1, 21):
        own = backlog.own
        assert own == (150_000 - 1_000 * (second - 1), 10_000 + 1_000 * (second - 1), 0)
        backlog.observe([Flags(**own._asdict())])
        rows.pass_s(1.0)
        rows.held -= 1_000
    assert backlog.rows == 131_000 and backlog.rate == pytest.approx(1_000)
    assert backlog.left_s == pytest.approx(131)
    assert backlog.line() == "131,000 rows behind, 1,000 rows/s, 2 min left"


def test_backfill_is_counted_apart(tmp_path: Path) -> None:
    """Half of the events lie in the future of the run's start, and are live."""
    (tmp_path / "views").mkdir()
    (tmp_path / "p.py").write_text(PIPELINE)
    now_ms = time.time_ns() // 1_000_000
    times = [now_ms - 100_000 + i for i in range(300)] + [now_ms - 1_000 + 900 * i for i in range(1, 101)]
    rows = [{"user": i % 50, "ad": i % 7, "ts": ts, "label": i % 2} for i, ts in enumerate(times)]
    (tmp_path / "views" / "0.jsonl").write_text("".join(json.dumps(row) + "\n" for row in rows))
    code = (
        "from livectr.cli import main; from prometheus_client import REGISTRY;"
        f"main(['train', '--pipeline', '{tmp_path}/p.py', '--source', 'file:{tmp_path}', '--until-end']);"
        "value = REGISTRY.get_sample_value;"
        "print(value('livectr_examples_total'), value('livectr_backfill_examples_total'))"
    )
    done = run([sys.executable, "-c", code], check=True, capture_output=True, text=True)
    examples, backfill = map(float, done.stdout.split()[-2:])
    assert examples == 400 and 300 <= backfill < 380
