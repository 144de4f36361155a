"""Checks of a table on a device, emulated or real: tests/kernels and tests/gpu run these."""

from __future__ import annotations

import threading
from collections.abc import Callable, Sequence
from typing import Any, NamedTuple

import numpy as np
import pytest
from hypothesis import settings
from hypothesis import strategies as st
from hypothesis.stateful import Bundle, RuleBasedStateMachine, invariant, rule

from livectr.kernels.gpu_table.device_store import LOAD, Target
from livectr.kernels.gpu_table.device_table import DeviceTable, Leaving
from livectr.kernels.gpu_table.gpu_cache import CachedFields, GpuCache
from livectr.kernels.runtime.device import Device, EmulatedDevice, Mark
from livectr.kernels.table.field_tables import FieldTables
from livectr.kernels.table.layout import (
    FTRL,
    SGD,
    AdaGrad,
    Adam,
    Adaptive,
    RowAdaGrad,
    RowLayout,
    Segment,
    Values,
)
from livectr.kernels.table.table import MISSING_ROW, DynamicTable
from livectr.system.errors import ConfigError
from tests.kernels.ragged_fields import FIELDS, ragged, tables
from tests.kernels.ragged_fields import LAYOUT as FIELD_LAYOUT
from tests.kernels.reference import initial_row, updated_row

LAYOUT = RowLayout((Segment("w", 1, FTRL(l1=0.01)), Segment("v", 4, AdaGrad(), 0.1)))
KINDS = (
    *(SGD(lr=0.1), AdaGrad(), RowAdaGrad(), Adam(lr=0.01), FTRL(l1=0.5, l2=0.1)),
    *(Adaptive(SGD(lr=0.1), 0.3), Adaptive(RowAdaGrad(), 0.3)),
)
ALL = RowLayout(tuple(Segment(str(i), 3, kind, 0.3) for i, kind in enumerate(KINDS)))
EXTREME = [0, -1, 1, 2**63 - 1, -(2**63), 0xFFFFFFFF]
KEYS = st.lists(st.one_of(st.sampled_from(EXTREME), st.integers(0, 40)), max_size=30)
TABLES = st.integers(0, 1)


def reversed_device(source: str, kernels: Sequence[str]) -> Device:
    """Runs the blocks of a launch from the last to the first, and so the threads of each step of a block."""
    return EmulatedDevice("#define LIVECTR_REVERSED\n" + source, kernels)


