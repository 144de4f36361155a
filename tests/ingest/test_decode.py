"""Decoding: every good record is decoded and every bad record named, whatever its neighbours."""

from __future__ import annotations

import json
from collections.abc import Callable
from pathlib import Path
from typing import Any

import numpy as np
import pyarrow as pa
import pytest
from hypothesis import given
from hypothesis import strategies as st

from livectr.ingest.chunks import Position
from livectr.ingest.dead_letters.letters import Reason
from livectr.ingest.decode.clean import compile_filter
from livectr.ingest.decode.decoder import Decoder
from livectr.ingest.decode.messages import MessageList
from livectr.ingest.language.streams import Stream
from livectr.ingest.language.tables import Table
from livectr.ingest.limits import LIMITS
from livectr.system.errors import ConfigError
from tests.ingest.decoding import ARROW, GOOD, ROW, STREAM, USED, Letters, arrow, decode, event
from tests.tiers import examples


def test_a_good_event() -> None:
    chunk, letters = decode([event()])
    assert chunk.batch.to_pylist() == [ROW]
    assert chunk.batch.schema.names == USED
    assert (chunk.offset.dtype, chunk.index.dtype) == (np.dtype(np.int64), np.dtype(np.int32))
    assert chunk.next == Position(101, 0)
    assert not letters.all


@pytest.mark.parametrize(
    ("value", "reason", "detail"),
    [
        (b"", Reason.BAD_JSON, "not one whole JSON object"),
        (b"null", Reason.BAD_JSON, "not one whole JSON object"),
        (b"[1]", Reason.BAD_JSON, "not one whole JSON object"),
        (event()[:-9], Reason.BAD_JSON, "not one whole JSON object"),
        (event() + event(), Reason.BAD_JSON, "Extra data"),
        (event().replace(b'"ts": ', b'"ts": ,'), Reason.BAD_JSON, "Expecting value"),
        (event().replace(b'"slot"', b'"ts": 5, "slot"'), Reason.BAD_JSON, "key `ts` is there twice"),
        (event() + b"\0" + event(), Reason.BAD_JSON, "Extra data"),
        (b'{"user_id": ' + b"[" * 100_000 + b"}", Reason.TOO_DEEP, "more than 64 objects"),
        (event().replace(b"sch\\u00f6ne", b"sch\xf6ne"), Reason.BAD_JSON, ""),
        (
            event(without="query"),
            Reason.MISSING_COLUMN,
            "column `query` is not in the log; its columns are ctx, ids, ",
        ),
        (event(without="ts"), Reason.MISSING_COLUMN, "column `ts` is not in the log"),
        (event(without="ids", id=None), Reason.MISSING_COLUMN, "`ids` is not in the log; did you mean `id`?"),
        (
            event(ts="abc"),
            Reason.WRONG_TYPE,
            "column `ts` is text in the log, the pipeline says int64; declare string, or",
        ),
        (
            event(ts=1.5),
            Reason.WRONG_TYPE,
            "column `ts` is a number with a fraction in the log, the pipeline says int64; declare f",
        ),
        (event(ts=None), Reason.WRONG_TYPE, "column `ts` is null"),
        (event(user_id=None), Reason.WRONG_TYPE, "column `user_id` is null; say fill="),
        (
            event(ts=1 << 63),
            Reason.WRONG_TYPE,
            "column `ts` has whole numbers that int64 cannot hold; declare string",
        ),
        (
            event(slot=1 << 31),
            Reason.WRONG_TYPE,
            "column `slot` has whole numbers that int32 cannot hold; declare int64",
        ),
        (event(shown=2), Reason.WRONG_TYPE, "column `shown` is 2, the pipeline says bool"),
        (
            event(query=["a"]),
            Reason.WRONG_TYPE,
            "column `query` is a list in the log, the pipeline says string",
        ),
        (event(price=1e60), Reason.WRONG_TYPE, "column `price` is not a finite number"),
        (event(price=float("inf")), Reason.WRONG_TYPE, "column `price` is not a finite number"),
        (event(ids=[1, None]), Reason.WRONG_TYPE, "column `ids` is a list with a null inside"),
        (
            event(ids=[1, "2"]),
            Reason.WRONG_TYPE,
            "column `ids` is a list with text in the log, the pipeline says list<int64>",
        ),
        (event(thumb="%%"), Reason.WRONG_TYPE, "column `thumb` is not base64"),
        (event(ctx="{oops"), Reason.BAD_JSON, "column ctx: not one whole JSON object"),
        (
            event(ctx='{"zoom": "big"}'),
            Reason.WRONG_TYPE,
            "column ctx: column `zoom` is text in the log, the pipeline says float64",
        ),
        (event(ctx={"zoom": "big"}), Reason.WRONG_TYPE, "column `ctx`"),
        (event(ctx=5), Reason.WRONG_TYPE, "column `ctx` is a whole number"),
        (
            event(query="x" * LIMITS.record_bytes),
            Reason.OVERSIZE,
            "longer than 4194304 bytes (max_record_bytes)",
        ),
        (None, Reason.NO_VALUE, "without value"),
        (b"\xff\xff\xff\xffnot arrow", Reason.BAD_ARROW, ""),
        (
            arrow({"user_id": [1], "ts": [2]}),
            Reason.MISSING_COLUMN,
            "column `query` is not in the log; its columns are ts, user_id",
        ),
    ],
)
def test_a_bad_record_is_named_and_its_neighbours_live(
    value: bytes | None, reason: Reason, detail: str
) -> None:
    chunk, letters = decode([event(slot=0), value, event(slot=1)])
    assert chunk.batch["slot"].to_pylist() == [0, 1]
    assert chunk.offset.tolist() == [100, 102]
    assert chunk.next == Position(103, 0)
    assert list(letters.all) == [(101, 0)]
    assert letters.all[101, 0][0] == reason
    assert detail in letters.all[101, 0][1]


