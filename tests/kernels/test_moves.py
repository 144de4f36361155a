"""Moves of rows between tables and packed rows: the coldest rows leave, and come back with the same bits."""

import numpy as np
import pytest

from livectr.kernels.table.layout import AdaGrad, RowLayout, Segment
from livectr.kernels.table.table import MISSING_ROW, DynamicTable
from livectr.kernels.tiers.moves import Moves

LAYOUT = RowLayout((Segment("v", 4, AdaGrad(), 0.1),))
NO_PINS: list[tuple[list[DynamicTable], np.ndarray, np.ndarray]] = []


def filled(sizes: tuple[int, ...], stamps: int) -> list[DynamicTable]:
    """Tables whose rows are used at random stamps below `stamps`, over more than 16 bits."""
    rng = np.random.default_rng(3)
    tables = []
    for number, size in enumerate(sizes):
        table = DynamicTable(LAYOUT, name=f"t{number}", seed=1, track=True)
        keys = rng.permutation(size).astype(np.int64)
        table.update(keys, rng.normal(size=(size, LAYOUT.dim)).astype(np.float32))
        table.set_usage(keys, rng.integers(0, stamps, size, np.uint32) * 3_000, np.zeros(size, np.uint32))
        tables.append(table)
    return tables


@pytest.mark.parametrize("stamps", [1, 40, 100_000])
@pytest.mark.parametrize("count", [0, 1, 500, 2_000])
def test_the_coldest_rows_of_all_tables(stamps: int, count: int) -> None:
    tables, moves = filled((900, 0, 300), stamps), Moves(LAYOUT)
    pins = [([tables[2]], np.array([0, 3]), np.array([5, MISSING_ROW, 9], np.uint32)) for _ in range(2)]
    before = [table.usage(np.arange(len(table)))[0].tolist() for table in tables]
    bounds, rows = moves.coldest(tables, count, pins)
    assert [table.usage(np.arange(len(table)))[0].tolist() for table in tables] == before
    wanted = []
    for number, table in enumerate(tables):
        held = [5, 9] if number == 2 else []
        used = table.usage(table.read(np.arange(len(table), dtype=np.uint32))[0])[0].tolist()
        wanted += [(stamp, number, row) for row, stamp in enumerate(used) if row not in held]
    chosen = sorted(wanted)[:count]
    owners = np.repeat(np.arange(3), np.diff(bounds))
    assert list(zip(owners.tolist(), rows.tolist(), strict=True)) == sorted(each[1:] for each in chosen)


def test_rows_that_leave_come_back_with_the_same_bits() -> None:
    tables, moves = filled((900, 0, 300), 40), Moves(LAYOUT)
    whole = filled((900, 0, 300), 40)
    bounds, rows = moves.coldest(tables, 700, NO_PINS)
    keys, generations, packed = moves.evict(tables, bounds, rows)
    assert (generations == 1).all() and sum(map(len, tables)) == 500
    assert (moves.find(tables, bounds, keys) == MISSING_ROW).all()
    moves.promote(tables, bounds, keys, packed)
    for table, other in zip(tables, whole, strict=True):
        every = np.arange(len(other))
        assert len(table) == len(other)
        np.testing.assert_array_equal(table.usage(every), other.usage(every))
        for one, two in zip(table.read(table.find(every)), other.read(other.find(every)), strict=True):
            assert np.asarray(one).tobytes() == np.asarray(two).tobytes()
    again = moves.evict(tables, bounds, moves.find(tables, bounds, keys))
    assert (
        again[0].tolist() == keys.tolist() and not again[1].any() and again[2].tobytes() == packed.tobytes()
    )


def test_members_of_a_list() -> None:
    rng, moves = np.random.default_rng(5), Moves(LAYOUT)
    given = np.r_[rng.integers(-(2**63), 2**63 - 1, 500), 0, 0]
    asked = np.r_[given[::3], rng.integers(-(2**63), 2**63 - 1, 500), 0, 1]
    np.testing.assert_array_equal(moves.is_one_of(given, asked), np.isin(asked, given))
    assert not moves.is_one_of(given[:0], asked).any()
