"""A topic partition that blocks others is reported by metrics and by a warning with its name."""

import json
import logging
import time
from collections.abc import Callable
from pathlib import Path

import pytest
from prometheus_client import REGISTRY

from livectr.ingest.dead_letters.letters import DeadLetters
from livectr.ingest.join.examples import ExampleSource, ReadOptions
from tests.ingest.test_clocks import HOUR_MS, logs, pipeline


def poll_until(source: ExampleSource, done: Callable[[], bool]) -> None:
    deadline = time.monotonic() + 60
    while not done():
        assert time.monotonic() < deadline
        source.poll(0.05)


def metric(name: str, topic: str, partition: int) -> float:
    return REGISTRY.get_sample_value(name, {"topic": topic, "partition": str(partition)}) or 0.0


def test_a_record_from_the_future_is_held_and_said_and_given_up_when_the_log_goes_on(
    tmp_path: Path, caplog: pytest.LogCaptureFixture
) -> None:
    caplog.set_level(logging.WARNING, "livectr.ingest.join.stalls")
    log = logs(1)
    by_ms = int(time.time() * 1000) - log[0][-1]["ts"]
    for rows in log:
        for row in rows:
            row["ts"] += by_ms
    half = [len(rows) * 2 // 3 for rows in log]
    log[1][half[1] - 1]["ts"] += HOUR_MS  # the last click that is there so far
    files = [tmp_path / topic / "0-a.jsonl" for topic in ("impressions", "clicks")]
    for file, rows, stop in zip(files, log, half, strict=True):
        file.parent.mkdir()
        file.write_text("".join(json.dumps(row) + "\n" for row in rows[:stop]))
    letters = DeadLetters(None)
    source = ExampleSource(
        pipeline(),
        f"file:{tmp_path}",
        ReadOptions(until_end=False, idle_partition_s=0.5),
        rank=0,
        world=1,
        dead_letters=letters,
    )
    poll_until(source, lambda: "topic clicks partition 0 has held others back" in caplog.text)
    assert metric("livectr_unconfirmed_events", "clicks", 0) == 1
    assert metric("livectr_held_back_seconds", "clicks", 0) >= 5
    assert not letters.counts and len(caplog.records) == 1
    for file, rows, stop in zip(files, log, half, strict=True):
        with file.open("a") as more:
            more.writelines(json.dumps(row) + "\n" for row in rows[stop:])
    poll_until(source, lambda: "topic clicks partition 0 goes on" in caplog.text)
    assert letters.counts == {"bad_time": 1}
    assert metric("livectr_unconfirmed_events", "clicks", 0) == 0
    source.close()


def test_a_topic_that_gives_nothing_later_is_named(
    tmp_path: Path, caplog: pytest.LogCaptureFixture, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Clicks of partition 1 stop, but are not idle for long enough to be left out."""
    caplog.set_level(logging.WARNING, "livectr.ingest.join.stalls")
    log = logs(2)
    for number in (0, 1):
        for topic, rows in zip(("impressions", "clicks"), log, strict=True):
            (tmp_path / topic).mkdir(exist_ok=True)
            kept = rows[:40] if (topic, number) == ("clicks", 1) else rows
            lines = "".join(json.dumps(row) + "\n" for row in kept)
            (tmp_path / topic / f"{number}-a.jsonl").write_text(lines)
    source = ExampleSource(
        pipeline(),
        f"file:{tmp_path}",
        ReadOptions(until_end=False, idle_partition_s=3600),
        rank=0,
        world=1,
        dead_letters=DeadLetters(None),
    )
    poll_until(source, lambda: "topic clicks partition 1 has held others back" in caplog.text)
    assert "nothing later comes from it" in caplog.text
    assert metric("livectr_held_back_seconds", "clicks", 1) >= 5
    source.close()
