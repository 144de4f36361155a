"""Staging in C++ gives the bytes of NumPy and pyarrow: every type, nulls, slices, fills, dictionaries."""

from __future__ import annotations

import random
from collections.abc import Callable, Sequence
from typing import Any

import numpy as np
import pyarrow as pa
import pytest
from hypothesis import given
from hypothesis import strategies as st

from livectr.ingest.extract.staging import Staging
from livectr.ingest.language import dtypes
from livectr.ingest.language.expr import ColumnRef, Expr, column
from livectr.system.errors import ConfigError, InternalError
from tests.ingest.operator_expressions import ROOTS
from tests.ingest.random_columns import batches
from tests.ingest.random_plans import random_batch
from tests.ingest.reference_staging import staged
from tests.tiers import examples

FILLED = tuple(
    column(ColumnRef("t", name, fill=fill), dtype)
    for name, dtype, fill in (
        ("i64", "int64", -7),
        ("i32", "int32", 2**31 - 1),
        ("f32", "float32", 0.1),
        ("f64", "float64", 3),
        ("bool", "bool", True),
        ("text", "string", "ö\n\\"),
        ("data", "binary", b"\x00\xff"),
    )
)
"""The same columns as some of ROOTS, with values for nulls."""
EVERY = (*ROOTS, *FILLED)
CHUNK_ROWS = 1 << 15


def parts_of(staging: Staging, batch: pa.RecordBatch) -> list[np.ndarray[Any, Any]]:
    """Parts of a batch, from their beginnings to the next; the buffer is as large as is asked for."""
    starts = np.empty(staging.parts, np.int64)
    size = staging(batch, np.empty(0, np.uint8), starts)
    out = np.full(size + 16, 0xA5, np.uint8)
    assert staging(batch, out[:size], starts) == size
    assert (out[size:] == 0xA5).all() and (starts % 128 == 0).all()
    return [out[begin:end] for begin, end in zip(starts, [*starts[1:], size], strict=True)]


