"""FieldTables against loops in NumPy; the same bits with any number of threads."""

import os
import sys
import threading

import numpy as np
import pytest
import torch

from livectr.kernels.runtime.compiler import KERNELS
from livectr.kernels.table.field_tables import FieldTables
from livectr.kernels.table.layout import AdaGrad, RowLayout, Segment
from livectr.kernels.table.table import MISSING_ROW, DynamicTable
from tests.commands import run
from tests.kernels.ragged_fields import FIELDS, LAYOUT, Keys, Offsets, ragged, run_and_digest, tables
from tests.kernels.reference import initial_row, updated_row


class Loops:
    """FieldTables as nested loops over a dict of rows."""

    def __init__(self) -> None:
        self.rows: dict[tuple[str, int], np.ndarray] = {}

    def forward(self, offsets: Offsets, keys: Keys, batch: int) -> np.ndarray:
        out = np.zeros((batch, len(FIELDS), LAYOUT.dim), np.float32)
        for f, (_, table) in enumerate(FIELDS):
            for b in range(batch):
                for key in keys[offsets[f * batch + b] : offsets[f * batch + b + 1]].tolist():
                    row = self.rows.setdefault((table, key), initial_row(LAYOUT, table, 4, key))
                    out[b, f] += row[: LAYOUT.dim]
        return out

    def backward(self, offsets: Offsets, keys: Keys, grad: np.ndarray) -> int:
        sums: dict[tuple[str, int], np.ndarray] = {}
        for f, (_, table) in enumerate(FIELDS):
            for b in range(len(grad)):
                at = f * len(grad) + b
                for key in keys[offsets[at] : offsets[at + 1]].tolist():
                    sums[table, key] = sums.get((table, key), np.zeros(LAYOUT.dim, np.float32)) + grad[b, f]
        for place, total in sums.items():
            self.rows[place] = updated_row(LAYOUT, self.rows[place], total)
        return len(sums)


@pytest.mark.parametrize("batch", [0, 1, 7, 300])
def test_equals_loops(batch: int) -> None:
    """The longest has more unique keys of a table than a task takes."""
    rng = np.random.default_rng(batch)
    fields, loops = FieldTables(tables(), FIELDS), Loops()
    for _ in range(6):
        offsets, keys = ragged(rng, batch, len(FIELDS), 50 + 10 * batch)
        np.testing.assert_array_equal(
            fields.forward(offsets, keys, batch)[0], loops.forward(offsets, keys, batch)
        )
        grad = rng.normal(size=(batch, len(FIELDS), LAYOUT.dim)).astype(np.float32)
        assert fields.backward(grad) == loops.backward(offsets, keys, grad)
        np.testing.assert_array_equal(
            fields.infer(offsets, keys, batch)[0], loops.forward(offsets, keys, batch)
        )
    for name, table in fields.tables.items():
        keys, rows = table.export()
        assert len(keys) == sum(1 for place in loops.rows if place[0] == name)
        for key, row in zip(keys.tolist(), rows, strict=True):
            np.testing.assert_array_equal(row, loops.rows[name, key])


@pytest.mark.parametrize("groups", [0, 1, 40, 300])
def test_grouped_fields_equal_the_same_rows_written_out(groups: int) -> None:
    """ "user" and "seen" have a row a group, and "seen" shares its table with fields that do not: the table
    still learns once a step, from the same sums."""
    rng, common = np.random.default_rng(groups), (0, 2)
    batch = max(groups, 300 * (groups > 0))
    blocks = [f not in common for f in range(len(FIELDS))]
    grouped, plain = FieldTables(tables(), FIELDS, blocks), FieldTables(tables(), FIELDS)
    own = [f for f in range(len(FIELDS)) if f not in common]
    for _ in range(4):
        index = np.r_[np.arange(groups), rng.integers(0, max(groups, 1), batch - groups)]
        offsets, keys = ragged(rng, batch, len(FIELDS), 200)
        whole = [
            [keys[offsets[f * batch + b] : offsets[f * batch + b + 1]] for b in range(batch)]
            for f in range(len(FIELDS))
        ]
        for f in common:
            whole[f] = [whole[f][g] for g in index]
        shared = [cell for f, rows in enumerate(whole) for cell in (rows[:groups] if f in common else rows)]
        one = grouped.forward(*packed(shared), groups, batch)
        (all_rows,) = plain.forward(*packed([cell for rows in whole for cell in rows]), batch)
        np.testing.assert_array_equal(one[0][index], all_rows[:, common])
        np.testing.assert_array_equal(one[1], all_rows[:, own])
        # Small whole numbers: their sums are exact in whatever order.
        grad = rng.integers(-3, 4, all_rows.shape).astype(np.float32)
        sums = np.zeros(one[0].shape, np.float32)
        np.add.at(sums, index, grad[:, common])
        assert grouped.backward(sums, grad[:, own]) == plain.backward(grad)
    for name, table in grouped.tables.items():
        for one_array, other in zip(by_key(table), by_key(plain.tables[name]), strict=True):
            np.testing.assert_array_equal(one_array, other)


