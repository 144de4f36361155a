"""Rows of look-up tables that end, by their age and for lack of room: in memory, look-ups and settings."""

from pathlib import Path

import numpy as np
import pytest

from livectr.ingest import metrics
from livectr.ingest.language.streams import Stream, labelled
from livectr.ingest.language.tables import Table
from livectr.kernels.stream.row_budget import KEY_BYTES
from livectr.system.errors import ConfigError
from tests.ingest.joined_logs import expected, pipeline, random_logs, write_logs
from tests.ingest.ranks_reading import close as close_all
from tests.ingest.ranks_reading import drain, open_ranks


def test_rows_that_are_too_old_leave_the_table(tmp_path: Path) -> None:
    """Half a day of users who come once leaves those of minutes, and versions name the expired users."""
    logs = random_logs(4, rows=200)
    times = np.linspace(-5e7, 1.9e6, 60_000).astype(int)
    users = [{"user_id": n, "age": n % 90, "name": f"n{n}", "changed": int(t)} for n, t in enumerate(times)]
    logs = logs._replace(users=users)
    pipe = pipeline(versioned=True, max_age="300s")
    (source,) = sources = open_ranks(pipe, write_logs(tmp_path, logs), 1)
    (table,) = source.tables.values()
    table.track_left()
    before = len(table), table.bytes
    assert before[0] == 60_000
    since = source.mark()
    rows = drain(sources)
    assert rows == expected(logs, max_age_ms=300_000)
    assert len(table) < 3000 and len(source.snapshot().tables["users"]) < 3000
    keys, values = table.changed(since)
    assert len(keys) > 57_000 and values == [None] * len(keys)
    table.forget_left(source.mark())
    assert table.bytes < before[1] / 10 and len(table.changed(since)[0]) == 0
    assert (table.latest.rows(np.arange(60_000)) >= 0).sum() == len(table)
    close_all(sources)


def test_a_max_age_needs_times() -> None:
    columns = {"user_id": "int64", "changed": "int64"}
    with pytest.raises(ConfigError, match=r'max_age counts from a row\'s time; .* time="changed_ms"'):
        Table("users", key="user_id", columns=columns, max_age="1d")
    with pytest.raises(ConfigError, match="users: max_age: 'long' is not a duration"):
        Table("users", key="user_id", columns=columns, time="changed", max_age="long")
    table = Table("users", key="user_id", columns=columns, time="changed", max_age="1d")
    assert "max_age_ms=86400000" in repr(table) and "max_age" not in repr(replaced(table))
    shown = Stream("shown", key="user_id", columns={"user_id": "int64", "click": "int32"})
    with pytest.raises(
        ConfigError, match=r"its max_age needs .*; name the column of their time in their Stream"
    ):
        labelled(shown, label="click").lookup(table)
    timed = Stream(
        "shown", key="user_id", time="ts", columns={"user_id": "int64", "click": "int32", "ts": "int64"}
    )
    with pytest.raises(ConfigError, match=r"its max_age needs .*; leave out as_of"):
        labelled(timed, label="click").lookup(table, as_of="latest")


def test_rows_leave_for_lack_of_room(tmp_path: Path, caplog: pytest.LogCaptureFixture) -> None:
    """Users who come for a while, and some who come back, in a table that has room for 500 of a thousand."""
    logs = random_logs(4, rows=200)
    times = np.linspace(-5e6, 1.9e6, 20_000).astype(int)
    users = [
        {"user_id": n // 20 if n % 1000 else n // 1000, "age": 7, "name": f"n{n:05d}", "changed": int(t)}
        for n, t in enumerate(times)
    ]
    room = 500 * (KEY_BYTES + 3 * 8 + 6)
    logs = logs._replace(users=users)
    pipe = pipeline(versioned=True, max_bytes=room)
    (source,) = sources = open_ranks(pipe, write_logs(tmp_path, logs), 1)
    (table,) = source.tables.values()
    assert table.versions is not None and len(table) == 1000
    counter = metrics.lookup_evicted.labels("users")._value
    before = counter.get()
    table.track_left()
    since = source.mark()
    rows = drain(sources)
    assert rows == expected(logs, max_bytes=room) != expected(logs)
    assert 460 <= len(table) < 800 and len(source.snapshot().tables["users"]) < 6000
    keys, values = table.changed(since)
    assert len(keys) == values.count(None) == 1000 - len(table)
    assert counter.get() - before == table.versions.evicted >= 200
    assert caplog.text.count("look-up table users is full") == 1
    close_all(sources)


def test_a_budget_needs_times_and_reads_whole_rows() -> None:
    columns = {"user_id": "int64", "changed": "int64", "name": "string"}
    with pytest.raises(ConfigError, match=r'max_bytes needs the rows\' times; .* time="changed_ms"'):
        Table("users", key="user_id", columns=columns, max_bytes="1GiB")
    with pytest.raises(ConfigError, match="users: max_bytes: 'much' is no amount of memory"):
        Table("users", key="user_id", columns=columns, time="changed", max_bytes="much")
    with pytest.raises(ConfigError, match="users: max_bytes is an amount above 0"):
        Table("users", key="user_id", columns=columns, time="changed", max_bytes=0)
    table = Table("users", key="user_id", columns=columns, time="changed", max_bytes="1GiB")
    assert "max_bytes=1073741824" in repr(table) and "max_bytes" not in repr(replaced(table))
    assert repr(table.narrow([])) == repr(table) and "name" not in repr(replaced(table).narrow([]))
    timed = Stream(
        "shown", key="user_id", time="ts", columns={"user_id": "int64", "click": "int32", "ts": "int64"}
    )
    with pytest.raises(ConfigError, match=r"its max_bytes needs .*; leave out as_of"):
        labelled(timed, label="click").lookup(table, as_of="latest")


def replaced(table: Table) -> Table:
    """The same table whose rows stay."""
    return Table(table.topic, key=table.key, columns=table.columns, time=table.time)