def assert_staged(roots: Sequence[Expr], batch: pa.RecordBatch) -> None:
    found = parts_of(Staging(roots), batch)
    wanted = [part for root in roots for part in staged(batch.column(root.name), root)]
    assert len(found) == len(wanted)
    for got, want in zip(found, wanted, strict=True):
        assert len(got) == -(-max(want.nbytes, 1) // 128) * 128
        assert got[: want.nbytes].tobytes() == want.tobytes()


def encoded(rng: random.Random, array: pa.Array) -> pa.Array:
    """Rows of a dictionary that is the array; nulls are in the indices, too."""
    indices = [rng.choice([None, rng.randrange(len(array))]) for _ in range(len(array))]
    if len(array) == 0 or pa.types.is_list(array.type):
        return array
    return pa.DictionaryArray.from_arrays(pa.array(indices, pa.int32()), array)


@given(batches(ROOTS))
@examples(400)
def test_every_type_with_nulls_and_slices(batch: pa.RecordBatch) -> None:
    assert_staged(EVERY, batch)


@given(batches(ROOTS), st.randoms(use_true_random=False))
@examples(200)
def test_dictionaries_are_resolved(batch: pa.RecordBatch, rng: random.Random) -> None:
    arrays = [encoded(rng, array) for array in batch.columns]
    assert_staged(EVERY, pa.RecordBatch.from_arrays(arrays, names=batch.schema.names))


@given(st.data())
@examples(100)
def test_without_nulls_every_offset_of_a_slice(data: st.DataObject) -> None:
    """Columns without a bitmap are copied as they lie; bits begin inside of a byte."""
    rows = data.draw(st.integers(0, 200))
    rng = random.Random(data.draw(st.integers(0, 99)))
    start = data.draw(st.integers(0, rows))
    arrays = []
    for root in ROOTS:
        draw: dict[str, Callable[[], object]] = {
            "bool": lambda: rng.random() < 0.5,
            "string": lambda: "aö" * rng.randint(0, 3),
            "binary": lambda: rng.randbytes(rng.randint(0, 3)),
        }
        value = draw.get(dtypes.element(root.dtype), lambda: rng.randint(-9, 9))
        many = dtypes.is_list(root.dtype)
        values = [[value() for _ in range(rng.randint(0, 3))] if many else value() for _ in range(rows)]
        arrays.append(pa.array(values, dtypes.arrow_type(root.dtype)))
    batch = pa.RecordBatch.from_arrays(arrays, names=[root.name for root in ROOTS])
    assert_staged(EVERY, batch.slice(start, data.draw(st.integers(0, rows - start))))


@pytest.mark.parametrize("rows", [CHUNK_ROWS - 1, CHUNK_ROWS, CHUNK_ROWS + 1, 2 * CHUNK_ROWS + 77])
def test_chunks_of_large_columns_join(rows: int) -> None:
    """Some chunks have nulls and others have none."""
    rng = np.random.default_rng(rows)
    some = random_batch(random.Random(rows), 400)
    full = pa.RecordBatch.from_arrays(
        [array.drop_null().take(np.arange(400) % (len(array) - array.null_count)) for array in some.columns],
        names=some.schema.names,
    )
    mixed = [
        full.take(rng.integers(0, 400, rows // 2)),
        some.take(rng.integers(0, 400, rows + 5 - rows // 2)),
    ]
    assert_staged(EVERY, pa.concat_batches(mixed).slice(5))
    arrays = [pa.DictionaryArray.from_arrays(rng.integers(0, 400, rows, np.int32), c) for c in some.columns]
    assert_staged(EVERY, pa.RecordBatch.from_arrays(arrays, names=some.schema.names))


def test_nothing_is_copied_into_a_buffer_that_is_too_small() -> None:
    staging, batch = Staging(EVERY), random_batch(random.Random(1), 50)
    starts = np.empty(staging.parts, np.int64)
    size = staging(batch, np.empty(0, np.uint8), starts)
    out = np.full(size, 0xA5, np.uint8)
    assert staging(batch, out[:-1], starts) == size
    assert (out == 0xA5).all()


def test_other_types_are_cast_and_missing_columns_are_named() -> None:
    roots = (column(ColumnRef("t", "a"), "int64"), column(ColumnRef("t", "b"), "string"))
    batch = pa.record_batch(
        {"t.b": pa.array(["x", None], pa.large_string()), "t.a": pa.array([1, 2], pa.int8())}
    )
    a, offsets, text = parts_of(Staging(roots), batch)
    assert a[:16].view(np.int64).tolist() == [1, 2]
    assert offsets[:12].view(np.int32).tolist() == [0, 1, 1] and text[:1].tobytes() == b"x"
    with pytest.raises(ConfigError, match=r"no column t\.a"):
        parts_of(Staging(roots), batch.select(["t.b"]))


FALLING = pa.py_buffer(np.array([0, 4, 2, 6, 8], np.int32))
ONE_NULL = pa.py_buffer(b"\x07")
DAMAGED = {
    "strings": pa.StringArray.from_buffers(4, FALLING, pa.py_buffer(b"abcdefgh")),
    "strings and a null": pa.StringArray.from_buffers(4, FALLING, pa.py_buffer(b"abcdefgh"), ONE_NULL),
    "lists": pa.ListArray.from_buffers(
        pa.list_(pa.int64()), 4, [None, FALLING], children=[pa.array(range(8))]
    ),
    "lists and a null": pa.ListArray.from_buffers(
        pa.list_(pa.int64()), 4, [ONE_NULL, FALLING], children=[pa.array(range(8))]
    ),
    "an index": pa.DictionaryArray.from_arrays(
        pa.array([0, 1, 5, 0], pa.int32()), pa.array(["a", "b"]), safe=False
    ),
}


@pytest.mark.parametrize("array", DAMAGED.values(), ids=DAMAGED.keys())
def test_damaged_columns_are_refused(array: pa.Array) -> None:
    root = column(ColumnRef("t", "c"), "list<int64>" if pa.types.is_list(array.type) else "string")
    batch = pa.RecordBatch.from_arrays([array], names=["t.c"])
    with pytest.raises(InternalError, match="offsets that fall, or indices beyond its dictionary"):
        parts_of(Staging([root]), batch)


def test_a_text_that_outgrows_its_offsets_is_refused() -> None:
    """A long fill: the column's bytes exceed int32."""
    root = column(ColumnRef("t", "c"), "string")
    texts = pa.array(["x" * (1 << 20)])
    array = pa.DictionaryArray.from_arrays(np.zeros(2048, np.int32), texts)
    with pytest.raises(InternalError, match="more than 2147483647 items or bytes; use smaller batches"):
        parts_of(Staging([root]), pa.RecordBatch.from_arrays([array], names=["t.c"]))


def test_words_of_structs_point_to_the_parts() -> None:
    roots = [
        column(ColumnRef("t", str(i)), kind) for i, kind in enumerate(("int32", "list<string>", "string"))
    ]
    words = Staging(roots).words(np.array([100, 200, 300, 400, 500, 600]))
    assert words == [[100], [200, 0, 0, 300, 400, 0, 0, 0, 0], [500, 600, 0, 0, 0, 0]]
