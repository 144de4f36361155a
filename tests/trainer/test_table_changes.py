"""Rows of look-up tables that are saved as changes: any chain of files restores what the table holds."""

from __future__ import annotations

import json
from collections.abc import Sequence
from dataclasses import replace
from pathlib import Path
from typing import Any, NamedTuple

import numpy as np
import pyarrow as pa
import pytest
from hypothesis import given
from hypothesis import strategies as st

from livectr.ingest.join import lookup
from livectr.ingest.join.lookup import LookupTable
from livectr.ingest.join.saved_rows import KEY, ROW, TIME, SavedRows
from livectr.ingest.join.state import Changes, SourceState
from livectr.ingest.language.tables import Table
from livectr.kernels.stream.row_budget import KEY_BYTES
from livectr.trainer.checkpoint.changes import TimedRowLog
from livectr.trainer.checkpoint.checkpoint import Checkpointer
from livectr.trainer.checkpoint.content import CheckpointState
from livectr.trainer.checkpoint.manifest import MANIFEST
from livectr.trainer.comm.control import Control
from livectr.trainer.keep_rule import KeepRule
from tests.tiers import examples
from tests.trainer.checkpoint_run import rewrite
from tests.trainer.log_files import Files

COLUMNS = {"id": "int64", "at": "int64", "text": "string"}
SPAN, LATE, KEPT = 20, 15, 60
"""Times before the newest row: that look-ups have, that late rows have, and for which deletes are known."""
AGE = 45
ROW_BYTES = KEY_BYTES + 8 + 8 + 3


class Put(NamedTuple):
    key: int
    time: int
    text: str | None  # None deletes


def new_table(max_age: int | None = None, max_bytes: int | None = None) -> LookupTable:
    age = None if max_age is None else f"{max_age}ms"
    declared = Table("ads", key="id", columns=COLUMNS, time="at", max_age=age, max_bytes=max_bytes)
    return LookupTable(declared, versioned=True)


def bounds_of(table: LookupTable) -> dict[str, Any]:
    return SavedRows(table).bounds


def put(table: LookupTable, puts: Sequence[Put]) -> None:
    batch = pa.record_batch(
        {
            "id": np.array([one.key for one in puts], np.int64),
            "at": np.array([one.time for one in puts], np.int64),
            "text": pa.array([one.text for one in puts], pa.string()),
        }
    )
    table.upsert(batch, np.array([one.text is None for one in puts]))


def content_of(rows: pa.Table) -> list[tuple[Any, ...]]:
    """Saved rows without their numbers, sorted."""
    named = (rows.column(name).to_pylist() for name in (KEY, TIME, ROW, "id", "text"))
    return sorted(
        (k, t, row < 0, *(() if row < 0 else rest)) for k, t, row, *rest in zip(*named, strict=True)
    )


def scanned(puts: Sequence[Put], key: int, time: int, max_age: int | None) -> str | None:
    """Text of a key at a time: the last put of the greatest time that is not later."""
    found = [
        (one.time, place, one.text) for place, one in enumerate(puts) if one.key == key and one.time <= time
    ]
    since, _, text = max(found, default=(0, 0, None))
    return None if max_age is not None and since <= time - max_age else text


def saved(parts: Sequence[Any], table: LookupTable) -> SourceState:
    """State from the files of a log and the table's bounds, by way of their bytes."""
    own = SourceState(bounds={"ads": bounds_of(table)}).parts()
    return SourceState.from_parts(own, table_rows=parts)


BATCHES = st.lists(
    st.lists(st.tuples(st.integers(0, 9), st.integers(-LATE, 12), st.booleans()), max_size=12),
    min_size=1,
    max_size=14,
)


