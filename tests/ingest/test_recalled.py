"""Features of texts that come again are those of texts seen once, bit for bit, whatever is kept."""

from __future__ import annotations

from random import Random
from typing import Any

import numpy as np
import pyarrow as pa
import pytest

from livectr.ingest.extract import host_code
from livectr.ingest.extract.engines import Wanted
from livectr.ingest.extract.extractor import Extractor
from livectr.ingest.language import dtypes
from livectr.ingest.language.expr import ColumnRef, Expr, column
from livectr.ingest.operators import concat, cross, length, lower, ngrams, split, substring, trim
from livectr.ingest.plan.dag import FeaturePlan
from livectr.ingest.plan.features import Features
from tests.ingest.operator_check import ENGINES, without_users_operators
from tests.ingest.random_values import maybe
from tests.serving.every_operator import pipeline

TEXT = column(ColumnRef("log", "text"), "string")
OTHER = column(ColumnRef("log", "other"), "string")
AD = column(ColumnRef("log", "ad"), "int64")
WORDS = split(lower(trim(TEXT)), " ")
SMALL = FeaturePlan(
    {"words": WORDS, "pairs": ngrams(WORDS, 2), "marks": ngrams(TEXT, 3), "cross": cross(WORDS, AD)},
    {"length": length(WORDS)},
)
APART = 200
"""Rows of a batch that does without kept values."""


def apart(extract: Extractor, batch: pa.RecordBatch) -> Features:
    """Features of a batch, some rows at a time."""
    parts = [extract(batch.slice(at, APART)) for at in range(0, len(batch), APART)]
    return Features.concat(parts)


def check(got: Features, want: Features) -> None:
    np.testing.assert_array_equal(got.failed, want.failed)
    np.testing.assert_array_equal(got.offsets, want.offsets)
    np.testing.assert_array_equal(got.keys, want.keys)
    np.testing.assert_array_equal(got.dense.view(np.uint32), want.dense.view(np.uint32))


def drawn(random: Random, dtype: str, rows: int, name: str, *, encoded: bool) -> pa.Array:
    pool = pa.array([maybe(random, name, dtype) for _ in range(40)], dtypes.arrow_type(dtype))
    index = pa.array(
        [random.randrange(40) if random.random() < 0.95 else None for _ in range(rows)], pa.int32()
    )
    return pa.DictionaryArray.from_arrays(index, pool) if encoded else pool.take(index)


@pytest.mark.parametrize("engine", ENGINES)
@pytest.mark.parametrize("seed", range(3))
def test_every_operator(seed: int, engine: Wanted) -> None:
    random = Random(seed)
    plan = pipeline.plan if engine == "fused" else without_users_operators(pipeline.plan)
    assert plan.recalled
    extract, other = Extractor(plan, engine=engine), Extractor(plan, engine=engine)
    for rows in (700, 256, 1300):
        arrays: dict[str, Any] = {
            root.name: drawn(
                random, root.dtype, rows, root.name.partition(".")[2], encoded=random.random() < 0.3
            )
            for root in plan.roots
        }
        batch = pa.RecordBatch.from_arrays(list(arrays.values()), names=list(arrays))
        check(extract(batch), apart(other, batch))


def texts(random: Random, pool: int, rows: int) -> pa.RecordBatch:
    words = [f" Wört{random.randrange(50)} x{n} " * random.randrange(4) for n in range(pool)]
    columns = [
        pa.array([random.choice(words) for _ in range(rows)], pa.string()),
        pa.array([random.randrange(9) for _ in range(rows)], pa.int64()),
    ]
    return pa.RecordBatch.from_arrays(columns, names=["log.text", "log.ad"])


def test_little_memory(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(host_code, "MOST_BYTES", 1 << 14)
    random = Random(5)
    extract, other = Extractor(SMALL), Extractor(SMALL)
    for _ in range(12):
        batch = texts(random, 500, 600)
        check(extract(batch), apart(other, batch))


def test_texts_that_never_come_again() -> None:
    extract, other = Extractor(SMALL), Extractor(SMALL)
    for number in range(30):  # rests from row 65,536 on
        names = [f"A b{row} c{number}" for row in range(4000)]
        batch = pa.RecordBatch.from_arrays(
            [pa.array(names), pa.array(range(4000), pa.int64())], names=["log.text", "log.ad"]
        )
        got = extract(batch)
        if number % 7 == 0:
            check(got, apart(other, batch))


def test_a_text_with_too_many_values_fails_whenever_it_comes() -> None:
    extract = Extractor(FeaturePlan({"words": split(TEXT, " ")}))
    long = "a " * 70_000
    for _ in range(2):
        batch = pa.RecordBatch.from_arrays([pa.array(["x y", long, "x y", long] * 100)], names=["log.text"])
        found = extract(batch)
        assert found.failed.tolist() == [False, True, False, True] * 100
        assert np.diff(found.offsets).tolist() == [2, 0, 2, 0] * 100


def parts(**sparse: Expr) -> list[tuple[str, int, bool, bool]]:
    return [(str(p.root), len(p.kept), p.alone, p.keeps_text) for p in FeaturePlan(sparse).recalled]


def test_what_is_kept() -> None:
    assert parts(words=split(TEXT, " ")) == [("log.text", 1, True, False)]
    assert parts(text=TEXT, low=substring(lower(TEXT), 0, 3)) == []  # no list comes of it
    mixed = concat(lower(TEXT), OTHER)
    assert parts(words=split(TEXT, " "), mixed=mixed) == [("log.text", 2, True, True)]
    assert parts(words=split(TEXT, " "), both=concat(TEXT, OTHER)) == [("log.text", 1, False, False)]
    assert parts(words=split(concat(TEXT, OTHER), " ")) == []  # a function of two texts
