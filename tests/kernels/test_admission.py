"""Admission against exact counts, and what a key that is kept out gets."""

import os
import sys

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

from livectr.kernels.runtime.compiler import KERNELS
from livectr.kernels.table.field_tables import FieldTables
from livectr.kernels.table.table import MISSING_ROW, DynamicTable
from tests.commands import run
from tests.kernels.reference import M64, mix64, table_seed
from tests.kernels.sifting_table import LAYOUT, sifting
from tests.tiers import examples


def learn(front: FieldTables, keys: list[int], again: list[int]) -> np.ndarray:
    offsets = np.array([0, len(keys), len(keys) + len(again)], np.int32)
    (out,) = front.forward(offsets, np.array(keys + again, np.int64), 1)
    front.backward(np.ones_like(out))
    return np.asarray(out[0])


BATCH = st.tuples(st.lists(st.integers(0, 9), max_size=6), st.lists(st.integers(0, 9), max_size=6))


@examples(60)
@given(after=st.integers(2, 5), batches=st.lists(BATCH, max_size=12))
def test_a_key_enters_with_its_kth_batch(after: int, batches: list[tuple[list[int], list[int]]]) -> None:
    """With room enough counts are exact; what enters, and what a table without admission would make of it."""
    table, front = sifting(after)
    plain = DynamicTable(LAYOUT, name="t", seed=3)
    seen: dict[int, int] = {}
    entered = refused = 0
    for keys, again in batches:
        for key in {*keys, *again}:
            if seen.setdefault(key, 0) < after:
                seen[key] += 1
                entered += seen[key] == after
                refused += seen[key] < after
        stored = {key for key, count in seen.items() if count >= after}
        expected = np.array([plain.lookup(np.array(f, np.int64)).sum(0) for f in (keys, again)])
        got = learn(front, keys, again)
        assert np.allclose(got, expected, rtol=1e-6, atol=1e-7)
        learned = np.array([key for key in keys + again if key in stored], np.int64)
        plain.update(learned, np.ones((len(learned), 2), np.float32))
        assert sorted(table.export()[0].tolist()) == sorted(stored)
    keys_there = np.array(sorted(seen), np.int64)
    assert (table.lookup(keys_there) == plain.lookup(keys_there)).all()
    assert table.admission_counts() == (entered, refused)


def test_estimates_are_never_low_and_seldom_high() -> None:
    """A sketch at the most that it holds: of keys that are seen once at most 3 % enter."""
    table, front = sifting(2, 1 << 16)
    keys = np.random.default_rng(0).integers(-(2**63), 2**63 - 1, 8000)  # just before the halving
    learn(front, keys[:4000].tolist(), keys[4000:].tolist())
    assert 0 < len(table) < 0.03 * len(keys)
    learn(front, keys[:100].tolist(), [])
    assert (table.find(keys[:100]) != MISSING_ROW).all()


def test_a_table_that_was_cleared_continues_sifting() -> None:
    table, front = sifting(3)
    learn(front, [5], [])
    learn(front, [5], [6])
    table.clear()
    learn(front, [6], [])
    assert len(table) == 0
    learn(front, [5], [6])
    assert sorted(table.export()[0].tolist()) == [5, 6]


def test_sightings_fade() -> None:
    """A key that comes back after many others were seen begins again; one that comes often enters."""
    table, front = sifting(3, 1 << 14)
    learn(front, [1], [])
    for batch in range(20):
        learn(front, list(range(10_000 + batch * 200, 10_200 + batch * 200)), [2])
    learn(front, [1], [])
    assert table.find([1]) == MISSING_ROW
    assert table.find([2]) != MISSING_ROW


def test_rows_that_are_stored_are_not_sifted() -> None:
    table, front = sifting(5)
    table.find_or_insert([1])
    learn(front, [1, 2], [])
    assert table.export()[0].tolist() == [1]
    assert table.admission_counts() == (0, 1)