@pytest.mark.parametrize("max_age", [None, AGE])
@examples(150)
@given(
    batches=BATCHES,
    restarts=st.sets(st.integers(0, 13)),
    whole=st.sets(st.integers(0, 13)),
    skipped=st.sets(st.integers(0, 13)),
    ranks=st.sampled_from([1, 2]),
)
def test_any_chain_of_parts_restores_the_rows(
    max_age: int | None,
    batches: list[list[tuple[int, int, bool]]],
    restarts: set[int],
    whole: set[int],
    skipped: set[int],
    ranks: int,
) -> None:
    """Inserts, late rows, updates, deletes, expiry and keys that leave memory, in tables without a margin."""
    few, kept_ms = lookup.FEW_KEYS, lookup.DELETED_KEPT_MS
    lookup.FEW_KEYS, lookup.DELETED_KEPT_MS = 0, KEPT
    try:
        table, now, puts = new_table(max_age), 1000, list[Put]()
        logs, files = [TimedRowLog() for _ in range(ranks)], Files()
        for number, batch in enumerate(batches):
            fresh: list[Put] = []
            for key, after, gone in batch:
                fresh.append(Put(key, now + after, None if gone else f"{number}:{len(fresh)}"))
                now = max(now, now + after)
            if fresh:
                put(table, fresh)
            puts += fresh
            table.forget(now - SPAN)
            if number in skipped:
                continue
            states = []
            for rank, log in enumerate(logs):
                changes = Changes({}, {"ads": table}, (rank, ranks))
                parts = [files.read(entry) for entry in log.write(changes, files.write)]
                states.append(saved(parts, table))
            state = SourceState.merge(states)
            rows = state.tables.get("ads", SavedRows(table).export(now - SPAN).slice(0, 0))
            again = new_table(max_age)
            SavedRows(again).restore(rows)
            asked = [(key, time) for key in range(11) for time in range(now - SPAN, now + 13)]
            keys, times = (np.array(column) for column in zip(*asked, strict=True))
            expected = [scanned(puts, key, time, max_age) for key, time in asked]
            assert table.columns(keys, ["text"], times)["text"].to_pylist() == expected
            assert again.columns(keys, ["text"], times)["text"].to_pylist() == expected
            if number in whole:  # forgets at once, which changes say nothing of
                assert content_of(rows) == content_of(SavedRows(table).export(now - SPAN))
            if number in restarts:
                again.forget(now - SPAN)
                table, logs = again, [TimedRowLog() for _ in range(ranks)]
    finally:
        lookup.FEW_KEYS, lookup.DELETED_KEPT_MS = few, kept_ms


def test_a_part_holds_what_is_new_and_the_base_is_written_again_when_it_is_outgrown() -> None:
    table, log, files = new_table(), TimedRowLog(), Files()
    put(table, [Put(key, 0, "base") for key in range(1000)])
    table.forget(1)
    source, written, names = Changes({}, {"ads": table}), list[int](), list[int]()
    for number in range(400):
        named = log.write(source, files.write)
        written.append(named[-1].rows)
        names.append(len(named))
        put(table, [Put(10 * number % 1000 + i, number, f"{number}") for i in range(10)])
        table.forget(number)
    assert written[0] == 1000 and written[1] == 10
    assert [number for number, rows in enumerate(written) if rows >= 1000] == [0, 128, 256, 384]
    assert sum(written) < 400 * 10 * 8 and max(names) <= 8  # whole: 400,000 rows
    parts = [files.read(entry) for entry in log.write(source, files.write)]
    assert content_of(saved(parts, table).tables["ads"]) == content_of(SavedRows(table).export(399))


@examples(80)
@given(
    batches=st.lists(
        st.lists(st.tuples(st.integers(0, 40), st.integers(0, 12), st.booleans()), max_size=12),
        min_size=1,
        max_size=14,
    ),
    restarts=st.sets(st.integers(0, 13)),
    max_age=st.sampled_from([None, AGE]),
    rows=st.integers(1, 8),
)
def test_rows_that_left_for_lack_of_room_are_in_no_checkpoint(
    batches: list[list[tuple[int, int, bool]]], restarts: set[int], max_age: int | None, rows: int
) -> None:
    """A table that stays in memory and those that are restored from its files hold the same rows."""
    few, lookup.FEW_KEYS = lookup.FEW_KEYS, 0
    try:
        check_room(batches, restarts, max_age, rows)
    finally:
        lookup.FEW_KEYS = few


def check_room(
    batches: list[list[tuple[int, int, bool]]], restarts: set[int], max_age: int | None, rows: int
) -> None:
    max_bytes = rows * ROW_BYTES
    table, now, log, files = new_table(max_age, max_bytes), 1000, TimedRowLog(), Files()
    unbroken, puts = new_table(max_age, max_bytes), list[Put]()
    for number, batch in enumerate(batches):
        fresh, now = [], now + 1
        for key, after, gone in batch:
            now += after
            fresh.append(Put(key, now, None if gone and key % 2 else f"{number:3d}"))
        puts += fresh
        for each in (table, unbroken) if fresh else ():
            put(each, fresh)
        for each in (table, unbroken):
            each.forget(now - SPAN, now)
        parts = [files.read(entry) for entry in log.write(Changes({}, {"ads": table}), files.write)]
        state = saved(parts, table)
        rows_of = state.tables.get("ads", SavedRows(table).export(now - SPAN).slice(0, 0))
        assert content_of(rows_of) == content_of(SavedRows(table).export(now - SPAN))
        assert content_of(rows_of) == content_of(SavedRows(unbroken).export(now - SPAN))
        asked = [(key, time) for key in range(41) for time in range(now - SPAN, now + 1)]
        keys, times = (np.array(column) for column in zip(*asked, strict=True))
        found = table.columns(keys, ["text"], times)["text"].to_pylist()
        assert found == unbroken.columns(keys, ["text"], times)["text"].to_pylist()
        held = {key for (key, time), text in zip(asked, found, strict=True) if text and time == now}
        assert len(held) <= rows
        assert np.array_equal(table.latest.rows(keys) >= 0, unbroken.latest.rows(keys) >= 0)
        if number in restarts:
            table, log = new_table(max_age, max_bytes), TimedRowLog()
            SavedRows(table).restore(rows_of, state.bounds["ads"])
            newest = {one.key: one for one in puts}  # the topic was compacted
            if puts:
                put(table, list(newest.values()))
            SavedRows(table).complete()


