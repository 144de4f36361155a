"""Look-ups as of the event time: an impression sees the row that was valid then, against a scan of all rows.

However chunks arrive, whatever is read first, on any number of ranks, and after restarts with a table that
was compacted meanwhile.
"""

import json
import threading
import time
from collections.abc import Callable
from dataclasses import replace
from itertools import groupby
from pathlib import Path
from typing import Any

import numpy as np
import pytest
from hypothesis import HealthCheck, given
from hypothesis import strategies as st
from kafka import KafkaProducer

from livectr.ingest.addresses import kafka_servers
from livectr.ingest.chunks import Chunk
from livectr.ingest.dead_letters.letters import DeadLetters
from livectr.ingest.join.examples import ExampleSource, ReadOptions
from livectr.ingest.join.state import SourceState
from livectr.ingest.language.delays import Delayed
from livectr.ingest.language.event_times import EventTime
from livectr.ingest.language.streams import Stream, labelled
from livectr.ingest.language.tables import Table
from livectr.ingest.sources.background import BackgroundSource
from livectr.ingest.sources.kafka import KafkaSource
from livectr.kernels.stream.clock import LAST
from livectr.local.kafka import create_topics
from livectr.system.errors import ConfigError
from tests.ingest.joined_logs import Expected, Log, Logs, expected, pipeline, random_logs, rows_of, write_logs
from tests.ingest.ranks_reading import close as close_all
from tests.ingest.ranks_reading import drain, open_ranks
from tests.tiers import examples, few
from tests.waiting import until

START_MS, STEP_MS = 1_000_000, 20_000
"""First event time, and the time between two events, of `random_logs`."""