@pytest.mark.parametrize(
    ("changes", "row"),
    [
        ({"price": None}, {"price": 1.5}),
        ({"price": float("nan")}, {"price": 1.5}),
        ({"query": None}, {"query": None}),
        ({"slot": None}, {"slot": None}),
        ({"shown": None}, {"shown": None}),
        ({"ids": None}, {"ids": None}),
        ({"thumb": None}, {"thumb": None}),
        ({"price": 3}, {"price": 3.0}),
        ({"ctx": None}, {"browser": None, "zoom": None}),
        ({"ctx": ""}, {"browser": None, "zoom": None}),
        ({"ctx": '{"device": null}'}, {"browser": None, "zoom": None}),
        ({"ctx": {"device": {"browser": "opera"}, "zoom": 0.5}}, {"browser": "opera", "zoom": 0.5}),
        ({"ctx": {"device": None, "zoom": None}}, {"browser": None, "zoom": None}),
    ],
)
def test_nulls_and_json_fields(changes: dict[str, Any], row: dict[str, object]) -> None:
    chunk, letters = decode([event(**changes)])
    assert not letters.all
    assert chunk.batch.to_pylist() == [{**ROW, **row}]


def test_a_column_with_a_declared_fill_may_be_absent() -> None:
    chunk, letters = decode([event(without="price")])
    assert chunk.batch["price"].to_pylist() == [1.5]
    assert not letters.all


def test_a_column_that_is_not_in_use_is_not_read() -> None:
    chunk, letters = decode([event(query=5, price="x", ctx=1)], columns=["slot"])
    assert chunk.batch.to_pylist() == [{"user_id": 7, "ts": GOOD["ts"], "slot": 3}]
    assert not letters.all
    assert Decoder(STREAM, letters, columns=["browser"]).wire_columns == ["user_id", "ts", "ctx"]
    with pytest.raises(ConfigError, match="no column 'nope'"):
        Decoder(STREAM, letters, columns=["nope"])


def test_required_columns_may_not_be_null() -> None:
    _, letters = decode([event(query=None)], required=["query"])
    assert letters.all[100, 0] == (
        Reason.WRONG_TYPE,
        'column `query` is null; say fill={"query": …} in the pipeline file for such rows',
    )


TEXTS = [
    event(),
    event(slot=4),
    event(price=None),
    event(ctx={"zoom": 1}),
    event(ctx="{"),
    event(without="query"),
    event(ts="5"),
    event(ids=[None]),
    event(unused=None)[:-1] + b', "unused": 1}',
    event()[:-1] + b', "ts": 5}',
    event() + event(),
    event() + b"\n" + event(),
    event().replace(b", ", b",\n "),
    b"  " + event() + b"\r\n",
    b"",
    b" ",
    b"{}",
    b'{"a":',
    b"1}",
    b'{"a":"}',
    b'{"}',
    event().replace(b'"unused"', b'"\xff"'),
    event(unused="\ud800"),
    event().replace(b'"unused": {', b'"unused": Inf, "u": {'),
]


