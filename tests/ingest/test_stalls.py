"""Lags of event time, and a topic partition that blocks others: metrics, and a warning with its name."""

import json
import logging
import time
from collections.abc import Callable
from pathlib import Path

import pytest
from prometheus_client import REGISTRY

from livectr.ingest.chunks import Position
from livectr.ingest.dead_letters.letters import DeadLetters
from livectr.ingest.join.decisions import Decision
from livectr.ingest.join.examples import ExampleSource, ReadOptions
from livectr.ingest.join.stalls import StallWatch
from tests.ingest.quiet_hour import HOUR_MS, logs, pipeline
from tests.metrics_page import metric_value
from tests.waiting import until


def poll_until(source: ExampleSource, done: Callable[[], bool]) -> None:
    until(done, turn=lambda: source.poll(0.05))


def metric(name: str, topic: str, partition: int) -> float:
    return metric_value(name, topic=topic, partition=str(partition))


def test_a_record_from_the_future_is_held_and_said_and_given_up_when_the_log_continues(
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
    poll_until(source, lambda: "topic clicks partition 0 continues" in caplog.text)
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


def test_a_replay_whose_log_is_too_short_says_what_it_waits_for(
    tmp_path: Path, caplog: pytest.LogCaptureFixture
) -> None:
    """A live log may grow, so it waits; who follows an order log of other logs would else wait for ever."""
    caplog.set_level(logging.WARNING, "livectr.ingest.join.short_logs")
    log = logs(1)
    files = [tmp_path / topic / "0-a.jsonl" for topic in ("impressions", "clicks")]
    for file, rows in zip(files, log, strict=True):
        file.parent.mkdir()
        file.write_text("".join(json.dumps(row) + "\n" for row in rows))
    there = [len(rows) for rows in log]
    beyond = Decision((Position(there[0], 0), Position(there[1] + 5, 0)), (False, True), 0, False)
    source = ExampleSource(
        pipeline(),
        f"file:{tmp_path}",
        ReadOptions(until_end=False),
        rank=0,
        world=1,
        dead_letters=DeadLetters(None),
        follows={0: [beyond]},
    )
    poll_until(source, lambda: bool(caplog.records))
    assert caplog.messages == [
        f"the replay waits for topic clicks partition 0: it ends at offset {there[1]}, and the order "
        f"log was made with records up to offset {there[1] + 5}"
    ]
    with files[1].open("a") as more:
        more.writelines(json.dumps(log[1][-1]) + "\n" for _ in range(5))
    poll_until(source, lambda: len(caplog.records) > 1)
    assert caplog.messages[1:] == ["the replay continues in partition 0"]

    ready = source.stats.ready
    poll_until(source, lambda: source.first_of({0: ready + 1}) is None and len(caplog.records) > 2)
    assert caplog.messages[2:] == [
        f"the replay waits for partition 0: {ready} of its examples are ready, and its next batch had "
        f"{ready + 1}"
    ]
    source.close()


def test_lags_are_those_of_the_event_times_that_were_read(tmp_path: Path) -> None:
    log = logs(3)
    old_ms = 100_000  # age of the last impression
    by_ms = int(time.time() * 1000) - log[0][-1]["ts"] - old_ms
    for topic, rows in zip(("impressions", "clicks"), log, strict=True):
        (tmp_path / topic).mkdir()
        lines = "".join(json.dumps({**row, "ts": row["ts"] + by_ms}) + "\n" for row in rows)
        (tmp_path / topic / "0-a.jsonl").write_text(lines)
    source = ExampleSource(
        pipeline(),
        f"file:{tmp_path}",
        ReadOptions(until_end=False, idle_partition_s=3600),
        rank=0,
        world=1,
        dead_letters=DeadLetters(None),
    )
    events = ("impressions", "clicks")
    poll_until(source, lambda: [source.stats.events[topic] for topic in events] == list(map(len, log)))
    poll_until(source, lambda: source.stats.ready > 0)
    partitions = source._partitions
    watch = StallWatch(source.pipeline.streams, 0.0)
    for name in ("livectr_event_lag_seconds", "livectr_held_back_seconds", "livectr_unconfirmed_events"):
        for topic in events:
            assert REGISTRY.get_sample_value(name, {"topic": topic, "partition": "0"}) is not None

    watch.check(partitions, {("impressions", 0)}, {0: [False, False]}, 1.0)
    newest_ms = log[0][-1]["ts"] + by_ms
    lag_s = metric("livectr_event_lag_seconds", "impressions", 0)
    assert old_ms / 1000 <= lag_s <= time.time() - newest_ms / 1000
    assert metric("livectr_event_lag_seconds", "clicks", 0) == 0, "all clicks are read"
    delay_s = REGISTRY.get_sample_value("livectr_watermark_delay_seconds")
    assert delay_s == lag_s, "the clicks are newer, so the impressions hold the watermark"
    assert REGISTRY.get_sample_value("livectr_ready_examples") == source.stats.ready

    watch.check(partitions, set(), {0: [False, False]}, 2.0)
    assert metric("livectr_event_lag_seconds", "impressions", 0) == 0
    source.close()


def test_gauges_move_while_nothing_is_read(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """A trainer that has enough examples does not poll; its lag falls as it takes them."""
    monkeypatch.setattr("livectr.ingest.join.examples.TELL_EVERY_S", 0.0)
    monkeypatch.setattr("livectr.ingest.sources.background._TELL_EVERY_S", 0.0)
    log = logs(3)
    for topic, rows in zip(("impressions", "clicks"), log, strict=True):
        (tmp_path / topic).mkdir()
        (tmp_path / topic / "0-a.jsonl").write_text("".join(json.dumps(row) + "\n" for row in rows))
    options = ReadOptions(until_end=False, idle_partition_s=3600)
    source = ExampleSource(
        pipeline(), f"file:{tmp_path}", options, rank=0, world=1, dead_letters=DeadLetters(None)
    )
    poll_until(source, lambda: source.stats.ready > 10 and not source.behind)

    def lag() -> float:
        source.tell()
        lags = [metric("livectr_consumer_lag_records", topic, 0) for topic in ("impressions", "clicks")]
        assert sum(lags) == source.behind + source.held
        return sum(lags)

    ready, before = source.stats.ready, lag()
    assert source.held >= ready and source.delivered == sum(map(len, log))
    source.pop(7)
    assert lag() == before - 7
    assert metric_value("livectr_ready_examples") == ready - 7
    source.close()
