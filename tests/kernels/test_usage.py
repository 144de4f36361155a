"""Usage of rows against a dict; erased keys, as deltas need them."""

import os
import sys

import numpy as np
import pytest
from hypothesis import strategies as st
from hypothesis.stateful import Bundle, RuleBasedStateMachine, invariant, rule

from livectr.kernels.runtime.compiler import KERNELS
from livectr.kernels.table.field_tables import FieldTables
from livectr.kernels.table.layout import SGD, RowLayout, Segment
from livectr.kernels.table.table import DynamicTable
from tests.commands import run
from tests.kernels.usage_digest import LAYOUT
from tests.tiers import examples

KEYS = st.lists(st.one_of(st.sampled_from([-1, 2**63 - 1, -(2**63)]), st.integers(0, 40)), max_size=30)
HALF_LIFE = 5
USE = 256


def sets(keys: np.ndarray) -> set[int]:
    assert len(set(keys.tolist())) == len(keys)
    return set(keys.tolist())


class UseIsADict(RuleBasedStateMachine):
    """Stamps, counts, choices and tombstones after any sequence of calls."""

    marks = Bundle("marks")

    def __init__(self) -> None:
        super().__init__()
        self.table = DynamicTable(LAYOUT, name="t", seed=3, track=True, half_life=HALF_LIFE)
        self.front = FieldTables({"t": self.table}, [("a", "t"), ("b", "t")])
        self.use: dict[int, tuple[int, int]] = {}  # key -> stamp, count
        self.gone: dict[int, int] = {}  # key -> generation of its last erase
        self.stamp = 0
        self.generation = 1
        self.forgotten = 0

    def aged(self, key: int) -> int:
        stamp, count = self.use[key]
        return count >> (self.stamp // HALF_LIFE - stamp // HALF_LIFE)

    def used(self, keys: list[int]) -> None:
        for key in set(keys):
            count = self.aged(key) if key in self.use else 0
            self.use[key] = self.stamp, count + USE

    @rule(more=st.integers(0, 12))
    def now(self, more: int) -> None:
        self.stamp += more
        self.table.now(self.stamp)

    @rule(keys=KEYS)
    def find_or_insert(self, keys: list[int]) -> None:
        self.table.find_or_insert(np.array(keys, np.int64))
        self.used(keys)

    @rule(keys=KEYS)
    def update(self, keys: list[int]) -> None:
        self.table.update(np.array(keys, np.int64), np.ones((len(keys), 2), np.float32))
        self.used(keys)

    @rule(keys=KEYS, again=KEYS, learn=st.booleans())
    def forward(self, keys: list[int], again: list[int], learn: bool) -> None:
        offsets = np.array([0, len(keys), len(keys) + len(again)], np.int32)
        (out,) = self.front.forward(offsets, np.array(keys + again, np.int64), 1)
        if learn:
            self.front.backward(np.ones_like(out))
        self.used(keys + again)

    @rule(keys=KEYS)
    def assign(self, keys: list[int]) -> None:
        """A row that is stored again was not used."""
        self.table.assign(np.array(keys, np.int64), np.ones((len(keys), LAYOUT.stride), np.float32))
        for key in keys:
            self.use.setdefault(key, (self.stamp, 0))

    @rule(keys=KEYS, announce=st.booleans())
    def erase(self, keys: list[int], announce: bool) -> None:
        there = {key for key in keys if self.use.pop(key, None) is not None}
        assert self.table.erase(np.array(keys, np.int64), announce=announce) == len(there)
        if announce:
            self.gone |= dict.fromkeys(there, self.generation)

    @rule()
    def clear(self) -> None:
        """Rows go, and what was noted of them; the stamp and marks continue."""
        self.table.clear()
        self.use.clear()
        self.gone.clear()
        self.forgotten = max(self.forgotten, self.generation - 1)

    @rule(keys=KEYS)
    def restore(self, keys: list[int]) -> None:
        self.table.restore(np.array(keys, np.int64), np.ones((len(keys), LAYOUT.stride), np.float32))
        for key in keys:
            self.use.setdefault(key, (self.stamp, 0))

    @rule(keys=KEYS, stamp=st.integers(0, 30), count=st.integers(0, 2**32 - 1))
    def set_usage(self, keys: list[int], stamp: int, count: int) -> None:
        stamp, n = min(stamp, self.stamp), len(keys)
        self.table.set_usage(
            np.array(keys, np.int64), np.full(n, stamp, np.uint32), np.full(n, min(count, 2**31), np.uint32)
        )
        for key in set(keys) & self.use.keys():
            self.use[key] = stamp, min(count, 2**31)

    @rule(target=marks)
    def mark(self) -> int:
        self.generation += 1
        return self.table.mark()

    @rule(mark=marks)
    def forget(self, mark: int) -> None:
        self.table.forget(mark)
        self.forgotten = max(self.forgotten, mark)

    @rule(since=marks)
    def erased_since(self, since: int) -> None:
        if since < self.forgotten:
            with pytest.raises(ValueError, match="forgotten"):
                self.table.erased(since)
            return
        expected = sorted(key for key, at in self.gone.items() if at > since and key not in self.use)
        assert self.table.erased(since).tolist() == expected

    @rule(count=st.integers(0, 50))
    def oldest(self, count: int) -> None:
        expected = sorted(self.use, key=lambda key: (self.use[key][0], key))[:count]
        assert sets(self.table.oldest(count)) == set(expected)

    @rule(count=st.integers(0, 50))
    def rarest(self, count: int) -> None:
        expected = sorted(self.use, key=lambda key: (self.aged(key), self.use[key][0], key))[:count]
        assert sets(self.table.rarest(count)) == set(expected)

    @rule(stamp=st.integers(-1, 200))
    def older_than(self, stamp: int) -> None:
        assert sets(self.table.older_than(stamp)) == {key for key, (at, _) in self.use.items() if at < stamp}

    @invariant()
    def usage(self) -> None:
        keys = sorted(self.use)
        stamps, counts = self.table.usage(np.array([*keys, 777], np.int64))
        assert list(zip(stamps.tolist(), counts.tolist(), strict=True)) == [
            *(self.use[k] for k in keys),
            (0, 0),
        ]
        assert len(self.table) == len(keys)


TestUseIsADict = UseIsADict.TestCase
TestUseIsADict.settings = examples(60, stateful_step_count=30)


def test_choices_of_many_rows_are_those_of_a_sort() -> None:
    """More rows than a chunk or a task, skewed stamps, erased rows between them."""
    rng = np.random.default_rng(0)
    table = DynamicTable(RowLayout((Segment("w", 1, SGD()),)), name="t", seed=1, track=True, half_life=1000)
    keys = rng.integers(-(2**63), 2**63 - 1, 700_000)
    table.now(300_000)
    table.assign(keys, np.zeros((len(keys), 1), np.float32))
    stamps = (300_000 * rng.random(len(keys)) ** 4).astype(np.uint32)
    counts = (rng.random(len(keys)) ** 8 * 2**32).astype(np.uint32)
    table.set_usage(keys, stamps, counts)
    gone = rng.random(len(keys)) < 0.2
    table.erase(keys[gone])
    keys, stamps, counts = keys[~gone], stamps[~gone], counts[~gone]
    aged = counts >> np.minimum(300 - stamps // 1000, 31)
    aged[300 - stamps // 1000 > 31] = 0
    for count in (1, 1000, len(keys) // 2, len(keys)):
        assert sets(table.oldest(count)) == set(keys[np.lexsort((keys, stamps))][:count].tolist())
        assert sets(table.rarest(count)) == set(keys[np.lexsort((keys, stamps, aged))][:count].tolist())


def test_a_count_saturates() -> None:
    table = DynamicTable(LAYOUT, name="t", seed=1, track=True, half_life=1)
    table.find_or_insert([5])
    table.set_usage([5], np.zeros(1, np.uint32), np.array([2**32 - 100], np.uint32))
    table.find_or_insert([5])
    assert table.usage([5])[1] == 2**32 - 1


@pytest.mark.parametrize("half_life", [1, 3, 7, 86_400, 641, 2**31, 2**32 - 2])
def test_a_count_halves_at_the_multiples_of_the_half_life(half_life: int) -> None:
    """Stamps beside many multiples, up to the greatest stamp."""
    now = 2**32 - 2
    table = DynamicTable(LAYOUT, name="t", seed=1, track=True, half_life=half_life)
    table.now(now)
    nearest = [max(0, (now // half_life - n) * half_life) for n in (0, 1, 2, 5, 31, 40)]
    stamps = sorted({s for near in nearest for s in (near - 1, near, near + 1) if 0 <= s <= now} | {0, now})
    keys = np.arange(len(stamps))
    table.assign(keys, np.zeros((len(keys), LAYOUT.stride), np.float32))
    table.set_usage(keys, np.array(stamps, np.uint32), np.full(len(keys), 2**31, np.uint32))
    table.find_or_insert(keys)
    expected = [(2**31 >> now // half_life - s // half_life) + USE for s in stamps]
    assert table.usage(keys)[1].tolist() == expected


def test_used_rows_are_changes() -> None:
    """A row that was scored but not learned keeps its new stamp in the next delta."""
    table = DynamicTable(LAYOUT, name="t", seed=1, track=True)
    table.find_or_insert([1, 2, 3])
    mark = table.mark()
    FieldTables({"t": table}, [("a", "t")]).forward([0, 1], [2], 1)
    assert table.export(mark)[0].tolist() == [2]


def test_memory_of_a_table_that_erases_what_it_gets_stays() -> None:
    """Ever new keys; without a mark no tombstones pile up, with marks that are forgotten neither."""
    for marks in (False, True):
        table = DynamicTable(LAYOUT, name="t", seed=1, track=True)
        sizes = []
        for step in range(60):
            table.now(step)
            table.find_or_insert(np.arange(step * 1000, step * 1000 + 1000))
            if marks and step % 5 == 0:
                table.forget(table.mark())
            if len(table) > 5000:
                table.erase(table.oldest(1000))
            sizes.append(table.nbytes)
        assert max(sizes[30:]) <= 1.2 * max(sizes[10:30])


def test_mistakes_are_told() -> None:
    plain = DynamicTable(LAYOUT, name="plain", seed=1)
    for call in (
        lambda: plain.now(1),
        lambda: plain.oldest(1),
        lambda: plain.older_than(1),
        lambda: plain.usage([1]),
    ):
        with pytest.raises(RuntimeError, match="track=True"):
            call()
    with pytest.raises(ValueError, match="half_life"):
        DynamicTable(LAYOUT, name="t", seed=1, half_life=3)
    stamped = DynamicTable(LAYOUT, name="t", seed=1, track=True)
    stamped.now(9)
    with pytest.raises(ValueError, match="at least the one before, 9, not 8"):
        stamped.now(8)
    with pytest.raises(RuntimeError, match="half_life"):
        stamped.rarest(1)


DIGEST = """
import numpy as np
from tests.kernels.usage_digest import digest
print(digest())
"""


def test_any_number_of_threads_gives_the_same_bits() -> None:
    found = set()
    for threads in ("1", "3"):
        env = {**os.environ, "LIVECTR_THREADS": threads, "PYTHONPATH": str(KERNELS.parent)}
        done = run([sys.executable, "-c", DIGEST], env=env, capture_output=True, text=True, check=True)
        found.add(done.stdout)
    assert len(found) == 1
