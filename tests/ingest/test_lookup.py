"""Look-up tables against a dict; their row log against a list."""

from typing import Any

import numpy as np
import pyarrow as pa
import pytest
from hypothesis import given
from hypothesis import strategies as st

from livectr.ingest.join.lookup import LookupTable
from livectr.ingest.join.row_log import RowLog
from livectr.ingest.join.saved_rows import SavedRows
from livectr.ingest.language.keys import key_of
from livectr.ingest.language.tables import Table
from tests.tiers import examples

COLUMNS = {"id": "string", "age": "int32", "tags": "list<string>", "photo": "binary"}
ads = Table("ads", key="id", columns=COLUMNS)

IDS = st.sampled_from([f"ad{i}" for i in range(12)])
ROWS = st.tuples(
    IDS, st.integers(0, 99), st.lists(st.sampled_from(["a", "ö"]), max_size=2), st.binary(max_size=2)
)
BATCHES = st.lists(st.lists(st.tuples(ROWS, st.booleans()), max_size=8), max_size=10)


def batch_of(table: LookupTable, rows: list[tuple[tuple[object, ...], bool]]) -> pa.RecordBatch:
    columns = zip(*(row for row, _ in rows), strict=True) if rows else [[] for _ in COLUMNS]
    arrays = [pa.array(list(c), f.type) for c, f in zip(columns, table.schema, strict=True)]
    return pa.RecordBatch.from_arrays(arrays, schema=table.schema)


def keys(ids: list[str]) -> np.ndarray:
    return key_of(pa.array(ids, pa.string()))


@examples(200)
@given(BATCHES, st.lists(IDS, max_size=20))
def test_equals_a_dict(batches: list[list[tuple[tuple[object, ...], bool]]], requested: list[str]) -> None:
    table, since = LookupTable(ads), 0
    latest: dict[Any, tuple[object, ...]] = {}
    copy: dict[int, Any] = {}
    for rows in batches:
        deleted = np.array([gone for _, gone in rows], bool)
        table.upsert(batch_of(table, rows), deleted if deleted.any() else None)
        for row, gone in rows:
            latest.pop(row[0], None)
            if not gone:
                latest[row[0]] = row
        assert len(table) == len(latest)
        changed, values = table.changed(since)
        touched, there = table.touched(since)
        assert touched.tolist() == changed.tolist()
        assert there.tolist() == [row is not None for row in values]
        copy |= zip(changed.tolist(), values, strict=True)
        since = table.mark()
    found = table.take(keys(requested))
    nothing = dict.fromkeys(COLUMNS)
    assert found.to_pylist() == [
        dict(zip(COLUMNS, latest[i], strict=True)) if i in latest else nothing for i in requested
    ]
    assert (table.latest.rows(keys(requested)) >= 0).tolist() == [i in latest for i in requested]
    everything, rows_ = table.rows()
    assert sorted(rows_.column("id").to_pylist()) == sorted(latest)
    assert everything.tolist() == keys(rows_.column("id").to_pylist()).tolist()
    alive = {key: row for key, row in copy.items() if row is not None}
    assert {row[0]: row[1:3] for row in alive.values()} == {i: [row[1], row[2]] for i, row in latest.items()}


def test_columns_of_joined_rows_are_the_table_itself() -> None:
    table = LookupTable(Table("t", key="id", columns={"id": "int64", "x": "int64"}))
    assert table.columns(np.array([1]), ["x"])["x"].to_pylist() == [None]
    for first, size in ((0, 300), (300, 40), (340, 9)):  # smaller and smaller ones stay apart
        ids = np.arange(first, first + size)
        table.upsert(pa.record_batch({"id": ids, "x": 2 * ids}))
    requested = np.array([3, 348, -1, 300, 3])
    gathered = table.columns(requested, ["x"])["x"]
    table.join()
    encoded = table.columns(requested, ["x"])["x"]
    assert pa.types.is_dictionary(encoded.type) and not pa.types.is_dictionary(gathered.type)
    assert encoded.to_pylist() == gathered.to_pylist() == [6, 696, None, 600, 6]


@pytest.mark.parametrize("tracked", [False, True])
def test_deleted_keys_leave_memory(tracked: bool) -> None:
    """Keys that come and go for ever; those that nobody was told of yet stay until somebody was."""
    table = LookupTable(Table("t", key="id", columns={"id": "int64", "x": "int64"}))
    if tracked:
        table.track_left()
    sizes, since = [], 0
    copy: dict[int, Any] = {}
    for number in range(200):
        ids = np.arange(1000 * number, 1000 * number + 1000)
        table.upsert(pa.record_batch({"id": ids, "x": 2 * ids}))
        if number:
            old = ids - 1000
            table.upsert(pa.record_batch({"id": old, "x": old}), np.ones(1000, bool))
        changed, values = table.changed(since)
        copy |= zip(changed.tolist(), values, strict=True)
        since = table.mark()
        if tracked and number % 4 == 3:
            table.forget_left(since)
        sizes.append(table.bytes)
        assert len(table) == 1000
        asked = np.array([ids[0], ids[0] - 1, ids[-1], -5])
        assert table.columns(asked, ["x"])["x"].to_pylist() == [2 * ids[0], None, 2 * ids[-1], None]
    assert max(sizes[100:]) <= max(sizes[:100])
    if tracked:  # else keys leave with their deletes, and nobody asks for them
        assert len(copy) == 200_000
        assert {key for key, row in copy.items() if row is not None} == set(range(199_000, 200_000))