def test_a_sketch_resumes_where_it_was_saved() -> None:
    rng = np.random.default_rng(1)
    batches = [(300 * rng.random(100) ** 2).astype(int).tolist() for _ in range(30)]
    whole, whole_front = sifting(4, 1 << 11)
    half, half_front = sifting(4, 1 << 11)
    for batch in batches[:12]:
        learn(whole_front, batch, [])
        learn(half_front, batch, [])
    later, later_front = sifting(4, 1 << 11)
    later.load_sketch(*half.sketch())
    later.assign(*half.export())
    for batch in batches[12:]:
        learn(whole_front, batch, [])
        learn(later_front, batch, [])
    assert sorted(later.export()[0].tolist()) == sorted(whole.export()[0].tolist())
    assert (later.sketch()[0] == whole.sketch()[0]).all()
    assert later.sketch()[1] == whole.sketch()[1]


def test_order_and_places_do_not_matter() -> None:
    """Keys of a batch in another order, in other fields, more often: the same enter, colliding or not."""
    rng = np.random.default_rng(2)
    one, one_front = sifting(3, 512)
    two, two_front = sifting(3, 512)
    for _ in range(40):
        keys = (40 * rng.random(20) ** 2).astype(int).tolist()
        learn(one_front, keys, [])
        learn(two_front, keys[:7], rng.permutation([*keys, *keys[:3]]).tolist())
    assert len(one) > 10
    assert sorted(one.export()[0].tolist()) == sorted(two.export()[0].tolist())


class Sketch:
    """Count-min sketch with conservative update and halving, key by key."""

    def __init__(self, width: int, salt: int) -> None:
        self.cells, self.salt, self.seen = np.zeros((4, width), np.uint8), salt, 0

    def see(self, key: int) -> int:
        """Count a sighting; return the estimate with it."""
        width = self.cells.shape[1]
        code = mix64(key & M64 ^ self.salt)
        at = range(4), [(code + i * (mix64(code) | 1)) % width for i in range(4)]
        estimate = int(self.cells[at].min()) + 1
        self.cells[at] = np.maximum(self.cells[at], estimate)
        self.seen += 1
        if self.seen >= width // 2:
            self.cells //= 2
            self.seen //= 2
        return estimate


def test_counts_are_those_of_a_sketch_in_python() -> None:
    """In so small a sketch most keys share cells. A batch is counted in rising order of its keys."""
    rng = np.random.default_rng(6)
    table, front = sifting(3, 512)
    sketch, stored = Sketch(128, mix64(table_seed("t", 3) ^ 2)), set[int]()
    refused = 0
    for _ in range(60):
        keys = ((40 * rng.random(20) ** 2).astype(int) - 10).tolist()
        (out,) = front.forward(np.array([0, 7, 20], np.int32), np.array(keys, np.int64), 1)
        for key in sorted({*keys} - stored):
            if sketch.see(key) >= 3:
                stored.add(key)
            else:
                refused += 1
        assert front.backward(np.ones_like(out)) == len({*keys} & stored)
        cells, seen = table.sketch()
        assert (cells == sketch.cells).all() and seen == sketch.seen
        assert sorted(table.export()[0].tolist()) == sorted(stored)
    assert table.admission_counts() == (len(stored), refused) and len(stored) > 10 < refused


def test_mistakes_are_told() -> None:
    table = DynamicTable(LAYOUT, name="user", seed=3)
    with pytest.raises(ValueError, match="'user': sightings are 2 to 127, not 1"):
        table.admit_after(1, 1 << 20)
    with pytest.raises(ValueError, match="at least 64 bytes"):
        table.admit_after(2, 3)
    table.admit_after(2, 1 << 10)
    with pytest.raises(ValueError, match="shape"):
        table.load_sketch(np.zeros((4, 128), np.uint8), 0)


DIGEST = "from tests.kernels.sifting_table import digest; print(digest())"


def test_any_number_of_threads_gives_the_same_bits() -> None:
    found = set()
    for threads in ("1", "3"):
        env = {**os.environ, "LIVECTR_THREADS": threads, "PYTHONPATH": str(KERNELS.parent)}
        done = run([sys.executable, "-c", DIGEST], env=env, capture_output=True, text=True, check=True)
        found.add(done.stdout)
    assert len(found) == 1
