"""The benchmark's 200 features equal plain Python's, and a peer that differs is detected."""

from __future__ import annotations

import itertools
from collections.abc import Callable, Sequence
from pathlib import Path
from typing import Any

import numpy as np
import pyarrow as pa
import pyarrow.parquet as pq
import pytest

from bench.featurebox.equal import differences
from bench.featurebox.features import DAY_MS, features
from bench.featurebox.ours import first
from bench.featurebox.pipeline import pipeline
from bench.featurebox.schema import LOG, TABLES
from bench.featurebox.view import write
from tests.tiers import few

ROWS = 2_000
EMPTY: dict[str, Any] = {"string": "", "bool": False}


class Plain:
    """`Language` over NumPy columns of numbers and Python lists of texts and lists."""

    def __init__(self, folder: Path) -> None:
        self.log = pq.read_table(folder / LOG)
        self.tables = {table: pq.read_table(folder / table) for table in TABLES}

    def column(self, name: str) -> Any:
        table, _, column = name.partition(".")
        values = self.log if table == LOG else self._looked_up(table)
        found = values.column(column).combine_chunks()
        if pa.types.is_list(found.type):
            return found.to_pylist()
        if pa.types.is_string(found.type):
            return [value or "" for value in found.to_pylist()]
        return found.fill_null(False if pa.types.is_boolean(found.type) else 0).to_numpy(zero_copy_only=False)

    def _looked_up(self, table: str) -> pa.Table:
        key = TABLES[table][0]
        rows = {value: row for row, value in enumerate(self.tables[table].column(key).to_pylist())}
        places = [rows.get(value) for value in self.log.column(key).to_pylist()]
        return self.tables[table].take(pa.array(places, pa.int64()))

    def floor_divide(self, x: Any, by: int) -> Any:
        return x // by

    def bucketize(self, x: Any, bounds: Sequence[float]) -> Any:
        return np.searchsorted(np.array(bounds, np.float64), x.astype(np.float64), side="right")

    def log1p(self, x: Any) -> Any:
        return np.log1p(x.astype(np.float64))

    def normalise(self, x: Any, mean: float, std: float) -> Any:
        return (x.astype(np.float64) - mean) / std

    def clip(self, x: Any, lo: float | None, hi: float | None) -> Any:
        return np.clip(x, lo, hi)

    def where(self, condition: Any, a: Any, b: Any) -> Any:
        return np.where(condition, a, b)

    def hour(self, ts_ms: Any) -> Any:
        return ts_ms // 3_600_000 % 24

    def weekday(self, ts_ms: Any) -> Any:
        return (ts_ms // DAY_MS + 3) % 7

    def lower(self, text: Any) -> Any:
        return [value.lower() for value in text]

    def trim(self, text: Any) -> Any:
        return [value.strip() for value in text]

    def substring(self, text: Any, size: int) -> Any:
        return [value[:size] for value in text]

    def contains(self, text: Any, part: str) -> Any:
        return np.array([part in value for value in text])

    def head(self, items: Any, n: int) -> Any:
        return [row[:n] for row in items]

    def unique(self, items: Any) -> Any:
        return [list(dict.fromkeys(row)) for row in items]

    def words(self, text: Any) -> Any:
        return [[word for word in value.split(" ") if word] for value in text]

    def bigrams(self, words: Any) -> Any:
        return [[" ".join(pair) for pair in itertools.pairwise(row)] for row in words]

    def trigrams(self, text: Any) -> Any:
        return [[value[i : i + 3] for i in range(len(value) - 2)] for value in text]

    def length(self, x: Any) -> Any:
        return np.array([len(value) for value in x])

    def cross(self, *inputs: Any) -> Any:
        lists = any(isinstance(column[0], list) for column in inputs)
        found = []
        for row in zip(*inputs, strict=True):
            pools = [value if isinstance(value, list) else [value] for value in row]
            values = [repr(combination) for combination in itertools.product(*pools)]
            found.append(values if lists else values[0])
        return found


@pytest.fixture(scope="module")
def folder(tmp_path_factory: pytest.TempPathFactory) -> Path:
    path: Path = tmp_path_factory.mktemp("featurebox")
    write(path, ROWS)
    return path


@pytest.fixture(scope="module")
def expected(folder: Path) -> pa.Table:
    plain = Plain(folder)
    sparse, dense = features(plain)
    columns = {"request_id": plain.log.column("request_id"), **sparse, **dense}
    return pa.table({name: pa.array(values) for name, values in columns.items()})


@pytest.mark.full
def test_200_features_are_those_of_plain_python(folder: Path, expected: pa.Table, tmp_path: Path) -> None:
    assert len(pipeline.plan.sparse) + len(pipeline.plan.dense) == 200
    pq.write_table(expected, tmp_path / "values.parquet")
    assert differences(pipeline.plan, first(pipeline, str(folder), ROWS), tmp_path / "values.parquet") == []


WRONG: dict[str, tuple[str, Callable[[list[Any]], list[Any]]]] = {
    "another number": ("age_b", lambda values: [*values[:-1], values[-1] + 1]),
    "two values that become one": (
        "city",
        lambda values: [values[0] if v == values[1] else v for v in values],
    ),
    "one value that becomes two": (
        "device_x_os",
        lambda values: [f"{v}{i % 2}" for i, v in enumerate(values)],
    ),
    "a list in another order": ("query_words", lambda values: [value[::-1] for value in values]),
    "a list that is too short": ("query_words_x_tags", lambda values: [value[:3] for value in values]),
    "a dense number": ("price_log", lambda values: [value * 1.0001 for value in values]),
}


@pytest.mark.parametrize("mistake", few(WRONG, next(iter(WRONG))))
def test_a_difference_is_found(folder: Path, expected: pa.Table, tmp_path: Path, mistake: str) -> None:
    name, spoil = WRONG[mistake]
    index = expected.schema.get_field_index(name)
    column = pa.array(spoil(expected.column(name).to_pylist()))
    pq.write_table(expected.set_column(index, name, column), tmp_path / "values.parquet")
    found = differences(pipeline.plan, first(pipeline, str(folder), ROWS), tmp_path / "values.parquet")
    assert len(found) == 1 and found[0].startswith(f"{name}:")