def table_is_a_dict(target: Target, examples: int) -> type[Any]:
    """A test case: random calls on two tables of an index against a dict."""

    class DeviceTableIsADict(RuleBasedStateMachine):
        marks = Bundle("marks")

        def __init__(self) -> None:
            super().__init__()
            self.table = DeviceTable(LAYOUT, ["t", "u"], seed=7, target=target)
            self.rows: dict[tuple[int, int], np.ndarray] = {}
            self.changed: dict[tuple[int, int], int] = {}
            self.generation = 1

        def insert(self, table: int, keys: list[int]) -> None:
            for key in keys:
                if (table, key) not in self.rows:
                    self.rows[table, key] = initial_row(LAYOUT, "tu"[table], 7, key)
                    self.changed[table, key] = self.generation

        @rule(table=TABLES, keys=KEYS)
        def find_or_insert(self, table: int, keys: list[int]) -> None:
            self.insert(table, keys)
            numbers = self.table.find_or_insert(keys, table)
            assert len(set(numbers.tolist())) == len(set(keys))
            assert (self.table.find(keys, table) == numbers).all()

        @rule(table=TABLES, keys=KEYS, seed=st.integers(0, 99))
        def update(self, table: int, keys: list[int], seed: int) -> None:
            grads = np.random.default_rng(seed).normal(size=(len(keys), LAYOUT.dim)).astype(np.float32)
            self.insert(table, keys)
            sums: dict[int, np.ndarray] = {}
            for key, grad in zip(keys, grads, strict=True):
                sums[key] = sums[key] + grad if key in sums else grad
            for key, total in sums.items():
                self.rows[table, key] = updated_row(LAYOUT, self.rows[table, key], total)
                self.changed[table, key] = self.generation
            assert self.table.update(keys, grads, table) == len(sums)

        @rule(table=TABLES, keys=KEYS, seed=st.integers(0, 99))
        def assign(self, table: int, keys: list[int], seed: int) -> None:
            rows = np.random.default_rng(seed).random((len(keys), LAYOUT.stride), np.float32)
            for key, row in zip(keys, rows, strict=True):
                self.rows[table, key] = row
                self.changed[table, key] = self.generation
            assert self.table.assign(keys, rows, table) == len(set(keys))

        @rule(table=TABLES, keys=KEYS)
        def erase(self, table: int, keys: list[int]) -> None:
            there = {key for key in keys if self.rows.pop((table, key), None) is not None}
            assert self.table.erase(keys, table) == len(there)

        @rule(table=TABLES, keys=KEYS)
        def lookup_stores_nothing(self, table: int, keys: list[int]) -> None:
            for missing in ("initial", "zeros"):
                got = self.table.lookup(keys, table, missing=missing)
                for key, values in zip(keys, got, strict=True):
                    absent = np.zeros(LAYOUT.stride, np.float32)
                    if missing == "initial":
                        absent = initial_row(LAYOUT, "tu"[table], 7, key)
                    np.testing.assert_array_equal(values, self.rows.get((table, key), absent)[: LAYOUT.dim])
            found = self.table.find(keys, table) != MISSING_ROW
            assert found.tolist() == [(table, key) in self.rows for key in keys]

        @rule(target=marks)
        def mark(self) -> int:
            assert self.table.mark() == self.generation
            self.generation += 1
            return self.generation - 1

        @rule(mark=marks, table=TABLES)
        def export_since(self, mark: int, table: int) -> None:
            self.equals(*self.table.export(table, mark), table, mark)

        @invariant()
        def equals_the_dict(self) -> None:
            assert len(self.table) == len(self.rows)
            for table in (0, 1):
                self.equals(*self.table.export(table), table, 0)

        def equals(self, keys: np.ndarray, rows: np.ndarray, table: int, mark: int) -> None:
            expected = [key for of, key in self.rows if of == table and self.changed[of, key] > mark]
            assert sorted(keys.tolist()) == sorted(expected)
            for key, row in zip(keys.tolist(), rows, strict=True):
                np.testing.assert_array_equal(row, self.rows[table, key])

    DeviceTableIsADict.TestCase.settings = settings(
        max_examples=examples, stateful_step_count=20, deadline=None
    )
    return DeviceTableIsADict.TestCase


