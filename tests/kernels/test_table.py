"""DynamicTable against a dict."""

import numpy as np
import pytest
from hypothesis import strategies as st
from hypothesis.stateful import Bundle, RuleBasedStateMachine, invariant, rule

from livectr.kernels.table.layout import FTRL, AdaGrad, RowLayout, Segment
from livectr.kernels.table.table import MISSING_ROW, DynamicTable
from tests.kernels.reference import (
    initial_row,
    mix64,
    nearest,
    signed,
    stream,
    table_seed,
    unmix64,
    updated_row,
)
from tests.tiers import examples

LAYOUT = RowLayout((Segment("w", 1, FTRL(l1=0.01)), Segment("v", 4, AdaGrad(), 0.1)))
EXTREME = [0, -1, 1, 2**63 - 1, -(2**63), 0xFFFFFFFF]
KEYS = st.lists(st.one_of(st.sampled_from(EXTREME), st.integers(0, 40)), max_size=30)


class TableIsADict(RuleBasedStateMachine):
    """Rows, changes since a mark, and sizes after any sequence of calls."""

    layout = LAYOUT
    marks = Bundle("marks")

    def __init__(self) -> None:
        super().__init__()
        self.table = DynamicTable(self.layout, name="t", seed=7)
        self.rows: dict[int, np.ndarray] = {}
        self.changed: dict[int, int] = {}  # key -> generation of its last change
        self.generation = 1
        self.forgotten = 0

    def insert(self, keys: list[int]) -> None:
        for key in keys:
            if key not in self.rows:
                self.rows[key] = initial_row(self.layout, "t", 7, key)
                self.changed[key] = self.generation

    @rule(keys=KEYS)
    def find_or_insert(self, keys: list[int]) -> None:
        self.insert(keys)
        numbers = self.table.find_or_insert(np.array(keys, np.int64))
        assert len(set(numbers.tolist())) == len(set(keys))
        assert (self.table.find(np.array(keys, np.int64)) == numbers).all()

    @rule(keys=KEYS, seed=st.integers(0, 99))
    def update(self, keys: list[int], seed: int) -> None:
        grads = np.random.default_rng(seed).normal(size=(len(keys), self.layout.dim)).astype(np.float32)
        self.insert(keys)
        sums: dict[int, np.ndarray] = {}
        for key, grad in zip(keys, grads, strict=True):
            sums[key] = sums[key] + grad if key in sums else grad
        for key, total in sums.items():
            self.rows[key] = updated_row(self.layout, self.rows[key], total, base=stream("t", 7, key))
            self.changed[key] = self.generation
        assert self.table.update(np.array(keys, np.int64), grads) == len(sums)

    def random_rows(self, count: int, seed: int) -> tuple[np.ndarray, list[np.ndarray]]:
        """Raw rows float32[count, stride], and each as a table keeps it."""
        rows = np.random.default_rng(seed).random((count, self.layout.stride), np.float32)
        if self.layout.values != "fp32":
            rows[:, -1] = seed  # the number of updates
        dim = self.layout.dim
        return rows, [np.append(nearest(row[:dim], self.layout.values), row[dim:]) for row in rows]

    @rule(keys=KEYS, seed=st.integers(0, 99))
    def assign(self, keys: list[int], seed: int) -> None:
        rows, kept = self.random_rows(len(keys), seed)
        for key, row in zip(keys, kept, strict=True):
            self.rows[key] = row
            self.changed[key] = self.generation
        assert self.table.assign(np.array(keys, np.int64), rows) == len(set(keys))

    @rule(keys=KEYS)
    def erase(self, keys: list[int]) -> None:
        there = {key for key in keys if self.rows.pop(key, None) is not None}
        assert self.table.erase(np.array(keys, np.int64)) == len(there)

    @rule(keys=KEYS, seed=st.integers(0, 99))
    def restore_is_no_change(self, keys: list[int], seed: int) -> None:
        rows, kept = self.random_rows(len(keys), seed)
        for key, row in zip(keys, kept, strict=True):
            if key not in self.rows:
                self.rows[key], self.changed[key] = row, 0
        self.table.restore(np.array(keys, np.int64), rows)

    @rule()
    def generations(self) -> None:
        keys = list(self.rows)
        reported = self.table.generations(self.table.find(np.array(keys, np.int64)))
        assert reported.tolist() == [self.changed[key] for key in keys]

    @rule()
    def clear(self) -> None:
        self.table.clear()
        self.rows.clear()
        self.forgotten = self.generation - 1

    @rule(keys=KEYS)
    def lookup_stores_nothing(self, keys: list[int]) -> None:
        array = np.array(keys, np.int64)
        for missing in ("initial", "zeros"):
            got = self.table.lookup(array, missing=missing)
            for key, values in zip(keys, got, strict=True):
                zeros = np.zeros(self.layout.stride)
                absent = initial_row(self.layout, "t", 7, key) if missing == "initial" else zeros
                np.testing.assert_array_equal(values, self.rows.get(key, absent)[: self.layout.dim])
        assert [row != MISSING_ROW for row in self.table.find(array)] == [key in self.rows for key in keys]

    @rule(target=marks)
    def mark(self) -> int:
        assert self.table.mark() == self.generation
        self.generation += 1
        return self.generation - 1

    @rule(mark=marks)
    def export_since(self, mark: int) -> None:
        if mark < self.forgotten:
            with pytest.raises(ValueError, match="forgotten"):
                self.table.export(mark)
            return
        keys, rows = self.table.export(mark)
        assert sorted(keys.tolist()) == sorted(key for key in self.rows if self.changed[key] > mark)
        for key, row in zip(keys.tolist(), rows, strict=True):
            np.testing.assert_array_equal(row, self.rows[key])

    @rule(mark=marks)
    def forget(self, mark: int) -> None:
        self.table.forget(mark)
        self.forgotten = max(self.forgotten, mark)

    @invariant()
    def equals_the_dict(self) -> None:
        assert len(self.table) == len(self.rows)
        keys, rows = self.table.export()
        assert sorted(keys.tolist()) == sorted(self.rows)
        for key, row in zip(keys.tolist(), rows, strict=True):
            np.testing.assert_array_equal(row, self.rows[key])


