"""The compiled reader of plain JSON gives what the general reader gives, and leaves the rest to it."""

from __future__ import annotations

import json
from typing import Any

import numpy as np
import pyarrow as pa
import pytest
from hypothesis import example, given
from hypothesis import strategies as st

from livectr.ingest.decode.json_rows import JsonRows
from livectr.ingest.decode.texts import Texts
from livectr.kernels.stream.json_columns import JsonColumns
from tests.tiers import examples

LEAVES = {
    ("user",): "int64",
    ("slot",): "int32",
    ("price",): "float64",
    ("bid",): "float32",
    ("shown",): "bool",
    ("query",): "string",
    ("ids",): "list<int64>",
    ("words",): "list<string>",
    ("scores",): "list<float32>",
    ("device", "os"): "string",
    ("device", "screen", "width"): "int32",
}
REQUIRED = ("user", "query")
DEPTH = 5

numbers = st.one_of(
    st.integers(-(1 << 70), 1 << 70),
    st.integers(280, 420).map(lambda digits: 10**digits),
    st.integers(-100, 100),
    st.floats(allow_nan=False, allow_infinity=False),
    st.floats(width=32, allow_nan=False, allow_infinity=False),
    st.sampled_from(
        [0, -0.0, 1, (1 << 63) - 1, -(1 << 63), 1 << 63, (1 << 31) - 1, 1 << 31, 1e308, 5e-324, 1e39]
    ),
)
scalars = st.one_of(numbers, st.text(max_size=8), st.none(), st.booleans())
anything = st.recursive(
    scalars,
    lambda inner: st.lists(inner, max_size=3) | st.dictionaries(st.text(max_size=4), inner, max_size=3),
    max_leaves=8,
)
fitting: dict[str, st.SearchStrategy[Any]] = {
    "user": st.integers(-(1 << 63), (1 << 63) - 1),
    "slot": st.integers(-(1 << 31), (1 << 31) - 1),
    "price": numbers,
    "bid": st.floats(width=32, allow_nan=False, allow_infinity=False),
    "shown": st.booleans(),
    "query": st.text(max_size=12),
    "ids": st.lists(st.integers(-9, 9), max_size=4),
    "words": st.lists(st.text(max_size=5), max_size=4),
    "scores": st.lists(st.floats(-9, 9), max_size=3),
    "device": st.fixed_dictionaries(
        {},
        optional={
            "os": st.text(max_size=4),
            "screen": st.fixed_dictionaries({"width": st.integers(0, 99)}),
            "x": anything,
        },
    ),
    "unused": anything,
}
objects = st.fixed_dictionaries(
    {name: fitting[name] for name in REQUIRED},
    optional={
        name: st.one_of(of, of, of, st.none(), anything)
        for name, of in fitting.items()
        if name not in REQUIRED
    },
)


@st.composite
def texts(draw: st.DrawFn) -> bytes:
    """A JSON object as one tool or another writes it; one in three is damaged."""
    event = draw(objects)
    if draw(st.booleans()):
        names = draw(st.permutations(list(event)))
        event = {name: event[name] for name in names}
    separators = draw(st.sampled_from([(",", ":"), (", ", ": "), (" ,\t", " : ")]))
    text = json.dumps(event, ensure_ascii=draw(st.booleans()), separators=separators)
    data = bytearray(text.encode("utf-8", "surrogatepass"))
    if draw(st.integers(0, 2)) == 0:
        at = draw(st.integers(0, len(data)))
        odd = [
            b'"',
            b"\\",
            b"{",
            b"}",
            b"[",
            b"]",
            b",",
            b":",
            b"0",
            b"-",
            b".",
            b"e",
            b"\n",
            b" ",
            b"\0",
            b"\xff",
            b"null",
            b"NaN",
            b'"user":1,',
            b"\\u0000",
            b"\\ud800",
            b"\\u00e4",
            b"1",
            b"Infinity",
        ]
        data[at : at + draw(st.integers(0, 2))] = draw(st.sampled_from(odd))
    return bytes(data)


