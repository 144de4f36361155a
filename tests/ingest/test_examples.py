"""The example sequence depends on the logs alone: not on chunks, timing, number of ranks or restarts."""

import itertools
import json
from collections.abc import Callable
from pathlib import Path

import numpy as np
import pytest
from hypothesis import HealthCheck, given
from hypothesis import strategies as st
from kafka import KafkaProducer

from livectr.ingest.addresses import kafka_servers
from livectr.ingest.dead_letters.letters import DeadLetters
from livectr.ingest.join.examples import ExampleSource, ReadOptions
from livectr.ingest.join.state import SourceState
from livectr.ingest.language.delays import Delayed
from livectr.kernels.stream.join import FINAL_NEGATIVE
from livectr.local.kafka import create_topics
from livectr.system.errors import CheckpointError, ConfigError
from tests.ingest.joined_logs import Expected, expected, pipeline, random_logs, write_logs
from tests.ingest.mixed_messages import messages
from tests.ingest.ranks_reading import close, drain, open_ranks, take_settled, take_some
from tests.tiers import examples, few

SEEDS = st.integers(0, 10_000)
WITH_FOLDERS = examples(25, tried=8, suppress_health_check=[HealthCheck.function_scoped_fixture])


@pytest.mark.parametrize("delayed", ["wait", "fnw", "es_dfm"])
@WITH_FOLDERS
@given(SEEDS, st.lists(st.integers(0, 100), max_size=4), st.sampled_from([1, 2, 4]))
def test_any_number_of_ranks_gives_the_sequence_of_a_brute_force_join(
    tmp_path_factory: pytest.TempPathFactory, delayed: Delayed, seed: int, cuts: list[int], world: int
) -> None:
    logs = random_logs(seed)
    url = write_logs(tmp_path_factory.mktemp("logs"), logs, cuts=cuts)
    sources = open_ranks(pipeline(delayed=delayed), url, world)
    rows = drain(sources)
    assert rows == expected(logs, delayed=delayed)
    stats = [source.stats for source in sources]
    assert sum(s.pending + s.ready + s.waiting for s in stats) == 0
    events = sum(sum(map(len, part.values())) for part in (logs.impressions, logs.clicks))
    assert sum(sum(s.events.values()) for s in stats) == events
    assert sum(s.late_positives for s in stats) == sum(row.late for row in rows)
    learned = [row for row in rows if row.label < FINAL_NEGATIVE]
    assert sum(s.examples for s in stats) == sum(not row.late for row in learned)
    assert sum(s.clicked for s in stats) == sum(row.label for row in learned)
    close(sources)


@pytest.mark.parametrize("delayed", few(["wait", "fnw", "es_dfm"], "fnw"))
@WITH_FOLDERS
@given(SEEDS, st.lists(st.tuples(st.integers(0, 40), st.sampled_from([1, 2, 3])), max_size=6))
def test_restarts_anywhere_with_any_number_of_ranks_change_nothing(
    tmp_path_factory: pytest.TempPathFactory,
    delayed: Delayed,
    seed: int,
    lives: list[tuple[int, int]],
) -> None:
    """Each run pops a few examples and saves its state as bytes, from which the next run starts."""
    logs = random_logs(seed)
    url = write_logs(tmp_path_factory.mktemp("logs"), logs, cuts=range(0, 100, 7))
    pipe = pipeline(delayed=delayed)
    rows: list[Expected] = []
    state: SourceState | None = None
    for count, world in lives:
        sources = open_ranks(pipe, url, world, state)
        for source in sources:
            source.poll(0.01)
        rows += take_settled(sources, count)
        parts = [source.snapshot().parts() for source in sources]
        close(sources)
        state = SourceState.merge(map(SourceState.from_parts, parts))
    last = open_ranks(pipe, url, 1, state)
    rows += drain(last)
    assert rows == expected(logs, delayed=delayed)
    close(last)


@pytest.mark.parametrize("same_time", [False, True])
def test_holding_back_what_runs_ahead_never_stops_the_rest(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, same_time: bool
) -> None:
    """With limits of a few rows: topics that wait for each other, and a log whose records have one time."""
    monkeypatch.setattr("livectr.ingest.join.back_pressure.WAITING_ROWS", 3)
    monkeypatch.setattr("livectr.ingest.join.back_pressure.READY_ROWS", 3)
    logs = random_logs(7)
    if same_time:
        for row in itertools.chain(*logs.impressions.values(), *logs.clicks.values()):
            row["ts"] = 1_000_000
    sources = open_ranks(pipeline(), write_logs(tmp_path, logs, cuts=range(0, 100, 3)), 2)
    assert drain(sources) == expected(logs)
    close(sources)


