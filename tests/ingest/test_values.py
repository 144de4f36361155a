"""A value means one thing: every door gives what `system.values.meaning` says, or refuses it."""

from __future__ import annotations

import base64
import json
import math
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pyarrow as pa
import pytest
from hypothesis import given
from hypothesis import strategies as st

from livectr.client.pack import column_of
from livectr.commands.run.query import _value, _values
from livectr.ingest.dead_letters.letters import Reason
from livectr.ingest.language import dtypes
from livectr.ingest.language.streams import Stream, labelled
from livectr.ingest.operators import length
from livectr.ingest.pipeline import Pipeline
from livectr.library.tables import root_columns, to_table
from livectr.logs.account import Account
from livectr.logs.files import log_rows
from livectr.serving.errors import RequestError
from livectr.serving.front.requests import JsonRequest, typed
from livectr.system.errors import ConfigError
from livectr.system.values import UnfitError, meaning
from tests.ingest.decoding import arrow, decode
from tests.ingest.registered_values import REGISTERED, UNION, UnwritableError, avro, protobuf
from tests.serving.parsed import array_of
from tests.tiers import examples

REFUSED = "refused"
DTYPES = [dtype for dtype in dtypes.DTYPES if dtype != "image"]


def expected(value: Any, dtype: str) -> Any:
    try:
        return meaning(value, dtype)
    except UnfitError:
        return REFUSED


def _stream(dtype: str) -> Stream:
    return Stream("t", key="k", columns={"k": "int64", "x": dtype, "click": "int64"})


def _decoded(record: bytes, dtype: str, **options: Any) -> Any:
    chunk, letters = decode([record], _stream(dtype), columns=["k", "x"], **options)
    assert len(chunk) + len(letters.all) == 1, "a row has one account"
    return chunk.batch.column("x")[0].as_py() if len(chunk) else REFUSED


def from_json(value: Any, dtype: str) -> Any:
    return _decoded(json.dumps({"k": 1, "x": value}).encode(), dtype)


def from_arrow(value: Any, dtype: str) -> Any:
    try:
        column = pa.array([value])
    except UnicodeError:
        return expected(value, dtype)  # Arrow cannot write it
    except OverflowError:
        wide = pa.decimal128(38)
        column = pa.array([value], pa.list_(wide) if isinstance(value, list) else wide)
    return _decoded(arrow({"k": pa.array([1]), "x": column}), dtype)


def from_avro(value: Any, dtype: str) -> Any:
    try:
        return _decoded(avro(value), dtype, registered=REGISTERED)
    except UnwritableError:
        return expected(value, dtype)


def from_protobuf(value: Any, dtype: str) -> Any:
    try:
        return _decoded(protobuf(value, dtype), dtype, registered=REGISTERED)
    except UnwritableError:
        return expected(value, dtype)


def from_rows(value: Any, dtype: str) -> Any:
    found = _of_rows([value], dtype)
    return found if found is REFUSED else found[0]


def _of_rows(values: list[Any], dtype: str) -> Any:
    log = labelled(_stream(dtype), label="click")
    vector = dtypes.element(dtype) in ("float32", "float64")
    x = length(log.x) if dtypes.is_list(dtype) and vector else log.x
    pipeline = Pipeline(
        log, sparse={"k": log.k} | ({} if vector else {"x": x}), dense={"x": x} if vector else {}, rank=None
    )
    try:
        return root_columns(pipeline, [{"k": 1, "x": one} for one in values]).column("t.x").to_pylist()
    except ConfigError:
        return REFUSED


def from_request(value: Any, dtype: str) -> Any:
    """As one of three candidates, and alone."""
    try:
        alone = array_of(column_of("x", [value], dtype), dtype, 1)
        third = array_of(column_of("x", [None, value, value], dtype), dtype, 3)
    except (ConfigError, RequestError):
        return REFUSED
    assert third[0].as_py() is None and third[1].equals(alone[0]) and third[2].equals(alone[0])
    return alone[0].as_py()


def from_http(value: Any, dtype: str) -> Any:
    try:
        sent = typed("x", json.loads(json.dumps(value)), dtype)
        return array_of(column_of("x", [sent], dtype), dtype, 1)[0].as_py()
    except (ConfigError, RequestError):
        return REFUSED


DOORS: dict[str, Callable[[Any, str], Any]] = {
    "json": from_json, "arrow": from_arrow, "avro": from_avro, "protobuf": from_protobuf,
    "rows": from_rows, "request": from_request, "http": from_http,
}  # fmt: skip
OF_JSON = ("json", "http")

