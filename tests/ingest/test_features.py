"""Features: gathering rows, concatenating batches and selecting fields, against plain lists."""

from __future__ import annotations

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

from livectr.ingest.plan.features import Features

Table = list[list[list[int]]]  # field → row → keys


def features(table: Table, dense: list[list[float]]) -> Features:
    cells = [cell for field in table for cell in field]
    offsets = np.concatenate([[0], np.cumsum([len(cell) for cell in cells])]).astype(np.int32)
    keys = np.array([key for cell in cells for key in cell], np.int64)
    return Features(len(dense), offsets, keys, np.array(dense, np.float32).reshape(len(dense), 2))


def lists(batch: Features) -> tuple[Table, list[list[float]]]:
    table = [
        [
            batch.keys[batch.offsets[i] : batch.offsets[i + 1]].tolist()
            for i in range(f * batch.rows, (f + 1) * batch.rows)
        ]
        for f in range(batch.fields)
    ]
    return table, batch.dense.tolist()


@st.composite
def tables(draw: st.DrawFn, fields: int = 3, least: int = 1) -> tuple[Table, list[list[float]]]:
    rows = draw(st.integers(least, 6))
    cell = st.lists(st.integers(-5, 5), max_size=4)
    table = [draw(st.lists(cell, min_size=rows, max_size=rows)) for _ in range(fields)]
    return table, [[float(row), -1.0] for row in range(rows)]


@given(tables(), st.data())
def test_take(made: tuple[Table, list[list[float]]], data: st.DataObject) -> None:
    table, dense = made
    rows = data.draw(st.lists(st.integers(0, len(dense) - 1), min_size=1, max_size=9))
    got = lists(features(table, dense).take(rows))
    assert got == ([[field[row] for row in rows] for field in table], [dense[row] for row in rows])


@given(st.lists(tables(least=0), min_size=1, max_size=4))
def test_concat(made: list[tuple[Table, list[list[float]]]]) -> None:
    joined = Features.concat([features(*batch) for batch in made])
    dense = [row for _, rows in made for row in rows]
    if dense:
        table = [[cell for fields, _ in made for cell in fields[f]] for f in range(3)]
        assert lists(joined) == (table, dense)
    assert joined.rows == len(dense)


@given(tables(), st.lists(st.integers(0, 2), min_size=1, max_size=4))
def test_select_fields(made: tuple[Table, list[list[float]]], chosen: list[int]) -> None:
    table, dense = made
    assert lists(features(table, dense).select_fields(chosen)) == ([table[f] for f in chosen], dense)


def test_no_rows() -> None:
    batch = features([[[1], [2]], [[3], []]], [[0, 0], [1, 1]])
    none = batch.take([])
    assert none.rows == 0 and len(none.keys) == 0 and none.dense.shape == (0, 2)
    assert none.take([]).rows == 0 and none.select_fields([1]).rows == 0
    assert lists(Features.concat([none, batch])) == lists(batch)


def test_a_row_out_of_range_is_refused() -> None:
    with pytest.raises(IndexError, match="batch of 2"):
        features([[[1], [2]]], [[0, 0], [1, 1]]).take([2])
