"""Tables in DRAM and on SSD against tables in DRAM alone: the same rows, bit for bit."""

from collections.abc import Iterator
from dataclasses import replace
from pathlib import Path

import numpy as np
import pytest

from bench.planted import pipeline
from livectr.kernels.table.field_tables import FieldTables
from livectr.kernels.table.layout import AdaGrad, RowLayout, Segment, Values
from livectr.kernels.table.table import MISSING_ROW, DynamicTable
from livectr.system.errors import ConfigError, UserError
from livectr.trainer.des.batch import PreparedBatch
from livectr.trainer.des.item_vectors import item_vectors
from livectr.trainer.des.step import DesStep
from livectr.trainer.tables.spill import SpillStore
from livectr.trainer.tables.tiers import SLACK, Prefetched, Tiers
from tests.models.examples import SHARED
from tests.trainer import des_worker
from tests.trainer.des_worker import DENSE, FIELDS, ROLES

LAYOUT = RowLayout((Segment("v", 4, AdaGrad(), 0.1),))
ROW_BYTES = DynamicTable(LAYOUT, name="t", seed=1, track=True).row_bytes
Rows = dict[int, bytes]
BOTH = ROLES["both"]


@pytest.fixture
def tiers(tmp_path: Path) -> Iterator[Tiers]:
    """A budget of 100 rows."""
    tiers = Tiers(tmp_path, 100 * ROW_BYTES, 0)
    yield tiers
    tiers.close()


def rows_of(table: DynamicTable, since: int = 0) -> Rows:
    keys, rows = table.export(since)
    assert len(set(keys.tolist())) == len(keys)
    assert {*table.changed_keys(since).tolist()} - {*table.erased(since).tolist()} == {*keys.tolist()}
    return {key: row.tobytes() for key, row in zip(keys.tolist(), rows, strict=True)}


class Pair:
    """The same fields over tables in two tiers and in one; `step` trains both and compares what they read."""

    def __init__(self, tiers: Tiers, names: tuple[str, ...] = ("a", "b"), layout: RowLayout = LAYOUT) -> None:
        self.tiers = tiers
        self.tiered = {name: tiers.table(layout, name=name, seed=5) for name in names}
        self.whole = {name: DynamicTable(layout, name=name, seed=5) for name in names}
        fields = [(name, name) for name in names]
        self.fronts = FieldTables({**self.tiered}, fields), FieldTables(self.whole, fields)

    def keys(self, batch: np.ndarray) -> dict[str, np.ndarray]:
        return dict(zip(self.tiered, batch, strict=True))

    def step(self, batch: np.ndarray, seed: int, ahead: Prefetched | None = None) -> None:
        """batch: int64[F, B]."""
        rows = batch.shape[1]
        self.tiers.promote(ahead or self.tiers.prefetch(self.keys(batch)))
        offsets = np.arange(batch.size + 1, dtype=np.int32)
        out = [front.forward(offsets, batch.ravel(), rows)[0] for front in self.fronts]
        np.testing.assert_array_equal(out[0], out[1])
        grads = np.random.default_rng(seed).normal(size=out[0].shape).astype(np.float32)
        for front in self.fronts:
            front.backward(grads)
        self.tiers.evict()
        assert sum(table.dram_rows for table in self.tiered.values()) <= self.tiers.budget_rows + batch.size

    def check(self, since: dict[str, int] | None = None) -> None:
        for name, table in self.tiered.items():
            mark = since[name] if since else 0
            assert rows_of(table, mark) == rows_of(self.whole[name], mark)
            assert len(table) == len(self.whole[name])

    def mark(self) -> dict[str, int]:
        marks = {name: table.mark() for name, table in self.tiered.items()}
        assert marks == {name: table.mark() for name, table in self.whole.items()}
        return marks


def zipf(rng: np.random.Generator, ids: int, shape: tuple[int, int]) -> np.ndarray:
    weights = np.arange(1, ids + 1) ** -0.8
    return rng.choice(ids, shape, p=weights / weights.sum()).astype(np.int64) * 0x9E3779B97F4A7C1


@pytest.mark.parametrize(("prefetch", "values"), [(True, "fp32"), (False, "fp32"), (True, "bf16")])
def test_ten_times_the_budget_trains_the_same_table(tiers: Tiers, prefetch: bool, values: Values) -> None:
    pair = Pair(tiers, layout=RowLayout(LAYOUT.segments, values))
    rng = np.random.default_rng(1)
    batches = [zipf(rng, 800, (2, 40)) for _ in range(120)]
    ahead: Prefetched | None = None
    marks: list[dict[str, int]] = []
    for n, batch in enumerate(batches):
        # as the trainer does: batch n + 1 is prefetched before n is promoted
        now, ahead = ahead, None
        if prefetch and n + 1 < len(batches):
            ahead = tiers.prefetch(pair.keys(batches[n + 1]))
        pair.step(batch, n, now)
        if n % 10 == 5:
            for since in marks[-2:]:
                pair.check(since)
            marks.append(pair.mark())
            if len(marks) > 2:
                for table in (*pair.tiered.values(), *pair.whole.values()):
                    table.forget(marks[-3][table.name])
    pair.check()
    total = sum(map(len, pair.tiered.values()))
    assert total > 10 * tiers.budget_rows
    assert sum(table.dram_rows for table in pair.tiered.values()) <= tiers.budget_rows