def test_memory_stays_with_the_live_rows() -> None:
    """A table that is rewritten many times keeps its latest rows and a margin."""
    table = LookupTable(Table("t", key="id", columns={"id": "int64", "x": "int64"}))
    ids = np.arange(1000)
    for version in range(50):
        table.upsert(pa.record_batch({"id": ids, "x": ids + version}))
    assert sum(part.batch.num_rows for part in table.log._parts) <= 2 * 1000 + 4096 + 1000
    assert table.take(ids).column("x").to_pylist() == (ids + 49).tolist()
    table.upsert(pa.record_batch({"id": ids, "x": ids}), np.ones(1000, bool))
    assert len(table) == 0 and table.take(ids).column("x").null_count == 1000


@examples(200)
@given(
    st.lists(st.integers(0, 9), min_size=1, max_size=20),
    st.sampled_from([4, 16, None]),
    st.lists(st.integers(-1, 60), max_size=30),
)
def test_row_log_equals_a_list(sizes: list[int], part_rows: int | None, requested: list[int]) -> None:
    schema = pa.schema([("x", pa.int64()), ("s", pa.string())])
    log = RowLog(schema, part_rows=part_rows)
    rows: list[dict[str, object]] = []
    for size in sizes:
        new = [{"x": len(rows) + i, "s": str(len(rows) + i)} for i in range(size)]
        log.append(pa.RecordBatch.from_pylist(new, schema=schema))
        rows += new
    requested = [row for row in requested if row < len(rows)]
    nothing = {"x": None, "s": None}
    found = log.take(np.array(requested, np.int64))
    assert found.schema == schema
    assert found.to_pylist() == [rows[row] if row >= 0 else nothing for row in requested]


def test_row_log_forgets_by_time() -> None:
    schema = pa.schema([("x", pa.int64())])
    log = RowLog(schema, part_rows=2)
    for start, until in ((0, 10), (2, 99), (4, 20)):
        log.append(pa.record_batch({"x": np.arange(start, start + 2)}), until=until)
    log.drop(21)
    assert log.take(np.array([3, 2])).column("x").to_pylist() == [3, 2]
    log.append(pa.record_batch({"x": np.array([6])}))
    assert log.take(np.array([6, 2])).column("x").to_pylist() == [6, 2]
    with pytest.raises(KeyError):
        log.take(np.array([6, 4]))


def large_table(rows: int, size: int) -> None:
    """Fill, look up, publish, save and rewrite a table of `rows` texts of `size` bytes."""
    table = LookupTable(
        Table("t", key="id", columns={"id": "int64", "at": "int64", "text": "string"}, time="at"),
        versioned=True,
    )
    half = rows // 2
    for start in range(0, rows, 50):
        ids = np.arange(start, min(start + 50, rows))
        texts = [f"{i:08d}" + "x" * (size - 8) for i in ids.tolist()]
        table.upsert(pa.record_batch({"id": ids, "at": ids * 0, "text": texts}))
    table.join()
    ids = np.array([0, half, rows - 1, rows])
    for at in (None, np.ones(4, np.int64)):
        found = table.columns(ids, ["text"], at)["text"].to_pylist()
        assert [text and text[:8] for text in found] == [f"{i:08d}" for i in ids[:3].tolist()] + [None]
    saved = SavedRows(table).export(5)
    assert len(saved) == rows and saved.nbytes > rows * size
    for _ in range(3):  # most rows are outdated: the others are copied
        table.upsert(pa.record_batch({"id": np.arange(half), "at": np.full(half, 3), "text": ["new"] * half}))
        table.forget(9)
    table._compact()
    found = table.columns(ids, ["text"], np.full(4, 9))["text"].to_pylist()
    assert [text and text[:8] for text in found] == ["new", f"{half:08d}", f"{rows - 1:08d}", None]
    keys, changed = table.changed()
    assert len(keys) == rows and changed[-1] is not None and changed[-1][2][:8] == f"{rows - 1:08d}"


def test_more_text_than_a_part_may_have(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("livectr.ingest.join.row_log.PART_BYTES", 100_000)
    large_table(9_000, 100)


@pytest.mark.full
def test_more_text_than_arrow_has_offsets_for() -> None:
    large_table(2_200, 1 << 20)