WHOLE = st.one_of(
    st.integers(-5, 5),
    st.sampled_from(
        [2**31 - 1, 2**31, -(2**31) - 1, 2**53 + 1, 2**63 - 1, 2**63, -(2**63), -(2**63) - 1, 2**64]
    ),
)
IN_INT64 = WHOLE.filter(lambda value: -(2**63) <= value < 2**63)
FRACTIONS = st.one_of(
    st.floats(width=32),
    st.sampled_from([17.0, -0.0, 2.0**53, 2.0**53 + 2, 1e39, 1e300, 0.1, math.nan, math.inf, -math.inf]),
)
TEXTS = st.one_of(st.text(max_size=4), st.sampled_from(["", "17", "007", "a,b", "nan", "a\ud800b", "\udcff"]))
SCALARS = st.one_of(st.none(), st.booleans(), WHOLE, FRACTIONS, TEXTS)


def _alike(kind: st.SearchStrategy[Any]) -> st.SearchStrategy[Any]:
    return st.lists(kind, max_size=3)


VALUES = st.one_of(
    SCALARS, _alike(WHOLE), _alike(FRACTIONS), _alike(TEXTS), _alike(st.booleans()), _alike(st.none() | WHOLE)
)


def _same(found: Any, wanted: Any) -> bool:
    return type(found) is type(wanted) and (
        len(found) == len(wanted) and all(map(_same, found, wanted))
        if isinstance(wanted, list)
        else found == wanted
    )


@pytest.mark.parametrize("door", DOORS)
@examples(400)
@given(st.sampled_from(DTYPES), VALUES)
def test_a_value_means_the_same_through_every_door(door: str, dtype: str, value: Any) -> None:
    if dtype == "binary" and door in OF_JSON and isinstance(value, str):
        return  # base64, below
    texts = isinstance(value, str) or (isinstance(value, list) and any(isinstance(one, str) for one in value))
    if door == "http" and texts and dtypes.element(dtype) in ("int64", "int32"):
        return  # JavaScript's whole numbers, below
    assert _same(DOORS[door](value, dtype), expected(value, dtype))


@examples(400)
@given(
    st.sampled_from(DTYPES), st.lists(st.none() | st.booleans() | WHOLE | FRACTIONS, min_size=2, max_size=4)
)
def test_a_value_means_the_same_among_others(dtype: str, values: list[Any]) -> None:
    """Rows of the library may mix numbers with true and false, as those of a log."""
    wanted = [expected(value, dtype) for value in values]
    assert _same(_of_rows(values, dtype), REFUSED if REFUSED in wanted else wanted)


@pytest.mark.parametrize("form", ["json", "avro"])
@examples(200)
@given(
    st.sampled_from(DTYPES),
    st.lists(st.none() | st.booleans() | IN_INT64 | FRACTIONS, min_size=1, max_size=6),
)
def test_a_record_means_the_same_among_others(form: str, dtype: str, values: list[Any]) -> None:
    """In Avro the values are of one union."""
    records = [
        json.dumps({"k": 1, "x": value}).encode() if form == "json" else avro(value, UNION)
        for value in values
    ]
    chunk, letters = decode(records, _stream(dtype), columns=["k", "x"], registered=REGISTERED)
    found = dict(zip(chunk.offset.tolist(), chunk.batch.column("x").to_pylist(), strict=True))
    found |= {offset: REFUSED for offset, _ in letters.all}
    assert _same([found[100 + n] for n in range(len(values))], [expected(value, dtype) for value in values])


@pytest.mark.parametrize("door", OF_JSON)
@examples(100)
@given(st.binary(max_size=9) | st.sampled_from(["YQ", "YQ=", "%%", "a b="]))
def test_bytes_are_base64_in_json(door: str, value: bytes | str) -> None:
    text = base64.b64encode(value).decode() if isinstance(value, bytes) else value
    assert DOORS[door](text, "binary") == (value if isinstance(value, bytes) else REFUSED)


