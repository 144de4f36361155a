"""Rows that share columns have the features of rows with copies, bit for bit, within limits."""

from __future__ import annotations

from random import Random
from typing import Any

import numpy as np
import pyarrow as pa
import pytest

from livectr.ingest.extract.engines import Wanted
from livectr.ingest.extract.extractor import Extractor
from livectr.ingest.extract.sharing import TooLargeError
from livectr.ingest.language import dtypes
from livectr.ingest.language.expr import ColumnRef, column
from livectr.ingest.limits import FeatureLimits
from livectr.ingest.operators import cross, key, split
from livectr.ingest.plan.dag import FeaturePlan
from livectr.system.errors import InternalError
from tests.ingest.operator_check import ENGINES, without_users_operators
from tests.ingest.random_values import maybe
from tests.ingest.written_out import written_out
from tests.serving.every_operator import pipeline

PLANS: dict[Wanted, FeaturePlan] = {"calls": without_users_operators(pipeline.plan), "fused": pipeline.plan}
WORDS = column(ColumnRef("log", "words"), "string")
TAGS = column(ColumnRef("log", "tags"), "list<int64>")
AD = column(ColumnRef("log", "ad"), "int64")
SMALL = FeaturePlan({"words": split(WORDS, " "), "tags": TAGS, "cross": cross(TAGS, AD)})


@pytest.mark.parametrize("engine", ENGINES)
@pytest.mark.parametrize("seed", range(6))
def test_features_are_those_of_columns_that_are_written_out(seed: int, engine: Wanted) -> None:
    random, rows, plan = Random(seed), [1, 2, 511, 513, 1300, 40][seed], PLANS[engine]
    extract = Extractor(plan, engine=engine)
    shared = {root.name for root in plan.roots if random.random() < [0.5, 1.0, 0.8, 0.2, 0.5, 0.0][seed]}
    arrays: dict[str, Any] = {}
    for root in plan.roots:
        count = 1 if root.name in shared else rows
        values = [maybe(random, root.name.partition(".")[2], root.dtype) for _ in range(count)]
        arrays[root.name] = pa.array(values, dtypes.arrow_type(root.dtype))
    names = list(arrays)
    whole = [pa.concat_arrays([arrays[n]] * rows) if n in shared else arrays[n] for n in names]
    want = extract(pa.RecordBatch.from_arrays(whole, names=names))
    one, own = (
        pa.RecordBatch.from_arrays(
            [arrays[n] for n in names if (n in shared) is which],
            names=[n for n in names if (n in shared) is which],
        )
        for which in (True, False)
    )
    for _ in range(2):  # memory of the first call is used again
        found = extract.shared(one, own, rows)
        got = written_out(found)
        np.testing.assert_array_equal(got.offsets, want.offsets)
        np.testing.assert_array_equal(got.keys, want.keys)
        np.testing.assert_array_equal(got.dense.view(np.uint32), want.dense.view(np.uint32))
        np.testing.assert_array_equal(found.own.failed, want.failed)
    if seed == 1:
        assert len(found.shared_fields) == len(plan.sparse)
    if seed == 5:
        assert not found.shared_fields


def batches(words: str, tags: list[int], ads: int) -> tuple[pa.RecordBatch, pa.RecordBatch]:
    shared = pa.RecordBatch.from_pydict(
        {"log.words": [words], "log.tags": pa.array([tags], pa.list_(pa.int64()))}
    )
    return shared, pa.RecordBatch.from_pydict({"log.ad": np.arange(ads)})


def test_a_shared_value_is_there_once_however_many_rows_share_it() -> None:
    plan = FeaturePlan({"words": split(WORDS, " "), "tags": TAGS, "ad": AD})
    found = Extractor(plan).shared(*batches("ab " * 20_000, list(range(60_000)), 10_000), 10_000)
    assert found.shared_fields == (0, 1) and found.own_fields == (2,)
    assert (len(found.shared.keys), len(found.own.keys)) == (20_000 + 60_000, 10_000)


@pytest.mark.parametrize(
    ("limits", "text"),
    [
        (FeatureLimits(values=39_999), "too many values in lists"),
        (FeatureLimits(pool_bytes=50_000), "too many values in lists"),
        (FeatureLimits(read=39_999), "times candidates, are too large"),
    ],
)
def test_what_rows_give_together_is_limited(limits: FeatureLimits, text: str) -> None:
    extract = Extractor(SMALL)
    parts = batches("a b", [1, 2, 3, 4], 10_000)
    enough = FeatureLimits(values=40_000, pool_bytes=1 << 20, read=4 * 10_000)
    for _ in range(2):
        assert len(extract.shared(*parts, 10_000, limits=enough).own.keys) == 40_000
        with pytest.raises(TooLargeError, match=text):
            extract.shared(*parts, 10_000, limits=limits)


def test_a_shared_row_with_too_many_values_fails_alone() -> None:
    extract = Extractor(SMALL)
    assert extract.shared(*batches("a " * 70_000, [1], 3), 3).shared.failed.tolist() == [True]
    assert extract.shared(*batches("a ", [1], 3), 3).shared.failed.tolist() == [False]


def wrong(name: str, kind: Any, offsets: list[int], size: int) -> pa.RecordBatch:
    """Batch of an array with offsets that Arrow itself would reject."""
    placed = np.zeros(len(offsets), np.int32)
    buffers, rows = [None, pa.py_buffer(placed)], len(offsets) - 1
    if pa.types.is_list(kind):
        items = pa.array(np.zeros(size, np.int64))
        made = pa.Array.from_buffers(kind, rows, buffers, children=[items])
    else:
        made = pa.Array.from_buffers(kind, rows, [*buffers, pa.py_buffer(bytes(size))])
    batch = pa.RecordBatch.from_arrays([made], names=[name])
    placed[:] = offsets
    return batch


@pytest.mark.parametrize("offsets", [[0, 5, 2], [-5, 0, 5], [0, -(2**31), 5], [5, 2**31 - 1, -2]])
@pytest.mark.parametrize("kind", [pa.string(), pa.list_(pa.int64())], ids=["string", "list"])
def test_offsets_that_have_wrapped_are_refused(kind: Any, offsets: list[int]) -> None:
    is_list = pa.types.is_list(kind)
    plan = FeaturePlan({"x": TAGS if is_list else key(WORDS)})
    batch = wrong("log.tags" if is_list else "log.words", kind, offsets, 16)
    with pytest.raises(InternalError, match="offsets that fall"):
        Extractor(plan)(batch)


def test_a_list_beyond_its_items_and_an_index_beyond_its_dictionary_are_refused() -> None:
    extract = Extractor(FeaturePlan({"x": TAGS}))
    with pytest.raises(InternalError, match="offsets that fall"):
        extract(wrong("log.tags", pa.list_(pa.int64()), [0, 2, 17], 16))
    for index in (3, -1):
        words = pa.DictionaryArray.from_arrays(
            pa.array([0, index], pa.int32()), pa.array(["a", "b", "c"]), safe=False
        )
        with pytest.raises(InternalError, match="beyond its dictionary"):
            Extractor(FeaturePlan({"x": key(WORDS)}))(
                pa.RecordBatch.from_arrays([words], names=["log.words"])
            )