def packed(cells: list[Keys]) -> tuple[Offsets, Keys]:
    """Offsets and keys of the cells."""
    offsets = np.cumsum([0, *map(len, cells)]).astype(np.int32)
    return offsets, np.concatenate([*cells, np.empty(0, np.int64)])


def by_key(table: DynamicTable) -> tuple[Keys, np.ndarray]:
    """Keys and rows in the order of the keys."""
    keys, rows = table.export()
    order = np.argsort(keys)
    return keys[order], rows[order]


def test_results_that_are_held_stay() -> None:
    """forward takes the memory of results that are gone, and of no others."""
    fields = FieldTables(tables(), [("user", "user")])
    results = [fields.forward([0, 1], [key], 1)[0] for key in range(4)]
    tensor = torch.from_numpy(fields.forward([0, 1], [4], 1)[0])
    part = fields.forward([0, 1], [5], 1)[0][0, 0, 3:]
    addresses = {fields.forward([0, 1], [6], 1)[0].ctypes.data for _ in range(3)}
    assert len(addresses) == 1
    for key, result in enumerate(results):
        np.testing.assert_array_equal(result[0, 0], initial_row(LAYOUT, "user", 4, key)[: LAYOUT.dim])
    np.testing.assert_array_equal(tensor[0, 0], initial_row(LAYOUT, "user", 4, 4)[: LAYOUT.dim])
    np.testing.assert_array_equal(part, initial_row(LAYOUT, "user", 4, 5)[3 : LAYOUT.dim])


def test_infer_stores_nothing() -> None:
    fields = FieldTables(tables(), [("user", "user")])
    fields.forward([0, 1], [5], 1)
    (got,) = fields.infer([0, 1, 3], [5, 5, 6], 2)
    (zeros,) = fields.infer([0, 1, 3], [5, 5, 6], 2, missing="zeros")
    known, unknown = (initial_row(LAYOUT, "user", 4, key)[: LAYOUT.dim] for key in (5, 6))
    np.testing.assert_array_equal(got[:, 0], [known, known + unknown])
    np.testing.assert_array_equal(zeros[:, 0], [known, known])
    assert len(fields.tables["user"]) == 1


def test_missing_keys_of_all_blocks_of_rows_are_counted() -> None:
    """A request of many candidates is looked up in blocks; a key is missing as often as it occurs."""
    fields = FieldTables(tables(), FIELDS)
    rng = np.random.default_rng(3)
    fields.forward(*ragged(rng, 50, len(FIELDS), 40), 50)
    stored = {name: set(table.export()[0].tolist()) for name, table in fields.tables.items()}
    for batch in (1, 300):
        offsets, keys = ragged(rng, batch, len(FIELDS), 400)
        missing = sum(
            key not in stored[table]
            for f, (_, table) in enumerate(FIELDS)
            for key in keys[offsets[f * batch] : offsets[(f + 1) * batch]].tolist()
        )
        assert fields.infer_counted(offsets, keys, batch)[1] == missing and (missing > 100 or batch == 1)


def test_rows_of_many_fields_are_those_of_their_tables() -> None:
    fields = FieldTables(tables(), FIELDS)
    ends, keys = [0, 2, 2, 5], np.array([5, 6, 5, 6, 7])
    for table, own in (("user", [6]), ("ad", [9, 7, 5])):
        fields.tables[table].find_or_insert(own)
    user, ad = (fields.tables[table].find(part) for table, part in (("user", keys[:2]), ("ad", keys[2:])))
    np.testing.assert_array_equal(fields.find(ends, keys), [*user, *ad])
    assert (fields.find(ends, keys) == MISSING_ROW).tolist() == [True, False, False, True, False]
    for wrong in ([0, 2], [1, 5], [0, 6, 5], [0, *[5] * 6]):
        with pytest.raises(ValueError, match="do not fit 5 keys"):
            fields.find(wrong, keys)


def test_a_rank_without_fields() -> None:
    fields = FieldTables({}, [])
    assert fields.forward([0], [], 3)[0].shape == (3, 0, 0)
    assert fields.backward(np.zeros((3, 0, 0), np.float32)) == 0


