"""Cache of look-up rows: the newest rows of Redis, each read again only when it has expired."""

from __future__ import annotations

import threading
from collections.abc import Callable, Sequence
from concurrent.futures import ThreadPoolExecutor
from typing import Any, cast

import numpy as np
import pytest

from livectr.ingest.language.tables import Table
from livectr.serving.errors import RefusedError
from livectr.serving.request.lookup_rows import LookupQuery, LookupResult, LookupRows
from livectr.serving.request.lookup_table import LookupRoot, LookupTable
from livectr.serving.version.breaker import DownError
from livectr.serving.version.reader import Reader
from livectr.store.layout import I64, LOOKUP, Keyspace, encode_lookup_row
from tests.lookup_columns import lookup_columns

ADS = Table("ads", key="ad_id", columns={"ad_id": "int64", "title": "string"})
USERS = Table("users", key="user_id", columns={"user_id": "int64"})


class Store:
    """Values by Redis key, in place of a `Reader`; reads: number of keys of each read."""

    def __init__(self) -> None:
        self.keyspace = Keyspace("n")
        self.held: dict[bytes, bytes] = {}
        self.reads: list[int] = []
        self.down = False
        self.complete = True

    def put(self, table: Table, key: int, row: list[object] | None) -> None:
        (name,) = self.keyspace.lookup_rows(table.topic, np.array([key]))
        self.held.pop(name, None)
        if row is not None:
            self.held[name] = encode_lookup_row(row)

    def read(self, names: Sequence[bytes], prefetch: None) -> tuple[list[bytes | None], bool, None]:
        self.reads.append(len(names))
        if self.down:
            raise DownError("down")
        return [self.held.get(name) for name in names], self.complete, None


def query(table: Table, *keys: int) -> LookupQuery:
    return LookupQuery(table, np.array(keys, np.int64))


def listed(result: LookupResult) -> list[list[list[object] | None]]:
    """Rows of each query; the first column of these tables is the key, and is null in no row."""
    found = []
    for rows, table in zip(result.rows, (ADS, USERS), strict=False):
        columns = rows.columns([LookupRoot.of(table[name]) for name in table.columns])
        values = zip(*(column.to_pylist() for column in columns.values()), strict=True)
        found.append([None if row[0] is None else list(row) for row in values])
    return found


class Slow(Store):
    """Store that does something at the end of each read; then: by read."""

    then: Sequence[Callable[[], object]] = ()

    def read(self, names: Sequence[bytes], prefetch: None) -> tuple[list[bytes | None], bool, None]:
        found = super().read(names, prefetch)
        if len(self.reads) <= len(self.then):
            self.then[len(self.reads) - 1]()
        return found


def test_a_slow_read_does_not_replace_a_newer_row() -> None:
    """While a request reads a row, a version changes it, and another request reads it again."""
    store = Slow()
    lookup_rows = LookupRows(cast(Reader, store))
    store.put(ADS, 1, [1, "old"])

    def change() -> None:
        store.put(ADS, 1, [1, "new"])
        lookup_rows.changed({LOOKUP + "ads": np.array([1])})
        assert listed(lookup_rows.find([query(ADS, 1)])) == [[[1, "new"]]]

    store.then = [change]
    for _ in range(2):
        assert listed(lookup_rows.find([query(ADS, 1)])) == [[[1, "new"]]]
    assert store.reads == [1, 1]


def test_a_request_keeps_the_rows_that_it_has_found() -> None:
    """While it reads another row, a slow read puts an old value over a row that has changed again."""
    store, begun, goes_on = Slow(), threading.Event(), threading.Event()
    lookup_rows = LookupRows(cast(Reader, store))
    store.put(ADS, 1, [1, "old"])
    with ThreadPoolExecutor(1) as pool:

        def end_slow_read() -> None:
            lookup_rows.changed({LOOKUP + "ads": np.array([1])})
            goes_on.set()
            slow.result()

        def begin_slow_read() -> None:
            begun.set()
            goes_on.wait()

        store.then = [begin_slow_read, lambda: None, end_slow_read]
        slow = pool.submit(lookup_rows.find, [query(ADS, 1)])
        begun.wait()
        store.put(ADS, 1, [1, "new"])
        lookup_rows.changed({LOOKUP + "ads": np.array([1])})
        assert listed(lookup_rows.find([query(ADS, 1)])) == [[[1, "new"]]]
        assert listed(lookup_rows.find([query(ADS, 1, 2)])) == [[[1, "new"], None]]


def test_a_changed_row_is_never_found_as_a_new_one(monkeypatch: pytest.MonkeyPatch) -> None:
    """Another request looks while the row that was read is added."""
    table, keys, seen = LookupTable(ADS), np.array([1]), list[float]()
    table.put(keys, [encode_lookup_row([1, "old"])], 1.0)
    table.expire(keys)
    add = table.rows.add

    def look_and_add(*arguments: Any) -> None:
        seen.append(table.find(keys)[1].item())
        add(*arguments)

    monkeypatch.setattr(table.rows, "add", look_and_add)
    table.put(keys, [encode_lookup_row([1, "new"])], 2.0)
    assert seen == [-np.inf] and table.find(keys)[1].item() == 2.0


