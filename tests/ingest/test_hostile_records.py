"""Hostile and broken records: each becomes a dead letter and has no other effect."""

from __future__ import annotations

import json
import struct
from collections.abc import Callable, Sequence
from typing import Any

import numpy as np
import numpy.typing as npt
import pyarrow as pa
import pytest
from hypothesis import example, given
from hypothesis import strategies as st

from livectr.ingest.chunks import Chunk
from livectr.ingest.dead_letters.letters import Reason
from livectr.ingest.decode.arrow_size import plain_bytes, read_messages
from livectr.ingest.decode.decoder import Decoder
from livectr.ingest.decode.messages import MessageList
from livectr.ingest.language.streams import Stream
from livectr.ingest.limits import RecordLimits
from livectr.system.errors import ConfigError
from tests.ingest.decoding import ARROW, STREAM, USED, Letters, arrow, decode, event
from tests.tiers import examples

MIB = 1 << 20


def with_extra(text: bytes, more: bytes) -> bytes:
    """A JSON object with a member that no column reads."""
    return text[:-1] + b', "extra": ' + more + b"}"


def nested(depth: int) -> bytes:
    """Value of `depth` nested objects."""
    return b'{"a":' * depth + b"1" + b"}" * depth


def packed(table: pa.Table, codec: str | None) -> bytes:
    sink = pa.BufferOutputStream()
    options = pa.ipc.IpcWriteOptions(compression=codec)
    with pa.ipc.new_stream(sink, table.schema, options=options) as writer:
        writer.write_table(table)
    return sink.getvalue().to_pybytes()


def among_good(value: bytes, **options: Any) -> tuple[Chunk, Letters]:
    """Decode a record between two good records, which must both arrive."""
    chunk, letters = decode([event(slot=11), value, event(slot=12)], **options)
    assert chunk.batch["slot"].to_pylist()[:: max(1, len(chunk) - 1)] == [11, 12]
    assert chunk.offset.tolist()[:: max(1, len(chunk) - 1)] == [100, 102]
    assert set(letters.all) <= {(101, index) for index in range(1 << 12)}
    return chunk, letters


@pytest.mark.parametrize("text", [event(), event(query=None), event(without="query"), event(price="x")])
@pytest.mark.parametrize("depth", [1_200, 200_000])
def test_a_column_that_nobody_uses_may_not_be_deep(text: bytes, depth: int) -> None:
    chunk, letters = among_good(with_extra(text, nested(depth)), limits=RecordLimits(record_bytes=4 * MIB))
    assert letters.all[101, 0] == (Reason.TOO_DEEP, "more than 64 objects and lists within each other")
    assert len(chunk) == 2


def test_the_limit_of_depth_counts_what_is_open_at_once() -> None:
    """Brackets in strings, and objects beside each other, are not deep."""
    flat = [{"a": [n]} for n in range(200)]
    texts = [with_extra(event(), json.dumps(value).encode()) for value in ("[{" * 500, '\\"{' * 99, flat)]
    texts += [with_extra(event(), nested(63)), with_extra(event(), nested(64))]
    _, letters = decode(texts)
    assert list(letters.all) == [(104, 0)]
    _, letters = decode([event(ctx='{"zoom": 1, "a": ' + "[" * 70 + "]" * 70 + "}")])
    assert letters.all[100, 0][0] == Reason.TOO_DEEP


@pytest.mark.parametrize("more", [b"9" * 400, b"9" * 5000, b"Inf", b"NaN", b"-0", b"1e-999"])
def test_numbers_that_pythons_json_does_not_know(more: bytes) -> None:
    """Without the column that is required, and with it."""
    chunk, letters = among_good(with_extra(event(without="query"), more))
    assert letters.all[101, 0][0] in (Reason.MISSING_COLUMN, Reason.BAD_JSON)
    assert len(chunk) == 2
    chunk, letters = among_good(with_extra(event(), more))
    assert len(chunk) + len(letters.all) == 3


@pytest.mark.parametrize("codec", ["zstd", "lz4", None])
@pytest.mark.parametrize("kind", ["nulls", "zeros"])
def test_rows_of_an_arrow_message_are_counted_before_they_are_unpacked(kind: str, codec: str | None) -> None:
    column = pa.nulls(20_000_000) if kind == "nulls" else pa.array(np.zeros(20_000_000, np.int8))
    before = pa.total_allocated_bytes()
    bomb = packed(pa.table({"user_id": column, "ts": column}), codec)
    _, letters = among_good(bomb)
    assert letters.all == {(101, 0): (Reason.OVERSIZE, "20000000 rows, more than 1048576")}
    assert pa.total_allocated_bytes() <= before + MIB