@examples(60)
@given(
    picks=st.lists(st.integers(0, len(TEXTS) - 1), max_size=120),
    cuts=st.lists(st.integers(1, 50), min_size=1, max_size=10),
)
def test_neighbours_never_matter(picks: list[int], cuts: list[int]) -> None:
    """Cut into any blocks, a log gives the same rows and letters as record by record."""
    values = [TEXTS[pick] for pick in picks]

    def run(sizes: Callable[[int], int]) -> tuple[list[object], list[tuple[tuple[int, int], Reason]]]:
        letters = Letters()
        decoder = Decoder(STREAM, letters, columns=USED)
        rows: list[object] = []
        first = number = 0
        while first < len(values):
            part = values[first : first + sizes(number)]
            chunk = decoder.messages(0, MessageList.of(range(first, first + len(part)), part))
            rows += zip(chunk.offset.tolist(), chunk.batch.to_pylist(), strict=True)
            first, number = first + len(part), number + 1
        return rows, sorted((place, reason) for place, (reason, _) in letters.all.items())

    assert run(lambda number: cuts[number % len(cuts)]) == run(lambda _: 1)


def test_one_bad_record_in_thousands() -> None:
    values = [event(slot=row) for row in range(5000)]
    bad = {17, 18, 1234, 4999}
    chunk, letters = decode([b"{oops}" if row in bad else value for row, value in enumerate(values)])
    assert {place[0] - 100 for place in letters.all} == bad
    assert chunk.batch["slot"].to_pylist() == [row for row in range(5000) if row not in bad]


def test_arrow_messages_are_cast_to_the_declared_types() -> None:
    chunk, letters = decode(
        [event(), arrow(ARROW), arrow({name: ARROW[name][:0] for name in ARROW}), event()]
    )
    assert not letters.all
    rows = chunk.batch.to_pylist()
    assert rows[0] == rows[4] == ROW
    assert chunk.offset.tolist() == [100, 101, 101, 101, 103]
    assert chunk.index.tolist() == [0, 0, 1, 2, 0]
    assert [row["ts"] for row in rows[1:4]] == [1, 2, 3]
    assert [row["query"] for row in rows[1:4]] == ["a", None, "c"]
    assert [row["price"] for row in rows[1:4]] == [1.0, 1.5, 2.0]
    assert [row["ids"] for row in rows[1:4]] == [[1], [], None]
    assert [row["zoom"] for row in rows[1:4]] == [1.0, None, None]


@pytest.mark.parametrize(
    ("column", "array", "index", "reason"),
    [
        ("slot", pa.array([1, 1 << 40, 3]), 1, Reason.WRONG_TYPE),
        ("slot", pa.array([1.0, 2.0, 3.5]), 2, Reason.WRONG_TYPE),
        ("price", pa.array([float("inf"), 1, 2], pa.float32()), 0, Reason.WRONG_TYPE),
        ("ids", pa.array([[1], [None], []], pa.list_(pa.int64())), 1, Reason.WRONG_TYPE),
        ("user_id", pa.array([1, 2, None]), 2, Reason.WRONG_TYPE),
        ("ctx", pa.array(["{}", "{}", "["]), 2, Reason.BAD_JSON),
    ],
)
def test_a_bad_row_of_an_arrow_message(column: str, array: pa.Array, index: int, reason: Reason) -> None:
    chunk, letters = decode([arrow({**ARROW, column: array})])
    assert {place: said[0] for place, said in letters.all.items()} == {(100, index): reason}
    assert chunk.index.tolist() == [row for row in range(3) if row != index]


@pytest.mark.parametrize(
    ("column", "array"),
    [("ts", pa.array(["1", "2", "3"])), ("query", pa.array([1, 2, 3])), ("ids", pa.array([1, 2, 3]))],
)
def test_arrow_columns_of_another_kind(column: str, array: pa.Array) -> None:
    chunk, letters = decode([arrow({**ARROW, column: array}), event()])
    assert {place: said[0] for place, said in letters.all.items()} == {(100, 0): Reason.WRONG_TYPE}
    assert chunk.offset.tolist() == [101]


def test_arrow_bytes_that_point_outside_are_refused() -> None:
    """A flipped offset must not become a read beyond a buffer."""
    message = bytearray(arrow({**ARROW, "ctx": pa.array(["{}", "{}", "{}"])}))
    refused = 0
    for place in range(0, len(message), 7):
        damaged = bytearray(message)
        damaged[place] ^= 0x7F
        chunk, letters = decode([bytes(damaged)])
        assert len(chunk) + len(letters.all) <= 4
        refused += bool(letters.all)
    assert refused > 0