@pytest.mark.parametrize("max_rows", [1000, 3])
def test_the_newest_rows_are_found(max_rows: int) -> None:
    store, rng = Store(), np.random.default_rng(0)
    lookup_rows = LookupRows(cast(Reader, store), ttl_s=0, max_rows=max_rows)
    rows: dict[int, list[object]] = {}
    store.put(USERS, 1, [1])  # the key of an ad, too
    for time in range(60):
        key = int(rng.integers(8))
        if rng.random() < 0.3:
            rows.pop(key, None)
        else:
            rows[key] = [key, f"of {time // 10}"]  # often the same again
        store.put(ADS, key, rows.get(key))
        keys = rng.integers(0, 8, 5).tolist()
        asked = [query(ADS, *keys), query(USERS, 1, 2)]
        found = lookup_rows.find(asked, [b"history"])
        assert listed(found) == [[rows.get(key) for key in keys], [[1], None]]
        assert found.complete and found.histories == [None]
        assert store.reads[-1] == len(set(keys)) + 3


def test_fresh_rows_are_not_read_again_and_expired_rows_answer_while_redis_is_down() -> None:
    store = Store()
    lookup_rows = LookupRows(cast(Reader, store), ttl_s=60)
    store.put(ADS, 1, [1, "one"])
    assert listed(lookup_rows.find([query(ADS, 1, 1, 2)])) == [[[1, "one"], [1, "one"], None]]
    store.put(ADS, 2, [2, "two"])
    assert listed(lookup_rows.find([query(ADS, 1, 2)])) == [[[1, "one"], None]]
    assert lookup_rows.find([query(ADS, 1, 3)]).complete
    assert store.reads == [2, 1]
    store.down = True
    away = lookup_rows.find([query(ADS, 1, 4)], [b"history"])
    assert (listed(away), away.histories, away.complete) == ([[[1, "one"], None]], [None], False)


def test_a_row_is_read_again_when_a_version_lists_it() -> None:
    store, all_of_them = Store(), query(ADS, 1, 2, 3)
    lookup_rows = LookupRows(cast(Reader, store))
    for key in (1, 2):
        store.put(ADS, key, [key, "old"])
    lookup_rows.find([all_of_them])
    for key in (1, 2, 3):
        store.put(ADS, key, [key, "new"])
    lookup_rows.changed({LOOKUP + "ads": np.array([2, 3, 4]), "ads": np.array([1])})
    assert listed(lookup_rows.find([all_of_them])) == [[[1, "old"], [2, "new"], [3, "new"]]]
    assert store.reads == [3, 2]
    lookup_rows.changed(None)
    assert listed(lookup_rows.find([all_of_them])) == [[[1, "new"], [2, "new"], [3, "new"]]]


def test_a_row_that_was_read_before_a_swap_is_not_kept_over_it() -> None:
    store = Store()
    lookup_rows = LookupRows(cast(Reader, store))
    store.put(ADS, 1, [1, "old"])
    read = store.read

    def slow(names: Sequence[bytes], prefetch: None) -> tuple[list[bytes | None], bool, None]:
        found = read(names, prefetch)
        store.put(ADS, 1, [1, "new"])
        lookup_rows.changed({LOOKUP + "ads": np.array([1])})
        return found

    store.read = slow  # type: ignore[method-assign]
    assert listed(lookup_rows.find([query(ADS, 1)])) == [[[1, "old"]]]
    store.read = read  # type: ignore[method-assign]
    assert listed(lookup_rows.find([query(ADS, 1)])) == [[[1, "new"]]]