def changing_logs(seed: int, *, partitions: int = 3, rows: int = 60, versions: int = 60) -> Logs:
    """Random logs with a table that changes before, while and after the events come, also out of order."""
    rng = np.random.default_rng(seed)
    times = START_MS + rng.integers(-8, 48, versions) * (STEP_MS // 2)
    if seed % 2:
        times.sort()
    users: Log = [
        {
            "user_id": int(rng.integers(0, 6 * partitions)),
            "age": int(rng.integers(1, 99)),
            "name": f"n{number}",
            "changed": int(changed),
        }
        for number, changed in enumerate(times)
    ]
    return random_logs(seed, partitions=partitions, rows=rows)._replace(users=users)


def take_passed(sources: list[ExampleSource], limit: int = LAST) -> list[Expected]:
    """Pop the next examples of all ranks, and tell each rank how far the sequence is."""
    frontier = min(source.frontier for source in sources)
    offers: list[tuple[int, int, int]] = []
    for rank, source in enumerate(sources):
        order, partition = source.orders(min(limit, 1 << 20))
        offers += [
            (o, p, rank) for o, p in zip(order.tolist(), partition.tolist(), strict=True) if o < frontier
        ]
    taken = sorted(offers)[:limit]
    if not taken:
        return []
    ranks = [rank for *_, rank in taken]
    rows = [rows_of(source.pop(ranks.count(rank), taken[-1][0])) for rank, source in enumerate(sources)]
    return sorted((row for part in rows for row in part), key=lambda row: (row.order, row.partition))


@pytest.mark.parametrize("delayed", few(["wait", "fnw", "es_dfm"], "es_dfm"))
@examples(15, tried=5, suppress_health_check=[HealthCheck.function_scoped_fixture])
@given(
    st.integers(0, 10_000),
    st.lists(st.tuples(st.integers(0, 40), st.sampled_from([1, 2, 4])), max_size=4),
    st.sampled_from([1, 2, 4]),
    st.sampled_from([None, 50_000, 300_000]),
    st.sampled_from([None, 150, 500, 1000]),
)
def test_an_impression_sees_the_row_of_its_time(
    tmp_path_factory: pytest.TempPathFactory,
    delayed: Delayed,
    seed: int,
    lives: list[tuple[int, int]],
    world: int,
    max_age_ms: int | None,
    max_bytes: int | None,
) -> None:
    """Each life pops a few examples and saves its state; afterwards the table is compacted."""
    logs = changing_logs(seed)
    folder = tmp_path_factory.mktemp("logs")
    url = write_logs(folder, logs, cuts=range(0, 100, 7))
    max_age = f"{max_age_ms}ms" if max_age_ms else None
    pipe = pipeline(delayed=delayed, versioned=True, max_age=max_age, max_bytes=max_bytes)
    rows: list[Expected] = []
    state: SourceState | None = None
    for count, ranks in lives:
        sources = open_ranks(pipe, url, ranks, state)
        for source in sources:
            source.poll(0.01)
        rows += take_passed(sources, count)
        parts = [source.snapshot().parts() for source in sources]
        close_all(sources)
        state = SourceState.merge(map(SourceState.from_parts, parts))
        newest = {row["user_id"]: row for row in logs.users}
        write_logs(folder, logs._replace(users=list(newest.values())), cuts=range(0, 100, 7))
    sources = open_ranks(pipe, url, world, state)
    while not all(source.ended for source in sources):
        for source in sources:
            source.poll(0.01)
        rows += take_passed(sources, 50)
    rows += take_passed(sources)
    close_all(sources)
    assert rows == expected(logs, delayed=delayed, max_age_ms=max_age_ms, max_bytes=max_bytes)


def test_latest_rows_are_an_option(tmp_path: Path) -> None:
    logs = changing_logs(8)
    url = write_logs(tmp_path, logs)
    pipe = pipeline(versioned=True)
    lookup = replace(pipe.log.lookups[0], as_of="latest")
    latest = replace(pipe, log=replace(pipe.log, lookups=(lookup,)))
    assert pipe.fingerprint != latest.fingerprint
    rows = {}
    for name, each in (("event_time", pipe), ("latest", latest)):
        sources = open_ranks(each, url, 1)
        rows[name] = drain(sources)
        close_all(sources)
    timeless = [{name: value for name, value in row.items() if name != "changed"} for row in logs.users]
    assert rows["event_time"] == expected(logs)
    assert rows["latest"] == expected(logs._replace(users=timeless))
    assert rows["latest"] != rows["event_time"]


def test_rows_that_no_example_can_see_are_dropped(tmp_path: Path) -> None:
    """Memory and checkpoint hold the rows of the horizon: half a day of changes leaves those of minutes."""
    logs = random_logs(4, rows=200)
    times = np.linspace(-5e7, 1.9e6, 60_000).astype(int)
    users = [
        {"user_id": n % 18, "age": n % 90, "name": f"n{n}", "changed": int(t)} for n, t in enumerate(times)
    ]
    logs = logs._replace(users=users)
    sources = open_ranks(pipeline(versioned=True), write_logs(tmp_path, logs), 1)
    (source,) = sources
    (table,) = source.tables.values()
    assert table.versions is not None
    before = table.versions.older, table.bytes
    assert before[0] > 59_000
    rows = drain(sources)
    assert rows == expected(logs)
    assert table.versions.older < before[0] / 2 and table.bytes < before[1] / 1.5
    assert len(source.snapshot().tables["users"]) <= 3000
    close_all(sources)


def live(pipe: Any, url: str, world: int) -> list[ExampleSource]:
    """Ranks that follow the logs."""
    options = ReadOptions(until_end=False, idle_partition_s=1800.0)
    return [
        ExampleSource(pipe, url, options, rank=rank, world=world, dead_letters=DeadLetters(None))
        for rank in range(world)
    ]


@pytest.mark.parametrize("world", few([1, 2], 2))
def test_a_live_table_that_is_read_late_changes_nothing(
    world: int, kafka_url: str, topic_name: Callable[[str], str], monkeypatch: pytest.MonkeyPatch
) -> None:
    """Rows and deletes of a table are written while impressions come; reading the table lags behind them."""
    suffix = topic_name("")
    logs = changing_logs(21, partitions=2, rows=500, versions=80)
    users = sorted(logs.users, key=lambda row: row["changed"])
    for number, row in enumerate(users):
        if number % 9 == 8:
            row.update(age=None, name=None)
    logs = logs._replace(users=users)
    create_topics(kafka_url, {f"{topic}{suffix}": 2 for topic in ("impressions", "clicks", "users")})
    put = BackgroundSource._put

    def late(self: BackgroundSource, chunk: Chunk, *rest: Any) -> None:
        if chunk.topic.startswith("users"):
            time.sleep(0.1)
        put(self, chunk, *rest)

    monkeypatch.setattr(BackgroundSource, "_put", late)
    written: list[tuple[int, str, int, dict[str, Any]]] = [
        (row["changed"], "users", row["user_id"] % 2, row) for row in users
    ]
    for topic, partitions in (("impressions", logs.impressions), ("clicks", logs.clicks)):
        for partition, log in partitions.items():
            mark = 0
            for row in log:
                mark = max(mark, row["ts"])
                written.append((mark, topic, partition, row))
    written.sort(key=lambda entry: entry[0])

    def write() -> None:
        with KafkaProducer(bootstrap_servers=kafka_servers(kafka_url)) as producer:
            for _, entries in groupby(written, key=lambda entry: (entry[0], entry[1])):
                for at, topic, partition, row in entries:
                    deletes = topic == "users" and row["age"] is None
                    producer.send(
                        f"{topic}{suffix}",
                        key=str(row["user_id"]).encode(),
                        value=None if deletes else json.dumps(row).encode(),
                        partition=partition,
                        timestamp_ms=at,
                    )
                producer.flush()

    pipe = pipeline(suffix=suffix, versioned=True)
    sources = live(pipe, kafka_url, world)
    writer = threading.Thread(target=write)
    writer.start()
    rows: list[Expected] = []
    count = sum(len(log) for part in (logs.impressions, logs.clicks) for log in part.values())

    def events() -> int:
        return sum(sum(source.stats.events.values()) for source in sources)

    def poll() -> None:
        for source in sources:
            source.poll(0.01)

    def read() -> bool:
        """All events were read, and 40 examples left before the end."""
        rows.extend(take_passed(sources))
        return not writer.is_alive() and events() >= count and len(rows) >= 40

    until(read, turn=poll, why=lambda: (events(), len(rows)))
    for source in sources:
        source.finish()
    until(lambda: all(source.ended for source in sources), turn=poll)
    rows += take_passed(sources)
    writer.join()
    close_all(sources)
    assert rows == expected(logs)


def test_a_quiet_table_holds_nothing_back(kafka_url: str, topic_name: Callable[[str], str]) -> None:
    suffix = topic_name("")
    logs = changing_logs(22, partitions=1, rows=500, versions=5)
    create_topics(kafka_url, {f"{topic}{suffix}": 1 for topic in ("impressions", "clicks", "users")})
    with KafkaProducer(bootstrap_servers=kafka_servers(kafka_url)) as producer:
        for topic, log in (
            ("users", logs.users),
            ("impressions", logs.impressions[0]),
            ("clicks", logs.clicks[0]),
        ):
            for row in log:
                producer.send(f"{topic}{suffix}", json.dumps(row).encode(), key=b"%d" % row["user_id"])
    sources = live(pipeline(suffix=suffix, versioned=True), kafka_url, 1)
    until(lambda: take_passed(sources, 20), turn=lambda: sources[0].poll(0.05))
    close_all(sources)


def test_tables_that_cannot_be_read_hold_examples_and_are_named(
    kafka_url: str,
    topic_name: Callable[[str], str],
    monkeypatch: pytest.MonkeyPatch,
    caplog: pytest.LogCaptureFixture,
) -> None:
    monkeypatch.setattr("livectr.ingest.join.lookups.WARN_AFTER_S", 0.5)
    suffix = topic_name("")
    logs = changing_logs(23, partitions=1, rows=500, versions=5)
    create_topics(kafka_url, {f"{topic}{suffix}": 1 for topic in ("impressions", "clicks", "users")})
    with KafkaProducer(bootstrap_servers=kafka_servers(kafka_url)) as producer:
        for topic, log in (("impressions", logs.impressions[0]), ("clicks", logs.clicks[0])):
            for row in log:
                producer.send(f"{topic}{suffix}", json.dumps(row).encode(), key=b"%d" % row["user_id"])
    sources = live(pipeline(suffix=suffix, versioned=True), kafka_url, 1)
    monkeypatch.setattr(KafkaSource, "_tell_ends", lambda self, left: None)
    until(lambda: "for look-up tables to be read" in caplog.text, turn=lambda: sources[0].poll(0.05))
    assert f"users{suffix}" in caplog.text
    reached = sources[0].frontier
    for _ in range(20):
        sources[0].poll(0.02)
    assert sources[0].frontier == reached < LAST
    close_all(sources)


COLUMNS = {"user_id": "int64", "clicked": "int32", "ts": "int64"}


def test_a_mistake_says_what_to_change() -> None:
    timed = Stream("shows", key="user_id", time="ts", columns=COLUMNS)
    untimed = Stream("shows", key="user_id", columns=COLUMNS)
    plain = Table("users", key="user_id", columns={"user_id": "int64", "at": "int64"})
    versioned = Table("users", key="user_id", columns={"user_id": "int64", "at": "int64"}, time="at")
    with pytest.raises(ConfigError, match='"event_time" or "latest"'):
        labelled(timed, label="clicked").lookup(versioned, as_of="now")  # type: ignore[arg-type]
    with pytest.raises(ConfigError, match="its rows have no time"):
        labelled(timed, label="clicked").lookup(plain, as_of="event_time")
    with pytest.raises(ConfigError, match="the events have no time"):
        labelled(untimed, label="clicked").lookup(versioned, as_of="event_time")
    with pytest.raises(ConfigError, match="no max_ahead or max_disorder"):
        Table(
            "users", key="user_id", columns={"user_id": "int64", "at": "int64"},
            time=EventTime("at", max_disorder="5s"),
        )  # fmt: skip
    default = labelled(timed, label="clicked")
    assert default.lookup(versioned) == default.lookup(versioned, as_of="event_time")
    assert "as_of" not in repr(default.lookup(versioned))
    assert repr(default.lookup(plain)) == repr(default.lookup(plain, as_of="latest"))