def test_restarts_on_a_broker_with_mixed_messages(kafka_url: str, topic_name: Callable[[str], str]) -> None:
    """JSON and Arrow messages, restarts in the middle of them, and a look-up row that was deleted."""
    suffix = topic_name("")
    logs = random_logs(11, partitions=2)
    topics = {f"{topic}{suffix}": 2 for topic in ("impressions", "clicks", "users")}
    create_topics(kafka_url, topics)
    with KafkaProducer(bootstrap_servers=kafka_servers(kafka_url)) as producer:
        for topic, partitions in (("impressions", logs.impressions), ("clicks", logs.clicks)):
            for partition, log in partitions.items():
                for value in messages(log):
                    producer.send(f"{topic}{suffix}", value=value, partition=partition)
        for row in logs.users:
            key = str(row["user_id"]).encode()
            partition = row["user_id"] % 2
            producer.send(f"users{suffix}", key=key, value=json.dumps(row).encode(), partition=partition)
        producer.send(f"users{suffix}", key=b"2", value=None, partition=0)
    remaining = logs._replace(users=[row for row in logs.users if row["user_id"] != 2])

    pipe = pipeline(suffix=suffix)
    rows: list[Expected] = []
    state: SourceState | None = None
    for world in (1, 2, 3, 1, 2):
        sources = open_ranks(pipe, kafka_url, world, state)
        rows += take_some(sources, 17)
        state = SourceState.merge(SourceState.from_parts(source.snapshot().parts()) for source in sources)
        close(sources)
    last = open_ranks(pipe, kafka_url, 1, state)
    rows += drain(last)
    assert rows == expected(remaining)
    assert last[0].tables[f"users{suffix}"].take(np.array([2])).column("age").null_count == 1
    close(last)


def test_topics_that_are_partitioned_differently_are_refused(
    kafka_url: str, topic_name: Callable[[str], str]
) -> None:
    suffix = topic_name("")
    create_topics(kafka_url, {f"impressions{suffix}": 2, f"clicks{suffix}": 3, f"users{suffix}": 1})
    with pytest.raises(ConfigError, match="equally many partitions"):
        open_ranks(pipeline(suffix=suffix), kafka_url, 1)


def test_a_partition_has_one_owner(tmp_path: Path) -> None:
    (source,) = open_ranks(pipeline(), write_logs(tmp_path, random_logs(1)), 1)
    state = source.snapshot()
    assert sorted(state.partitions) == [0, 1, 2]
    again = SourceState({2: state.partitions[2]}, state.tables, state.bounds)
    with pytest.raises(CheckpointError, match=r"\[2\]"):
        SourceState.merge([state, again])
    close([source])


def test_changes_since_a_mark(tmp_path: Path) -> None:
    logs = random_logs(3)
    (source,) = open_ranks(pipeline(), write_logs(tmp_path, logs), 1)
    drain([source])
    long, short = source.history_changes().values()
    clickers = {row["user_id"] for log in logs.clicks.values() for row in log}
    assert len(long.users) > 10 and set(long.users) <= clickers  # some have nothing but duplicates
    assert long.lengths.max() == 3 and short.lengths.max() == 2
    keys, rows = source.tables["users"].changed()
    latest = {row["user_id"]: list(row.values()) for row in logs.users}
    assert dict(zip(keys.tolist(), rows, strict=True)) == latest
    mark = source.mark()
    assert all(len(histories.users) == 0 for histories in source.history_changes(mark).values())
    assert source.tables["users"].changed(mark)[1] == []
    close([source])


def test_finish_releases_what_waits(tmp_path: Path) -> None:
    """In a live log without new records, pending impressions leave when the caller calls `finish`."""
    logs = random_logs(5)
    source = ExampleSource(
        pipeline(),
        write_logs(tmp_path, logs),
        ReadOptions(until_end=False, until_idle_s=0.2, idle_partition_s=0.1),
        rank=0,
        world=1,
        dead_letters=DeadLetters(None),
    )
    rows = []
    while not source.quiet:
        source.poll(0.05)
        rows += take_settled([source])
    assert source.idle and not source.ended and source.stats.pending > 0
    source.finish()
    assert source.ended
    rows += take_settled([source])
    assert sorted(rows, key=lambda row: (row.order, row.partition)) == expected(logs)
    close([source])