def test_rejects_a_malformed_batch() -> None:
    fields = FieldTables(tables(), [("user", "user")])
    for offsets in ([0, 2, 1], [1, 1, 1], [0, 1, 2], [0, -1, 1]):
        with pytest.raises(ValueError, match="offsets must start"):
            fields.forward(offsets, [9], 2)
    with pytest.raises(ValueError, match="expected shape"):
        fields.forward([0, 1], [9], 2)
    with pytest.raises(RuntimeError, match="forward before"):
        fields.backward(np.zeros((2, 1, LAYOUT.dim), np.float32))
    fields.forward([0, 1, 1], [9], 2)
    with pytest.raises(ValueError, match="expected shape"):
        fields.backward(np.zeros((1, 1, LAYOUT.dim), np.float32))
    other = DynamicTable(RowLayout((Segment("w", 1, AdaGrad()),)), name="other", seed=4)
    with pytest.raises(ValueError, match="one row layout"):
        FieldTables({**tables(), "other": other}, [("user", "user"), ("other", "other")])


def test_bits_do_not_depend_on_threads() -> None:
    program = "from tests.kernels.ragged_fields import run_and_digest; print(run_and_digest())"
    digests = {
        run(
            [sys.executable, "-c", program],
            cwd=KERNELS.parent,
            env={**os.environ, "LIVECTR_THREADS": threads},
            capture_output=True,
            text=True,
            check=True,
        ).stdout
        for threads in ("1", "2", "5", "5")
    }
    assert digests == {run_and_digest() + "\n"}


def test_rows_of_a_task_may_have_no_keys() -> None:
    """Tasks of `infer` split the rows: the keys of the second task would begin behind those of the first."""
    fields, rows = FieldTables(tables(), FIELDS), 200
    offsets = np.ones(len(FIELDS) * rows + 1, np.int32)
    offsets[0] = 0
    (wanted,) = fields.forward(offsets, np.array([7]), rows)
    np.testing.assert_array_equal(fields.infer(offsets, np.array([7]), rows)[0], wanted)


def test_many_threads_and_a_fork_use_the_pool() -> None:
    fields = FieldTables(tables(), FIELDS)
    offsets, keys = ragged(np.random.default_rng(0), 1500, len(FIELDS), 9_000)
    (wanted,) = fields.forward(offsets, keys, 1500)
    wrong: list[int] = []

    def ask(number: int) -> None:
        for _ in range(30):
            if not np.array_equal(fields.infer(offsets, keys, 1500)[0], wanted):
                wrong.append(number)

    threads = [threading.Thread(target=ask, args=(number,)) for number in range(4)]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join()
    assert not wrong
    child = os.fork()
    if child == 0:
        os._exit(0 if np.array_equal(fields.infer(offsets, keys, 1500)[0], wanted) else 1)
    assert os.waitpid(child, 0)[1] == 0


def test_a_census_counts_like_sets() -> None:
    """Unique keys by table, and by field the keys that are missing or only restored."""
    rng = np.random.default_rng(3)
    front = FieldTables(tables(), FIELDS)
    trained, restored = {"user": set(range(0, 60)), "ad": set(range(20, 90))}, {"ad": set(range(90, 140))}
    for name, known in trained.items():
        front.tables[name].assign([*known], np.ones((len(known), LAYOUT.stride), np.float32))
    ids = [*restored["ad"]]
    front.tables["ad"].restore(ids, np.ones((len(ids), LAYOUT.stride), np.float32))
    for batch in (0, 1, 50, 300):
        offsets, keys = ragged(rng, batch, len(FIELDS), 200)
        ends = offsets[:: max(batch, 1)][: len(FIELDS) + 1].tolist() if batch else [0] * (len(FIELDS) + 1)
        unique, fresh = front.census(ends, keys)
        seen: dict[str, set[int]] = {}
        for f, (_, table) in enumerate(FIELDS):
            own = keys[ends[f] : ends[f + 1]].tolist()
            seen.setdefault(table, set()).update(own)
            assert fresh[f] == sum(key not in trained.get(table, ()) for key in own)
        there = {name: trained.get(name, set()) | restored.get(name, set()) for name in front.tables}
        assert unique == sum(len(keys & there[name]) for name, keys in seen.items())
    front.tables["ad"].assign([95], np.ones((1, LAYOUT.stride), np.float32))
    assert front.census([0, 0, 2], [95, 96])[1].tolist() == [0, 1]