def equals_the_host_table(
    target: Target, values: Values = "fp32", *, rounds: int = 12, size: int = 2_000
) -> None:
    """Same row numbers, rows and order of export, for every optimiser, while keys come and go."""
    layout = RowLayout(ALL.segments, values)
    device = DeviceTable(layout, ["t"], seed=7, target=target)
    host = DynamicTable(layout, name="t", seed=7)
    rng = np.random.default_rng(0)
    for _ in range(rounds):
        keys = rng.integers(-size, size, size)
        grads = rng.normal(size=(size, ALL.dim)).astype(np.float32)
        assert device.update(keys, grads) == host.update(keys, grads)
        gone = rng.integers(-size, size, size // 8)
        assert device.erase(gone) == host.erase(gone)
        requested = rng.integers(-2 * size, 2 * size, size)
        np.testing.assert_array_equal(device.find(requested), host.find(requested))
        np.testing.assert_array_equal(device.lookup(requested), host.lookup(requested))
    for got, expected in zip(device.export(), host.export(), strict=True):
        np.testing.assert_array_equal(got, expected)


def grows_at_a_load_of_nine_tenths(target: Target, keys: int) -> None:
    """The index fills up to the limit, is found whole on every step of the way, and then doubles."""
    table = DeviceTable(LAYOUT, ["t"], seed=1, target=target)
    all_keys = np.random.default_rng(5).permutation(np.arange(-keys, keys) * 0x9E3779B97F4A7C1)[:keys]
    loads, slots = [], table.slots
    for end in range(256, keys, 256):
        before = len(table)
        numbers = table.find_or_insert(all_keys[before:end])
        assert (numbers == np.arange(before, end)).all()
        if table.slots != slots:
            loads.append(before / slots)
            slots = table.slots
            assert (table.find(all_keys[:end]) == np.arange(end)).all()
            assert (table.find(all_keys[end:]) == MISSING_ROW).all()
        assert len(table) <= LOAD * table.slots
    assert table.rehashes == len(loads) >= 3
    assert LOAD - 512 / table.slots < loads[-1] <= LOAD
    # exactly at the limit: nothing that is absent is found, and nothing is lost
    left = int(LOAD * table.slots) - len(table)
    filled = np.arange(left) + (1 << 40)
    table.find_or_insert(filled)
    assert table.slots == slots and len(table) == int(LOAD * table.slots)
    assert (table.find(filled) != MISSING_ROW).all() and (table.find(filled + left) == MISSING_ROW).all()


def erased_keys_leave_room(target: Target) -> None:
    """Keys that come and go never make the table larger."""
    table = DeviceTable(LAYOUT, ["t"], seed=1, target=target)
    for step in range(60):
        table.find_or_insert(np.arange(step * 300, (step + 2) * 300))
        assert table.erase(np.arange(step * 300, (step + 1) * 300)) == 300
    assert len(table) == 300 and table.rehashes > 5
    assert table.slots == 64 * 15 and table.export()[0].tolist() == sorted(range(18_000, 18_300))


def same_bits_in_any_order(target: Target, other: Target) -> None:
    """Threads in another order: the same row numbers, rows and lists."""
    results = []
    for one in (target, other):
        rng, table = np.random.default_rng(3), DeviceTable(ALL, ["t", "u"], seed=2, target=one)
        seen: list[np.ndarray] = []
        for step in range(6):
            keys = (900 * rng.random(3_000) ** 2).astype(np.int64)
            table.update(keys, rng.normal(size=(len(keys), ALL.dim)).astype(np.float32), step % 2)
            table.erase(rng.integers(0, 900, 200), step % 2)
            seen += [table.find(keys, step % 2), *table.export_all()]
        results.append(seen)
    for got, expected in zip(*results, strict=True):
        np.testing.assert_array_equal(got, expected)


def cached_training_equals_the_host(
    target: Target,
    budget_rows: int,
    *,
    prefetch: bool = False,
    grouped: bool = False,
    given: Callable[[np.ndarray], Any] = np.asarray,
) -> GpuCache:
    """Batches with at most `budget_rows` rows on the device: results, tables and what changed since each mark
    are those of host tables alone. `given` makes the arrays that the cache's front takes."""
    rng = np.random.default_rng(budget_rows)
    blocks = [0, 0, 1, 1, 1] if grouped else None
    plain_tables, cached_tables = tables(), tables()
    plain = FieldTables(plain_tables, FIELDS, blocks)
    cache = GpuCache(cached_tables, budget_rows=budget_rows, target=target)
    front = CachedFields(cache, FIELDS, blocks)
    rows = (60, 60) if grouped else (60,)
    batches = [ragged(rng, 60, len(FIELDS), 2_000) for _ in range(25)]
    for step, (_, keys) in enumerate(batches):
        keys += 100 * step
    marks = dict.fromkeys(plain_tables, 0)
    there = [(given(offsets), given(keys)) for offsets, keys in batches]
    for step, (offsets, keys) in enumerate(batches):
        if prefetch and step + 1 < len(batches):
            front.prefetch(*there[step + 1], *rows)
        expected, got = plain.forward(offsets, keys, *rows), front.forward(*there[step], *rows)
        grads = [rng.normal(size=values.shape).astype(np.float32) for values in expected]
        for one, other in zip(expected, got, strict=True):
            np.testing.assert_array_equal(one, on_host(other))
        assert plain.backward(*grads) == front.backward(*grads)
        cache.end_step()
        assert len(cache) <= budget_rows
        if step % 6 == 5:
            for name in ("user", "ad"):
                plain_tables[name].set_rate(0.9**step, "v" if name == "ad" else "")
                cached_tables[name].set_rate(0.9**step, "v" if name == "ad" else "")
        if step % 7 == 3:
            for one, other in zip(
                plain.infer(offsets, keys, *rows), front.infer(offsets, keys, *rows), strict=True
            ):
                np.testing.assert_array_equal(one, other)
        if step % 5 == 4:
            cache.flush()
            marks = same_tables(plain_tables, cached_tables, marks)
    cache.flush()
    same_tables(plain_tables, cached_tables, marks)
    same_tables(plain_tables, cached_tables, dict.fromkeys(plain_tables, 0))
    assert sum(map(len, plain_tables.values())) > 2_000
    return cache


class Counts(NamedTuple):
    """Requests to a device.

    Attributes:
        waits: times that this thread waited for it.
        elsewhere: times that other threads did.
        allocations: calls for device memory or pinned memory.
    """

    waits: int
    elsewhere: int
    allocations: int


class Counted:
    """Counts of what a device was asked for, since the last call of `taken`.

    Every call of a device that waits ends in `synchronize` or in a mark that it made.
    """

    def __init__(self, device: Device) -> None:
        self.device, self.allocated = device, 0
        self._waiting: list[int] = []
        for name in ("memory", "staging"):
            setattr(device, name, self._counting(getattr(device, name)))
        self._synchronize, self._mark, self._waits = device.synchronize, device.mark, device.waits
        device.synchronize, device.mark = self.synchronize, self.mark  # type: ignore[method-assign]

    def _counting(self, allocate: Callable[[int], Any]) -> Callable[[int], Any]:
        def counted(nbytes: int) -> Any:
            self.allocated += 1
            return allocate(nbytes)

        return counted

    def synchronize(self) -> None:
        self._waiting.append(threading.get_ident())
        self._synchronize()

    def mark(self) -> Mark:
        mark = self._mark()
        reached = mark._reached

        def waited() -> None:
            self._waiting.append(threading.get_ident())
            reached()

        mark._reached = waited
        return mark

    def taken(self) -> Counts:
        waits, total = self._waiting.count(threading.get_ident()), len(self._waiting)
        assert self.device.waits - self._waits == total
        counts = Counts(waits, total - waits, self.allocated)
        self._waits, self.allocated = self.device.waits, 0
        self._waiting.clear()
        return counts


def steps_wait_and_allocate_little(target: Target, *, prefetch: bool, track: bool) -> None:
    """A step of present keys allocates nothing, and waits once: in the caller's thread, or where batches are
    prefetched in the thread that reads ahead. Missing keys, evictions and tables that note uses take at most
    a further wait, where their number jumps."""
    hosts = {name: DynamicTable(FIELD_LAYOUT, name=name, seed=4, track=track) for name in tables()}
    cache = GpuCache(hosts, budget_rows=1_500, target=target)
    front, rng, counted = CachedFields(cache, FIELDS), np.random.default_rng(1), Counted(cache.device.device)
    known = [ragged(rng, 60, len(FIELDS), 900) for _ in range(8)]
    for offsets, keys in known:  # warm: the host has all keys
        FieldTables(hosts, FIELDS).forward(offsets, keys, 60)

    def train(batches: list[tuple[Any, Any]]) -> list[Counts]:
        counts = []
        for step, (offsets, keys) in enumerate(batches):
            if prefetch and step + 1 < len(batches):
                front.prefetch(*batches[step + 1], 60)
            (values,) = front.forward(offsets, keys, 60)
            front.backward(np.ones(values.shape, np.float32))
            cache.end_step()
            counts.append(counted.taken())
        return counts

    train(3 * known)
    assert cache.evicted == 0
    first, *others, last = train(known)  # nothing has prefetched the first, and nothing follows the last
    assert {first, *others, last} == {Counts(1, 0, 0)} if not prefetch else set(others) == {Counts(0, 1, 0)}
    new = [(offsets, keys + 40 * step) for step, (offsets, keys) in enumerate(4 * known)]
    evicted, misses = cache.evicted, cache.misses
    waits = [count.waits for count in train(new)[1:-1]]
    assert cache.evicted > evicted and cache.misses > misses and (cache.prefetched > 0) == prefetch
    assert max(waits) <= 2 - prefetch and sum(waits) < (0.5 if prefetch else 1.5) * len(waits)


def evictions_are_pieces(target: Target, piece: int) -> None:
    """In a step at most a piece leaves, until the spare room is there; a step that lacks room evicts what it
    lacks, besides."""
    cache = GpuCache(tables(), budget_rows=800, target=target)
    front, rng, moved = CachedFields(cache, [("ad", "ad")]), np.random.default_rng(1), 0
    evict = cache.device.evict
    calls: list[tuple[int, int, bool]] = []  # rows that may leave, room before, and if they leave for certain

    def noted(limit: int, *, step: int, since: int, busy: int | None = None) -> Leaving:
        calls.append((limit, 800 - len(cache), busy is not None))
        return evict(limit, step=step, since=since, busy=busy)

    cache.device.evict = noted  # type: ignore[method-assign]
    for step in range(40):
        size, missing = 200 if step % 5 else 20, cache.misses
        keys = rng.permutation(np.arange(120 * step, 120 * step + size))
        (values,) = front.forward(np.arange(size + 1, dtype=np.int32), keys, size)
        assert len(cache) <= 800
        pieces = [(limit, room) for limit, room, certain in calls if not certain]
        for limit, room, _ in calls[: len(calls) - len(pieces)]:
            assert limit == cache.misses - missing - room
        assert len(pieces) == (len(cache) > 800 - cache.spare_rows)
        for limit, room in pieces:
            assert room == 800 - len(cache) and limit == min(cache.spare_rows - room, piece)
        moved += sum(limit for limit, *_ in calls)
        calls.clear()
        front.backward(np.ones(values.shape, np.float32))
        cache.end_step()
        assert not calls
    assert cache.evicted <= moved and cache.evicted > 2_000 and cache.spare_rows == 50


def the_least_recently_used_rows_leave(target: Target) -> None:
    """Rows of a window that is the whole table leave in the order of their last use; used rows stay."""
    table = DeviceTable(LAYOUT, ["t"], seed=1, target=target)
    for step in range(1, 9):
        for keys in (np.arange(10 * step, 10 * step + 10), np.arange(5)):
            address = table.work.upload("keys", keys)
            search = table.search(table.number(address, len(keys)), step=step)
            table.work.synchronize()
            table.insert(search.batch())
    table.mark()
    table.update([20], np.ones((1, LAYOUT.dim), np.float32))
    leaving = table.evict(24, step=8, since=1)
    table.work.synchronize()
    assert table.left(leaving) == 24
    keys, rows = leaving.keys, leaving.rows
    assert keys.tolist() == list(range(10, 34)) and not leaving.tables.any()
    assert [part.tolist() for part in leaving.changes()[:2]] == [[20], [0]]
    assert len(table) == 61 and (table.find(keys) == MISSING_ROW).all()
    np.testing.assert_array_equal(rows[0], initial_row(LAYOUT, "t", 1, 10))
    leaving = table.evict(46, step=8, since=1, busy=15)
    assert len(table) == 15
    table.work.synchronize()
    assert table.left(leaving) == 46 and sorted(leaving.keys.tolist()) == list(range(34, 80))
    leaving = table.evict(3, step=8, since=1)
    table.work.synchronize()
    assert table.left(leaving) == 0 == len(leaving.changes()[0]) and len(table) == 15
    assert table.find_or_insert(np.arange(200, 265)).max() < 85


def same_tables(
    tables: dict[str, DynamicTable], others: dict[str, DynamicTable], marks: dict[str, int]
) -> dict[str, int]:
    """Compares rows changed since the marks, and makes new ones."""
    for name, table in tables.items():
        (keys, rows), (other_keys, other_rows) = (one.export(marks[name]) for one in (table, others[name]))
        order, other_order = np.argsort(keys), np.argsort(other_keys)
        np.testing.assert_array_equal(keys[order], other_keys[other_order])
        np.testing.assert_array_equal(rows[order], other_rows[other_order])
        np.testing.assert_array_equal(table.find(keys), others[name].find(keys))
    return {name: (table.mark(), others[name].mark())[0] for name, table in tables.items()}


def a_cache_can_be_dropped(target: Target) -> None:
    """After host tables are filled again, the device reads them, not what it held."""
    hosts = tables()
    cache = GpuCache(hosts, budget_rows=100, target=target)
    front = CachedFields(cache, [("ad", "ad")])
    offsets, keys = np.arange(4, dtype=np.int32), np.array([5, 6, 5], np.int64)
    (values,) = front.forward(offsets, keys, 3)
    front.backward(np.ones(values.shape, np.float32))
    hosts["ad"].assign([5], np.full((1, FIELD_LAYOUT.stride), 2, np.float32))
    cache.drop()
    assert len(cache) == 0
    (values,) = front.forward(offsets, keys, 3)
    assert (on_host(values)[[0, 2]] == 2).all() and (on_host(values)[1] != 2).all()


def uses_and_erasures_reach_the_host(target: Target) -> None:
    """Host tables that keep track of use know of every use, and erased rows are erased in both places."""
    both = [
        {name: DynamicTable(FIELD_LAYOUT, name=name, seed=4, track=True, half_life=4) for name in tables()}
        for _ in range(2)
    ]
    plain, cache = FieldTables(both[0], FIELDS), GpuCache(both[1], budget_rows=500, target=target)
    front, rng = CachedFields(cache, FIELDS), np.random.default_rng(2)
    batches = [ragged(rng, 40, len(FIELDS), 400) for _ in range(12)]
    for step, (offsets, keys) in enumerate(batches):
        for table in (*both[0].values(), *both[1].values()):
            table.now(step)
        if step % 3 and step + 1 < len(batches):
            front.prefetch(*batches[step + 1], 40)
        (expected,), (got,) = plain.forward(offsets, keys, 40), front.forward(offsets, keys, 40)
        np.testing.assert_array_equal(expected, on_host(got))
        assert plain.backward(expected) == front.backward(expected)
        if step % 4:
            cache.end_step()
        if step % 2:  # then nothing is known ahead
            gone = both[0]["ad"].oldest(20)
            assert both[0]["ad"].erase(gone) == cache.erase("ad", gone) == 20
        requested = np.arange(400)
        for one, other in zip(both[0]["ad"].usage(requested), both[1]["ad"].usage(requested), strict=True):
            np.testing.assert_array_equal(one, other)
    assert cache.hits > 0 and cache.evicted > 0 and cache.prefetched > 0
    cache.flush()
    host, device = both
    same_tables(host, device, dict.fromkeys(host, 0))


def wrong_calls_are_told(target: Target) -> None:
    cache = GpuCache(tables(), budget_rows=2, target=target)
    front = CachedFields(cache, [("ad", "ad"), ("liked", "ad")])
    offsets = np.array([0, 1, 2], np.int32)
    with pytest.raises(RuntimeError, match="forward before"):
        front.backward(np.zeros((1, 2, FIELD_LAYOUT.dim), np.float32))
    for bad in ([1, 1, 2], [0, 2, 1], [0, 1, 1]):
        with pytest.raises(ValueError, match="offsets must start at 0"):
            front.forward(np.array(bad, np.int32), [1, 2], 1)
    with pytest.raises(ConfigError, match="3 distinct keys, but the GPU may hold 2 rows"):
        front.forward(np.array([0, 2, 3], np.int32), [1, 2, 3], 1)
    front.forward(offsets, [1, 2], 1)
    with pytest.raises(ValueError, match=r"expected float32 of shape \(1, 2, 9\)"):
        front.backward(np.zeros((1, 2, 8), np.float32))
    cache.tables["ad"].admit_after(2, 1024)
    with pytest.raises(ConfigError, match="admission"):
        front.forward(offsets, [1, 2], 1)
    table = DeviceTable(LAYOUT, ["t"], seed=1, target=target)
    with pytest.raises(ValueError, match="expected"):
        table.find([1.5])
    with pytest.raises(ValueError, match=r"expected shape \(2, 5\)"):
        table.update([1, 2], np.zeros((2, 4), np.float32))
    with pytest.raises(ValueError, match="since"):
        table.export(0, -1)
    assert len(table.find([])) == 0 and len(table.export()[0]) == 0


def on_host(array: Any) -> np.ndarray:
    """A device's array as NumPy's."""
    return array if isinstance(array, np.ndarray) else array.get()