def test_steps_taken_ahead_and_item_vectors_have_the_same_bits(tmp_path: Path) -> None:
    def run(tiers: Tiers | None) -> tuple[list[np.ndarray], dict[str, Rows]]:
        built = pipeline(BOTH[0], prerank=BOTH[1], fields=FIELDS, dense=DENSE, shared=SHARED)
        des = DesStep(built, seed=5, tier=tiers)
        rng = np.random.default_rng(2)
        reported: list[np.ndarray] = []
        held: PreparedBatch | None = None
        for n in range(30):
            features, label = des_worker.batch(rng, 20)
            features = replace(features, keys=rng.integers(0, 900, len(features.keys)))
            prepared = des.prepare(features, label)
            if held is not None:
                reported += des.learn(held).logits.values()
            held = prepared
            if n % 10 == 9:
                items = des_worker.batch(rng, 60)[0]
                reported.append(item_vectors(des, replace(items, keys=rng.integers(0, 900, len(items.keys)))))
        if tiers is not None:
            assert sum(table.spilled_rows for table in tiers.tables.values()) > 5 * tiers.budget_rows
        return reported, {name: rows_of(table) for name, table in des.tables.items()}

    tiers = Tiers(tmp_path, 60_000, 0)
    (reported, rows), (ours, tiered) = run(None), run(tiers)
    tiers.close()
    assert len(reported) == len(ours) == 2 * 29 + 3
    for a, b in zip(reported, ours, strict=True):
        np.testing.assert_array_equal(a, b)
    assert rows == tiered


def test_a_row_read_ahead_that_changes_meanwhile_is_read_again(tiers: Tiers) -> None:
    pair = Pair(tiers, ("a",))
    key = np.zeros((1, 1), np.int64)
    pair.step(key, 0)
    for n in range(1, 5):
        pair.step(np.arange(n * 40, n * 40 + 40)[None], n)
    assert pair.tiered["a"].find([0])[0] == MISSING_ROW
    ahead = tiers.prefetch(pair.keys(key))  # not in DRAM: is read
    pair.step(key, 9)  # brought, trained …
    for n in range(11, 15):
        pair.step(np.arange(n * 40, n * 40 + 40)[None], n)  # … and sent down again
    assert pair.tiered["a"].find([0])[0] == MISSING_ROW
    pair.step(key, 10, ahead)
    pair.check()


def test_rows_that_a_batch_read_ahead_needs_stay(tiers: Tiers) -> None:
    pair = Pair(tiers, ("a",))
    early = np.arange(20)[None]
    pair.step(early, 0)
    ahead = tiers.prefetch(pair.keys(early))
    for n in range(1, 6):
        pair.step(np.arange(n * 40, n * 40 + 40)[None], n)
    assert (pair.tiered["a"].find(early[0]) != MISSING_ROW).all()
    pair.step(early, 7, ahead)
    for n in range(11, 16):
        pair.step(np.arange(n * 40, n * 40 + 40)[None], n)
    assert (pair.tiered["a"].find(early[0]) == MISSING_ROW).all()
    pair.check()


def test_every_call_of_a_table_finds_both_tiers(tiers: Tiers) -> None:
    table, whole = tiers.table(LAYOUT, name="t", seed=5), DynamicTable(LAYOUT, name="t", seed=5)
    both = (table, whole)
    rng = np.random.default_rng(3)
    keys = rng.permutation(1000)
    rows = rng.random((1000, LAYOUT.stride), np.float32)
    for t in both:
        assert t.assign(keys, rows) == 1000
    assert table.dram_rows <= tiers.budget_rows and len(table) == 1000
    marks = [t.mark() for t in both]
    some = rng.permutation(1200)[:300]
    np.testing.assert_array_equal(table.lookup(some), whole.lookup(some))
    np.testing.assert_array_equal(table.lookup(some, missing="zeros"), whole.lookup(some, missing="zeros"))
    grads = rng.normal(size=(300, LAYOUT.dim)).astype(np.float32)
    for t in both:
        assert t.update(some, grads) == 300
        t.assign(some[:9], rows[:9])
        t.find_or_insert(np.arange(1195, 1205))
    tiers.evict()
    assert rows_of(table, marks[0]) == rows_of(whole, marks[1])
    assert [t.erase(some[100:200]) for t in both] == [100, 100]
    tiers.evict()
    assert rows_of(table) == rows_of(whole) and len(table) == len(whole)
    assert rows_of(table, marks[0]) == rows_of(whole, marks[1])
    assert table.erased(marks[0]).tolist() == sorted(some[100:200].tolist())
    table.find_or_insert(some[100:150])
    for _ in range(3):
        table.find_or_insert(rng.integers(2000, 3000, 100))
        tiers.evict()
    assert table.erased(marks[0]).tolist() == sorted(some[150:200].tolist())  # others are back, some below
    table.clear()
    assert len(table) == 0 and not rows_of(table)
    np.testing.assert_array_equal(table.lookup(keys), DynamicTable(LAYOUT, name="t", seed=5).lookup(keys))