def test_resume_inside_an_arrow_message() -> None:
    letters = Letters()
    decoder = Decoder(STREAM, letters, columns=USED)
    bad = arrow({**ARROW, "slot": pa.array([1 << 40, 1 << 40, 3])})
    for skip in range(4):
        letters.all.clear()
        chunk = decoder.messages(0, MessageList.of([5, 6], [bad, arrow(ARROW)]), start=Position(5, skip))
        places = list(zip(chunk.offset.tolist(), chunk.index.tolist(), strict=True))
        assert places == [place for place in [(5, 2), (6, 0), (6, 1), (6, 2)] if place >= (5, skip)]
        assert list(letters.all) == [(5, index) for index in range(skip, 2)]


def test_table_deletes() -> None:
    table = Table("ads", key="ad_id", columns={"ad_id": "int64", "title": "string"})
    letters = Letters()
    decoder = Decoder(table, letters)
    values = [b'{"ad_id": 1, "title": "a"}', None, None, None, b'{"ad_id": 2, "title": null}']
    chunk = decoder.messages(3, MessageList.of(range(5), values, [b"1", b"1", b"x", None, b"2"]))
    assert chunk.batch.to_pylist() == [
        {"ad_id": 1, "title": "a"},
        {"ad_id": 1, "title": None},
        {"ad_id": 2, "title": None},
    ]
    assert chunk.deleted is not None
    assert chunk.deleted.tolist() == [False, True, False]
    assert {place: said[0] for place, said in letters.all.items()} == {
        (2, 0): Reason.BAD_KEY,
        (3, 0): Reason.BAD_KEY,
    }
    words = Table("words", key="word", columns={"word": "string"})
    assert decode([None], words, columns=None)[1].all[100, 0][0] == Reason.BAD_KEY


def test_where_filters_rows_without_letters() -> None:
    stream = Stream(
        "impressions",
        key="user_id",
        columns={"user_id": "int64", "slot": "int32", "shown": "bool"},
        where=lambda stream: stream.shown & (stream.slot < 3),
    )
    values = [json.dumps({"user_id": row, "slot": row, "shown": row != 1}).encode() for row in range(6)]
    chunk, letters = decode([*values, b"{"], stream, columns=[])
    assert chunk.batch["user_id"].to_pylist() == [0, 2]
    assert chunk.offset.tolist() == [100, 102]
    assert list(letters.all) == [(106, 0)]
    mask = compile_filter(stream)
    assert mask is not None
    assert mask(chunk.batch).tolist() == [True, True]


def test_rows_of_a_file(tmp_path: Path) -> None:
    letters = Letters()
    decoder = Decoder(STREAM, letters, columns=["slot"])
    batch = pa.RecordBatch.from_pydict({"user_id": [1, 2, 3], "ts": [1, None, 3], "slot": [1, 2, 1 << 40]})
    chunk = decoder.rows(0, 10, batch)
    assert chunk.batch["user_id"].to_pylist() == [1]
    assert sorted(letters.all) == [(11, 0), (12, 0)]
    assert chunk.next == Position(13, 0)
    assert len(decoder.rows(0, 13, batch.drop_columns(["slot"]))) == 0
    assert letters.all[13, 0] == (
        Reason.MISSING_COLUMN,
        "column `slot` is not in the log; its columns are ts, user_id",
    )


def test_a_typed_time_beyond_int64_and_odd_numbers_of_a_bool_are_rows_of_their_own() -> None:
    """They became 1970, and errors without words."""
    odd: dict[str, tuple[str, pa.Array]] = {
        "ts": ("int64", pa.array([1_700_000_000, 2**62, 1_700_000_001], pa.timestamp("s"))),
        "seen": ("int64", pa.array([1, -(2**62), 2], pa.timestamp("s"))),
        "half": ("bool", pa.array(np.array([0, 1.5, 1], np.float16))),
        "wide": ("bool", pa.array([0, 2**63, 1], pa.uint64())),
    }
    for name, (dtype, array) in odd.items():
        columns = {"user_id": "int64", "ts": "int64", name: dtype}
        given = {"user_id": [1, 2, 3], "ts": [1_700_000_000_000] * 3, name: array}
        stream = Stream("t", key="user_id", time="ts", columns=columns)
        chunk, letters = decode([arrow(given)], stream, columns=list(columns))
        assert chunk.batch["user_id"].to_pylist() == [1, 3] and len(letters.all) == 1, name
        assert [reason for reason, _ in letters.all.values()] == [Reason.WRONG_TYPE]