def result(rows: JsonRows, block: list[bytes]) -> tuple[list[Any], list[int], list[tuple[int, Any, str]]]:
    batch, places, bad = rows.parse(Texts.of(block))
    batch.validate(full=True)
    assert batch.schema == pa.schema([(".".join(path), _kind(dtype)) for path, dtype in LEAVES.items()])
    # repr tells -0.0 from 0.0
    return (
        [repr(row) for row in batch.to_pylist()],
        places.tolist(),
        [(b.row, b.reason, b.detail) for b in bad],
    )


def _kind(dtype: str) -> pa.DataType:
    kinds = {"int64": pa.int64(), "int32": pa.int32(), "float64": pa.float64(), "float32": pa.float32(),
             "bool": pa.bool_(), "string": pa.string()}  # fmt: skip
    return pa.list_(kinds[dtype[5:-1]]) if dtype.startswith("list<") else kinds[dtype]


FAST = JsonRows(LEAVES, REQUIRED, depth=DEPTH)
SLOW = JsonRows(LEAVES, REQUIRED, depth=DEPTH)
SLOW._columns = None


@examples(200)
@given(st.lists(texts(), min_size=1, max_size=12))
@example([b'{"user":1,"query":"a","price":-0.0}', b'{"user":1,"query":"\\ud83d\\ude00","price":1e400}'])
@example([b'{"user":1,"query":"a","user":2}', b'{"user":1,"query":"b","x":{"y":[[[[1]]]]}}'])
@example(
    [b'{"user":1,"query":"b","device":null}', b'{"user":1,"query":"b","device":{"os":null,"screen":null}}']
)
@example([b'{"user":1,"query":"a","x":"\xff"}', b'{"user":1,"query":"\xff"}', b'{"user":01,"query":"a"}'])
@example(
    [b'{"user":1,"query":"a","words":["x",null]}', b'{"user":1,"query":"a","device":{"os":"x","os":"y"}}']
)
@example(
    [b'{"user":1,"query":"a","x":[2.8e+391,1e-400]}', b'{"user":1,"query":"a","x":1' + b"0" * 400 + b"}"]
)
def test_both_readers_agree(block: list[bytes]) -> None:
    assert result(FAST, block) == result(SLOW, block)


def test_most_objects_are_plain() -> None:
    """Else the comparison would say nothing."""
    form = (
        b'{"user":%d,"slot":1,"query":"a b","price":1.5,"shown":true,"ids":[1,2],"words":["x"],"z":{"y":[]},'
        b'"scores":[0.5],"bid":2,"device":{"screen":{"width":9},"os":"\\u00e4"}}'
    )
    events = [form % n for n in range(50)]
    kinds = {path: _kind(dtype) for path, dtype in LEAVES.items()}
    block = Texts.of(events)
    arrays, plain = JsonColumns(kinds, REQUIRED, depth=DEPTH).read(block.data, block.starts, block.stops)
    assert plain.all() and arrays[0].to_pylist() == list(range(50)) and arrays[-2].to_pylist() == ["ä"] * 50


def test_texts_may_lie_anywhere_in_the_data() -> None:
    pieces = [b"??", b'{"user":1,"query":"a"}', b"!", b'{"user":2,"query":"b"}', b'{"user":3}']
    ends = np.cumsum([len(piece) for piece in pieces])
    stops = ends[[1, 3, 4]]
    texts = Texts(b"".join(pieces), stops - [len(pieces[i]) for i in (1, 3, 4)], stops)
    batch, rows, bad = FAST.parse(texts)
    assert batch.column("user").to_pylist() == [1, 2] and rows.tolist() == [0, 1]
    assert [item.row for item in bad] == [2]
    assert texts.take(np.array([1])).texts == [pieces[3]]


def test_columns_that_cannot_be_read_are_refused() -> None:
    with pytest.raises(ValueError, match="cannot all be read"):
        JsonColumns({("a",): pa.binary()}, depth=3)
    with pytest.raises(ValueError, match="beginning of another"):
        JsonColumns({("a",): pa.int64(), ("a", "b"): pa.int64()}, depth=3)