@pytest.mark.parametrize("codec", ["zstd", None])
def test_a_stream_without_its_schema_is_a_letter(codec: str | None) -> None:
    """pyarrow's read_schema takes any message for a schema, and reads outside of it."""
    stream = arrow(ARROW) if codec is None else packed(pa.table(ARROW), codec)
    (size,) = struct.unpack_from("<i", stream, 4)
    _, letters = among_good(stream[8 + size :])
    assert letters.all == {(101, 0): (Reason.BAD_ARROW, "an Arrow stream without schema")}


def list_of_nulls(n: int) -> pa.Array:
    return pa.ListArray.from_arrays(pa.array([0, n], pa.int32()), pa.nulls(n))


def views(text: str, n: int) -> pa.Array:
    """Array of n views of the same text."""
    view = struct.pack("<i4sii", len(text), text[:4].encode(), 0, 0)
    buffers = [None, pa.py_buffer(view * n), pa.py_buffer(text.encode())]
    return pa.Array.from_buffers(pa.string_view(), n, buffers)


LONG = "x" * MIB
EXPANDING: dict[str, tuple[str, Callable[[], pa.Array]]] = {
    "zeros": ("thumb", lambda: pa.array([bytes(128 * MIB)])),
    "dictionary": ("query", lambda: pa.DictionaryArray.from_arrays(np.zeros(1000, np.int8), [LONG])),
    "dictionary of lists": (
        "ids",
        lambda: pa.DictionaryArray.from_arrays(np.zeros(1000, np.int8), pa.array([list(range(100_000))])),
    ),
    "views": ("query", lambda: views(LONG, 1000)),
    "list of nulls": ("ids", lambda: list_of_nulls(2_000_000_000)),
    "fixed lists": (
        "ids",
        lambda: pa.FixedSizeListArray.from_arrays(pa.nulls(2_000_000_000), 2_000_000_000),
    ),
}
"""Column and what fills it. Each process that collects the tests would else hold 600 MiB of them."""


@pytest.mark.parametrize("name", EXPANDING)
def test_what_grows_when_it_is_unpacked_is_counted_before(name: str) -> None:
    column, made = EXPANDING[name]
    array = made()
    rows = {key: pa.array([1] * len(array), pa.int64()) for key in ("user_id", "ts", "slot")}
    stream = Stream(
        "s", key="user_id", time="ts", columns={**{key: "int64" for key in rows}, column: LISTED[column]}
    )
    message = packed(pa.table({**rows, column: array}), "zstd")
    assert len(message) < 4 * MIB
    allocated = pa.total_allocated_bytes()
    letters = Letters()
    good = json.dumps({"user_id": 7, "ts": 1, "slot": 1, column: None}).encode()
    chunk = Decoder(stream, letters).messages(0, MessageList.of([1, 2], [message, good]))
    assert chunk.batch["user_id"].to_pylist() == [7]
    assert letters.all[1, 0][0] == Reason.OVERSIZE
    assert "when it is unpacked, more than 67108864" in letters.all[1, 0][1]
    assert pa.total_allocated_bytes() <= allocated + MIB


LISTED = {"thumb": "binary", "query": "string", "ids": "list<int64>"}


@pytest.mark.parametrize(
    ("array", "size"),
    [
        (pa.array(["ab", None, "ab"]).dictionary_encode(), 4),
        (pa.array(["ab", None, "y" * 20], pa.string_view()), 22),
        (pa.array(["ab", None, "y" * 20], pa.string_view()).slice(2), 20),
        (pa.array([[1, 2], None, [3]]), 24),
        (pa.DictionaryArray.from_arrays([0, 1, 1, None], [["ab"], ["c", "d"]]), 10 + 18 + 18),
        (pa.array([1, 2], pa.int16()), 4),
    ],
)
def test_plain_bytes(array: pa.Array, size: int) -> None:
    assert plain_bytes(array) == size


def test_sizes_are_those_that_pyarrow_unpacks() -> None:
    table = pa.table({name: ARROW[name] for name in ("user_id", "price", "ids", "thumb", "query")})
    for codec in (None, "zstd", "lz4"):
        schema, rows, size = read_messages(packed(table, codec))
        assert (schema.names, rows) == (table.schema.names, 3)
        assert size >= table.combine_chunks().nbytes


def test_a_letter_about_values_that_python_has_not() -> None:
    """Nanoseconds and the year 292,277 have no datetime; the letter is written anyway."""
    far = pa.array([(1 << 63) - 1, 5, None], pa.timestamp("ns"))
    chunk, letters = decode(
        [arrow({**ARROW, "ts": far, "slot": pa.array([1, 1 << 40, 1])})], columns=["slot"]
    )
    assert chunk.index.tolist() == [0]
    assert [letters.all[100, index][0] for index in (1, 2)] == [Reason.WRONG_TYPE] * 2