TestTableIsADict = TableIsADict.TestCase
TestTableIsADict.settings = examples(60, stateful_step_count=25)


class HalfTableIsADict(TableIsADict):
    """Values of 2 bytes, with their rounding."""

    layout = RowLayout(LAYOUT.segments, "fp16")


class BrainTableIsADict(TableIsADict):
    """The same checks with the other type."""

    layout = RowLayout(LAYOUT.segments, "bf16")


TestHalfTableIsADict = HalfTableIsADict.TestCase
TestHalfTableIsADict.settings = examples(25, stateful_step_count=20)
TestBrainTableIsADict = BrainTableIsADict.TestCase
TestBrainTableIsADict.settings = examples(25, stateful_step_count=20)


def test_churn_over_many_segments_equals_a_dict() -> None:
    rng = np.random.default_rng(3)
    table = DynamicTable(RowLayout((Segment("v", 1, AdaGrad()),)), name="churn", seed=0)
    model: dict[int, float] = {}
    for step in range(30):
        keys = rng.integers(-20_000, 20_000, 3_000)
        values = rng.normal(size=(len(keys), 2)).astype(np.float32)
        table.assign(keys, values)
        model.update(zip(keys.tolist(), values[:, 0].tolist(), strict=True))
        gone = rng.integers(-20_000, 20_000, 2_500 if step % 10 else 60_000)
        assert table.erase(gone) == sum(model.pop(key, None) is not None for key in set(gone.tolist()))
        assert len(table) == len(model)
        requested = rng.integers(-20_000, 20_000, 5_000)
        found = table.find(requested) != MISSING_ROW
        assert found.tolist() == [key in model for key in requested.tolist()]
        expected = [model.get(key, 0.0) for key in requested.tolist()]
        assert table.lookup(requested, missing="zeros")[:, 0].tolist() == expected


def test_keys_that_share_a_home_slot() -> None:
    """Clusters that wrap around a segment's end survive erases in any order."""
    table = DynamicTable(RowLayout((Segment("v", 1, AdaGrad()),)), name="cluster", seed=0)
    salt = mix64(table_seed("cluster", 0) ^ 1)
    hashes = [high << 20 | slot for slot in (509, 510, 511, 0, 1) for high in range(40)]
    keys = np.array([signed(unmix64(h) ^ salt) for h in hashes], np.int64)
    rng = np.random.default_rng(1)
    for _ in range(20):
        table.find_or_insert(keys)
        gone = rng.permutation(keys)[: rng.integers(1, len(keys))]
        table.erase(gone)
        assert ((table.find(keys) == MISSING_ROW) == np.isin(keys, gone)).all()


def test_grows_beyond_a_million_keys() -> None:
    table = DynamicTable(LAYOUT, name="big", seed=1)
    keys = np.random.default_rng(5).permutation(np.arange(-600_000, 600_000) * 0x9E3779B97F4A7C1)
    for part in np.array_split(keys, 13):
        table.find_or_insert(part)
    assert len(table) == len(keys)
    assert (table.find(keys) == np.arange(len(keys))).all()
    exported, rows = table.export(state=False)
    assert (exported == keys).all() and rows.shape == (len(keys), LAYOUT.dim)
    assert 80 < table.nbytes / len(table) < 140
    table.clear()
    assert len(table) == 0 and table.nbytes < 100_000


def test_initial_values_ignore_the_order_of_insertion() -> None:
    keys = np.arange(1000)
    tables = [DynamicTable(LAYOUT, name="t", seed=3) for _ in range(2)]
    tables[0].find_or_insert(keys)
    tables[1].find_or_insert(keys[::-1])
    assert (tables[0].lookup(keys) == tables[1].lookup(keys)).all()
    other = DynamicTable(LAYOUT, name="u", seed=3)
    assert (other.lookup(keys)[:, 1:] != tables[0].lookup(keys)[:, 1:]).mean() > 0.99
    values = tables[0].lookup(np.arange(100_000))[:, 1:] / np.float32(0.1)
    assert abs(values.mean()) < 0.01 and abs(values.std() - 3**-0.5) < 0.01 and abs(values).max() <= 1


def test_rejects_what_it_cannot_read() -> None:
    table = DynamicTable(LAYOUT, name="t", seed=3)
    for keys in (np.array([1.5]), np.array([[1]]), np.array(["a"])):
        with pytest.raises(ValueError, match="expected"):
            table.find(keys)
    with pytest.raises(ValueError, match=r"expected shape \(2, 5\)"):
        table.update([1, 2], np.zeros((2, 4), np.float32))
    with pytest.raises(ValueError, match="distinct names"):
        RowLayout((Segment("v", 1, AdaGrad()), Segment("v", 2, AdaGrad())))
    with pytest.raises(ValueError, match="since"):
        table.export(-1)
    assert len(table.find([])) == 0