def test_a_row_that_was_read_before_a_swap_is_old_from_the_first(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    """Another request may look between the moments at which it is kept and found to be old."""
    store = Store()
    lookup_rows = LookupRows(cast(Reader, store))
    asked = query(ADS, 1)
    put, seen = LookupTable.put, []
    store.put(ADS, 1, [1, "old"])

    def look(table: Any, keys: I64, values: Any, now: float) -> None:
        put(table, keys, values, now)
        seen.append(float(table.find(keys)[1][0]))

    read = store.read

    def slow(names: Sequence[bytes], prefetch: None) -> tuple[list[bytes | None], bool, None]:
        found = read(names, prefetch)
        lookup_rows.changed({LOOKUP + "ads": np.array([1])})
        return found

    store.read = slow  # type: ignore[method-assign]
    monkeypatch.setattr(LookupTable, "put", look)
    lookup_rows.find([asked])
    assert seen == [float("-inf")]


def test_the_oldest_row_that_is_used_says_when_it_was_read() -> None:
    store = Store()
    lookup_rows = LookupRows(cast(Reader, store), ttl_s=60)
    first = lookup_rows.find([query(ADS, 1, 2)]).read_at
    second = lookup_rows.find([query(ADS, 3)], [b"history"]).read_at
    assert first < second < lookup_rows.find([], [b"history"]).read_at
    assert lookup_rows.find([query(ADS, 3, 4), query(USERS, 1)]).read_at == second
    assert lookup_rows.find([query(USERS, 1), query(ADS, 2, 3)]).read_at == first
    expired = LookupRows(cast(Reader, store), ttl_s=0)
    before = expired.find([query(ADS, 1)]).read_at
    assert before < expired.find([query(ADS, 1)]).read_at, "it was read again"
    after = expired.find([query(ADS, 1, 2)]).read_at
    store.down = True
    assert expired.find([query(ADS, 1, 9)]).read_at == after, "of 9 there is no row"


def test_garbage_of_changed_rows_is_dropped() -> None:
    store = Store()
    lookup_rows = LookupRows(cast(Reader, store), ttl_s=0)
    for time in range(60):
        for key in range(100):
            store.put(ADS, key, [key, f"title {time}"] if key % 7 else None)
        found = lookup_rows.find([query(ADS, *range(100))])
        assert listed(found) == [[[key, f"title {time}"] if key % 7 else None for key in range(100)]]
    slots = [len(table) for table in lookup_rows._tables.values()]
    assert slots[0] < 1 + 2 * 100 + 1024 + 100


def test_a_moved_table_has_the_live_rows_of_its_time() -> None:
    columns = {"id": "int64", "name": "string", "price": "float32", "tags": "list<string>", "on": "bool"}
    things = Table("things", key="id", columns=columns)
    table, roots = LookupTable(things), [LookupRoot.of(things[name]) for name in columns]
    rows: list[list[object] | None] = [
        [i, None if i % 3 else "é" * i, i / 2, ["a"] * (i % 4), i % 2 == 0] if i % 5 else None
        for i in range(40)
    ]
    values = [None if row is None else encode_lookup_row(row) for row in rows]
    table.put(np.arange(40), [encode_lookup_row([0, "old", 0.0, [], True])] * 40, 1.0)
    table.put(np.arange(40), values, 2.0)
    moved = table.moved()
    table.put(np.array([99]), [encode_lookup_row([99, "late", 0.0, [], True])], 3.0)
    slots, read_at = moved.find(np.array([*range(40), 99]))
    assert read_at.tolist() == [2.0] * 40 + [float("-inf")], "a row that came later is read again"
    there, _ = table.find(np.arange(40))
    assert len(moved) == 41 and len(table) == 82
    for name, array in table.columns(there, roots).items():
        assert moved.columns(slots[:40], roots)[name].to_pylist() == array.to_pylist()
    moved.put(np.arange(40), values, 4.0)
    assert len(moved) == 41, "equal values are not decoded again"
    moved.put(np.array([1]), [encode_lookup_row([1, "new", 1.0, [], False])], 5.0)
    assert moved.columns(moved.find(np.array([1]))[0], roots)[roots[1].name].to_pylist() == ["new"]


def test_threads_find_their_rows_while_columns_grow() -> None:
    store = Store()
    lookup_rows = LookupRows(cast(Reader, store), ttl_s=60)
    for key in range(6000):
        store.put(ADS, key, [key, f"title {key}" if key % 5 else None])

    def ask(seed: int) -> bool:
        keys = np.random.default_rng(seed).choice(6000, 300).tolist()
        found = listed(lookup_rows.find([query(ADS, *keys)]))
        return found == [[[key, f"title {key}" if key % 5 else None] for key in keys]]

    with ThreadPoolExecutor(4) as pool:
        assert all(pool.map(ask, range(100)))
    assert sum(store.reads) < 100 * 300, "rows of other requests are found"


def test_a_value_that_does_not_fit_is_refused_and_nothing_of_it_is_kept() -> None:
    store = Store()
    lookup_rows = LookupRows(cast(Reader, store), ttl_s=0)
    store.put(ADS, 1, [1, "one"])
    store.put(ADS, 2, [2, 2])
    with pytest.raises(RefusedError, match="no trainer wrote"):
        lookup_rows.find([query(ADS, 1, 2)])
    store.put(ADS, 2, [2, "two"])
    assert listed(lookup_rows.find([query(ADS, 2, 1)])) == [[[2, "two"], [1, "one"]]]


def test_a_row_with_fewer_columns_ends_with_nulls() -> None:
    found = lookup_columns(ADS, [[7], []], [ADS.title, ADS.ad_id])
    assert [array.to_pylist() for array in found.values()] == [[None, None], [7, None]]


def test_columns_of_rows_that_are_not_there() -> None:
    roots = [ADS.title, ADS.ad_id]
    found = lookup_columns(ADS, [[1, "one"], None, [3, None]], roots)
    assert {name: array.to_pylist() for name, array in found.items()} == {
        roots[0].name: ["one", None, None],
        roots[1].name: [1, None, 3],
    }
    assert [len(array) for array in lookup_columns(ADS, [], roots).values()] == [0, 0]