@pytest.mark.parametrize(
    "text",
    ['{"k": 1, "x": 1, "x": 2}', '{"k": 1, "x": null, "x": 2}', '{"k": 1, "x": 1, "\\u0078": 1}'],
)
def test_a_key_that_is_there_twice_is_refused_through_every_door(tmp_path: Path, text: str) -> None:
    """Nobody says which value counts; each door names the key."""
    _, letters = decode([text.encode()], _stream("int64"), columns=["k", "x"])
    assert letters.all == {(100, 0): (Reason.BAD_JSON, "key `x` is there twice")}
    with pytest.raises(ConfigError, match="the request is no JSON: key `x` is there twice"):
        JsonRequest(f'{{"context": {text}}}'.encode(), ("context",))
    (tmp_path / "log.jsonl").write_text(f'{{"k": 0, "x": 0}}\n{text}\n')
    account = Account(tmp_path / "log.jsonl")
    assert [rows.places.tolist() for rows in log_rows(account)] == [[1]]
    assert account.first == ["line 2: key `x` is there twice"]


def test_the_last_of_a_repeated_field_counts_in_protobuf() -> None:
    """Its specification says so, and writers that merge messages count on it."""
    assert _decoded(protobuf(1, "int64") + b"\x10\x02", "int64", registered=REGISTERED) == 2


def test_a_column_that_is_there_twice_is_refused() -> None:
    twice = pa.RecordBatch.from_arrays([pa.array([1]), pa.array([2]), pa.array([3])], ["k", "x", "x"])
    _, letters = decode([arrow(pa.Table.from_batches([twice]))], _stream("int64"), columns=["k", "x"])
    assert letters.all == {(100, 0): (Reason.WRONG_TYPE, "column `x` is there twice")}
    with pytest.raises(ConfigError, match="rows: column `x` is there twice"):
        to_table(twice, "rows")


def test_only_a_repeated_key_in_use_counts() -> None:
    text = b'{"k": 1, "x": true, "other": 1, "other": 2, "deep": {"x": 1, "x": 2}}'
    assert _decoded(text, "int64") == 1


def test_a_repeated_key_on_the_path_of_a_field_is_named() -> None:
    log = Stream("t", key="k", columns={"k": "int64", "o": "string", "p": "int64"}, json_fields={"p": "o.p"})
    for text, key in (('{"p": 1, "p": 2}', "o.p"), ('{"p": 1}, "o": {"p": 1}', "o")):
        _, letters = decode([f'{{"k": 1, "o": {text}}}'.encode()], log, columns=["k", "p"])
        assert letters.all == {(100, 0): (Reason.BAD_JSON, f"key `{key}` is there twice")}


@examples(100)
@given(WHOLE)
def test_javascript_may_write_whole_numbers_as_texts(value: int) -> None:
    assert from_http(str(value), "int64") == expected(value, "int64")
    assert from_http(f"0{abs(value)}", "int64") == REFUSED


@pytest.mark.parametrize(
    ("text", "dtype", "value"),
    [
        ("17", "int64", 17),
        ("17.0", "int32", 17),
        ("-3", "int64", -3),
        ("007", "int64", REFUSED),
        ("1_000", "int64", REFUSED),
        ("17.5", "int64", REFUSED),
        ("null", "int64", None),
        ("1e3", "float64", 1000.0),
        ("nan", "float64", None),
        ("inf", "float64", REFUSED),
        ("1,5", "float64", REFUSED),
        ("true", "bool", True),
        ("0", "bool", False),
        ("2", "bool", REFUSED),
        ("null", "string", "null"),
        (" a,b", "string", " a,b"),
        ("a,b", "list<string>", ["a", "b"]),
        ("a b", "list<string>", ["a", "b"]),
        ('["a b", "c,d"]', "list<string>", ["a b", "c,d"]),
        ("[]", "list<string>", []),
        ("", "list<string>", []),
        ("null", "list<string>", None),
        ("[1, null]", "list<int64>", REFUSED),
        ("1, 2", "list<int64>", [1, 2]),
        ("1,x", "list<int64>", REFUSED),
    ],
)
def test_words_of_the_command_line_are_written_as_json_writes_values(
    text: str, dtype: str, value: Any
) -> None:
    try:
        found = array_of(column_of("x", [_value("x", text, {"x": dtype})], dtype), dtype, 1)[0].as_py()
    except (ConfigError, RequestError):
        found = REFUSED
    assert _same(found, value)


def test_candidates_of_the_command_line() -> None:
    def values(text: str, dtype: str) -> list[Any]:
        return _values("x", text, {"x": dtype})

    assert values("a,b", "string") == ["a", "b"] and values('["a,b", null]', "string") == ["a,b", None]
    assert values("1,null", "int64") == [1, None]
    assert values("a b,c,", "list<string>") == [["a", "b"], ["c"], []]
    assert values('[["a b"], []]', "list<string>") == [["a b"], []]
    assert values("[x,y", "string") == ["[x", "y"]