@pytest.mark.parametrize("form", ["json", "arrow", "file"])
def test_whatever_is_raised_is_traced_to_its_record(form: str) -> None:
    """A filter stands for any part of decoding that fails on a record."""

    def mask(batch: pa.RecordBatch) -> npt.NDArray[np.bool_]:
        if 13 in batch["user_id"].to_pylist():
            raise RecursionError("thirteen")
        return np.ones(batch.num_rows, bool)

    stream = Stream("s", key="user_id", columns={"user_id": "int64", "slot": "int32"})
    letters = Letters()
    decoder = Decoder(stream, letters, mask=mask)
    rows: list[dict[str, object]] = [{"user_id": user, "slot": 1} for user in range(40)]
    rows[20] = {"user_id": 20, "slot": "x" if form == "json" else None}
    batch = pa.RecordBatch.from_pylist(rows) if form != "json" else None
    if form == "json":
        chunk = decoder.messages(0, MessageList.of(range(40), [json.dumps(row).encode() for row in rows]))
    elif form == "arrow":
        chunk = decoder.messages(0, MessageList.of([0], [packed(pa.Table.from_batches([batch]), None)]))
    else:
        chunk = decoder.rows(0, 0, batch)
    left = [user for user in range(40) if user != 13 and (user != 20 or form != "json")]
    assert chunk.batch["user_id"].to_pylist() == left
    place = (0, 13) if form == "arrow" else (13, 0)
    assert letters.all[place] == (Reason.NOT_DECODED, "RecursionError: thirteen")
    assert len(letters.all) == 40 - len(left)


def test_limits_that_cannot_work() -> None:
    with pytest.raises(ConfigError, match="the limit depth is 257; it must be at most 256"):
        RecordLimits(depth=257)
    with pytest.raises(ConfigError, match="message_rows is 0; it must be at least 1"):
        RecordLimits(message_rows=0)


VALID = [
    event(),
    event(ctx={"device": {"browser": "x"}, "zoom": 1}),
    event(query="é" * 40, ids=list(range(30))),
    packed(pa.table(ARROW), None),
    packed(pa.table(ARROW), "zstd"),
    packed(pa.table({**ARROW, "query": pa.array(["a" * 30, None, "b"], pa.string_view())}), "lz4"),
]
HOSTILE = st.sampled_from(
    [b"1e999", b"9" * 400, b"NaN", b'"\\ud800"', b"\xff\xfe", b"\0", b'"ts": 1, "ts": 2', b"[" * 70]
)


@st.composite
def damaged(draw: st.DrawFn) -> bytes:
    """Valid message with flipped bits, changed numbers, removed or inserted bytes."""
    value = bytearray(draw(st.sampled_from(VALID)))
    for _ in range(draw(st.integers(1, 4))):
        place = draw(st.integers(0, max(0, len(value) - 1)))
        kind = draw(st.integers(0, 4))
        if kind == 0 and value:
            value[place] ^= 1 << draw(st.integers(0, 7))
        elif kind == 1:
            number = draw(st.sampled_from([-1, 0, 1 << 31, 1 << 40, (1 << 63) - 1, -(1 << 63)]))
            value[place : place + 8] = struct.pack("<q", number)
        elif kind == 2:
            del value[place:]
        elif kind == 3:
            del value[place : place + draw(st.integers(1, 40))]
        else:
            value[place:place] = draw(HOSTILE)
    return bytes(value)


@examples(400)
@given(values=st.lists(st.one_of(damaged(), st.binary(max_size=200)), min_size=1, max_size=3))
@example(values=[with_extra(event(without="query"), nested(1200))])
def test_nothing_that_a_record_holds_does_harm(values: Sequence[bytes]) -> None:
    """Bad records between good records: the good ones arrive, and each bad record gives rows or letters."""
    mixed = [event(slot=0)]
    for value in values:
        mixed += [value, event(slot=1)]
    letters = Letters()
    chunk = Decoder(STREAM, letters, columns=USED, limits=RecordLimits(unpacked_bytes=MIB)).messages(
        0, MessageList.of(range(len(mixed)), mixed)
    )
    found = dict(zip(chunk.offset.tolist(), chunk.batch["slot"].to_pylist(), strict=True))
    assert [found.get(offset) for offset in range(0, len(mixed), 2)] == [0] + [1] * len(values)
    of_letters = {offset for offset, _ in letters.all}
    assert not of_letters & set(range(0, len(mixed), 2))
    for offset in range(1, len(mixed), 2):
        empty = mixed[offset][:4] == b"\xff\xff\xff\xff"  # an Arrow message may have no row at all
        assert empty or offset in found or offset in of_letters