def test_moving_rows_changes_nothing_that_is_exported(tiers: Tiers) -> None:
    table = tiers.table(LAYOUT, name="t", seed=5)
    table.find_or_insert(np.arange(500))
    tiers.evict()
    mark = table.mark()
    for start in range(0, 500, 50):  # every row goes up and down, unused
        tiers.promote(tiers.prefetch({"t": np.arange(start, start + 50)}))
        tiers.evict()
    assert not rows_of(table, mark) and not len(table.erased(mark)) and len(table) == 500


def test_chunks_bound_what_is_held_at_once(tiers: Tiers, monkeypatch: pytest.MonkeyPatch) -> None:
    for module in (
        "livectr.kernels.table.table",
        "livectr.trainer.tables.tiered_table",
        "livectr.trainer.tables.tiers",
    ):
        monkeypatch.setattr(f"{module}.CHUNK", 64)
    table = tiers.table(LAYOUT, name="t", seed=5)
    for start in range(0, 1000, 50):
        table.find_or_insert(np.arange(start, start + 50))
        tiers.evict()
    sizes = [len(keys) for keys, rows in table.chunks()]
    assert sum(sizes) == 1000 and max(sizes) <= 64


def test_the_store_by_itself(tmp_path: Path) -> None:
    store = SpillStore(tmp_path, 3)
    rng = np.random.default_rng(0)
    keys = np.r_[rng.integers(-(2**63), 2**63 - 1, 500), [0, -1, 2**63 - 1, -(2**63)]]
    rows = rng.integers(0, 256, (len(keys), 24), np.uint8)
    for number in (0, 1):
        store.put(number, keys, rows + np.uint8(number))
    store.put(1, keys[:5], rows[5:10])
    found, got = store.get(1, np.r_[keys[::-1], 12345], 24)
    assert found[:-1].all() and not found[-1]
    np.testing.assert_array_equal(got, np.r_[rows[5:10], (rows + np.uint8(1))[5:]][::-1])
    store.erase(0, keys[3:9])
    parts = list(store.scan(0, 100))
    assert max(len(part) for part, _ in parts) == 100
    scanned = {
        k: row.tobytes() for part, values in parts for k, row in zip(part.tolist(), values, strict=True)
    }
    kept = np.r_[np.arange(3), np.arange(9, len(keys))]
    assert scanned == {int(keys[i]): rows[i].tobytes() for i in kept}
    store.clear(0)
    assert not list(store.scan(0, 100)) and store.get(1, keys, 24)[0].all()
    with pytest.raises(ConfigError, match="another trainer keeps its rows"):
        SpillStore(tmp_path, 3)
    SpillStore(tmp_path, 4).close()
    store.close()
    assert not (tmp_path / "livectr-spill-3").exists()
    SpillStore(tmp_path, 3).close()


def test_a_store_that_fails_stops_training(tiers: Tiers, monkeypatch: pytest.MonkeyPatch) -> None:
    table = tiers.table(LAYOUT, name="t", seed=5)

    def full(*_: object) -> None:
        raise UserError("spill: rows cannot be written (No space left on device)")

    monkeypatch.setattr(SpillStore, "put", full)
    table.find_or_insert(np.arange(200))
    tiers.evict()
    with pytest.raises(UserError, match="No space left"):
        tiers.promote(tiers.prefetch({"t": np.arange(200)}))


@pytest.mark.parametrize("where", ["a file", "a folder that cannot be made"])
def test_folders_that_cannot_be_used(tmp_path: Path, where: str) -> None:
    file = tmp_path / "file"
    file.touch()
    with pytest.raises(ConfigError, match=r"spill: .* name another folder"):
        Tiers(file if where == "a file" else file / "below", 1 << 20, 0)


def test_a_budget_below_a_few_rows(tmp_path: Path) -> None:
    tiers = Tiers(tmp_path, SLACK * ROW_BYTES - 1, 0)
    with pytest.raises(ConfigError, match=r"dram_bytes is .* give it more"):
        tiers.table(LAYOUT, name="t", seed=1)
    tiers.close()


def test_loading_a_table_keeps_to_the_memory(tmp_path: Path) -> None:
    """A row number is memory that stays in use: none is given to rows that wait for eviction."""
    tiers = Tiers(tmp_path, 3_200 * ROW_BYTES, 0)
    tables = [tiers.table(LAYOUT, name=name, seed=5) for name in "abc"]
    for table in tables:
        table.assign(np.arange(20_000), np.zeros((20_000, LAYOUT.stride), np.float32))
    assert sum(table.end for table in tables) <= tiers.budget_rows + 2 * len(tables) * tiers.part_rows
    assert all(len(table) == 20_000 for table in tables)
    tiers.close()