def test_nothing_new_writes_nothing() -> None:
    table, log, files = new_table(), TimedRowLog(), Files()
    source = Changes({}, {"ads": table})
    assert log.write(source, files.write) == []
    put(table, [Put(1, 5, "a")])
    first = log.write(source, files.write)
    assert log.write(source, files.write) == first and len(files.held) == 1
    assert log.write(Changes({}), files.write) == first


def test_more_keys_that_left_than_are_known_begin_a_base(monkeypatch: pytest.MonkeyPatch) -> None:
    """The list of keys that left is bounded however long no checkpoint is written."""
    monkeypatch.setattr(lookup, "FEW_KEYS", 8)
    monkeypatch.setattr(lookup, "DELETED_KEPT_MS", 5)
    table, log, files = new_table(), TimedRowLog(), Files()
    source = Changes({}, {"ads": table})
    put(table, [Put(key, 0, "a") for key in range(10)])
    assert len(log.write(source, files.write)) == 1
    for start in range(10, 2000, 10):
        put(table, [Put(key, start, "b") for key in range(start, start + 10)])
        put(table, [Put(key, start, None) for key in range(start - 10, start)])
        table.forget(start)
    assert table.versions is not None and len(table.versions.dropped) <= 20
    named = log.write(source, files.write)
    assert len(named) == 1
    state = saved([files.read(entry) for entry in named], table)
    assert content_of(state.tables["ads"]) == content_of(SavedRows(table).export(1990))


def content(table: LookupTable, source: dict[str, bytes] | None = None) -> CheckpointState:
    return CheckpointState(
        step=1,
        examples=1,
        predictions=0,
        cursor=None,
        tables={},
        marks={},
        dense={},
        source=SourceState(bounds={"ads": bounds_of(table)}).parts() if source is None else source,
        changes=Changes({}, {"ads": table}) if source is None else None,
        statistics={},
    )


def test_generations_that_are_deleted_take_nothing_that_a_kept_one_needs(tmp_path: Path) -> None:
    table = new_table()
    checkpoint = Checkpointer(tmp_path, Control(), {}, keep=KeepRule((1,)))
    kept: dict[int, list[tuple[Any, ...]]] = {}
    for number in range(1, 60):
        put(table, [Put(7 * number % 50 + i, number, f"{number}:{i}") for i in range(number % 5 + 1)])
        table.forget(number - 3)
        manifest = checkpoint.commit(content(table))
        kept[manifest.generation] = content_of(SavedRows(table).export(number - 3))
    checkpoint.close()
    manifests = sorted(tmp_path.glob(f"gen-*/{MANIFEST}"))
    assert len(manifests) == 4 and len(list(tmp_path.rglob("rows.safetensors"))) < 20
    for path in reversed(manifests):  # each of them, after those behind it are gone
        again = Checkpointer(tmp_path, Control(), {})
        restored = again.restore()
        again.close()
        assert restored is not None
        assert content_of(restored.source().tables["ads"]) == kept[restored.manifest.generation]
        path.unlink()


def test_a_checkpoint_of_format_4_is_read(tmp_path: Path) -> None:
    """Its rows are whole, in the state of the source, which has no bounds."""
    table = new_table()
    put(table, [Put(1, 5, "a"), Put(2, 6, "b"), Put(1, 9, None)])
    rows = SavedRows(table).export(7)
    parts = replace(SourceState(), tables={"ads": rows}).parts()
    assert sorted(parts) == ["partitions.json", "tables/ads.arrow"]
    checkpoint = Checkpointer(tmp_path, Control(), {})
    manifest = checkpoint.commit(content(table, parts))
    checkpoint.close()
    path = tmp_path / "gen-00000001" / MANIFEST
    rewrite(path, lambda values: values.update(format=4))
    assert json.loads(json.loads(path.read_text())["body"])["format"] == 4
    again = Checkpointer(tmp_path, Control(), {})
    restored = again.restore()
    assert restored is not None and "rows" not in {entry.kind for entry in manifest.files}
    state = restored.source()
    assert state.tables["ads"].equals(rows)
    other = new_table()
    SavedRows(other).restore(state.tables["ads"])
    keys, times = np.array([1, 1, 2, 2]), np.array([8, 9, 5, 6])
    assert other.columns(keys, ["text"], times)["text"].to_pylist() == ["a", None, None, "b"]
    newer = again.commit(content(other))  # the next generation has them as changes
    assert [entry.kind for entry in newer.files].count("rows") == 1
    again.close()
    restored = Checkpointer(tmp_path, Control(), {}).restore()
    assert restored is not None and content_of(restored.source().tables["ads"]) == content_of(rows)
