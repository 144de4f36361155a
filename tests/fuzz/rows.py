"""Rows of messages: JSON, Arrow IPC, and Avro and Protobuf of a schema registry; record batches of Kafka.

Every record gives a row or a dead letter, and the letter's reason is a foreseen one. A block of messages
gives the rows that its messages give one by one.
"""

from __future__ import annotations

import functools
import json
import struct
from collections.abc import Mapping, Sequence
from typing import Any

import pyarrow as pa
from google.protobuf.message import DecodeError
from kafka.errors import UnsupportedCodecError

from livectr.ingest.chunks import Chunk, UnreadableMessage
from livectr.ingest.dead_letters.letters import Reason
from livectr.ingest.decode.arrow_messages import ARROW_MARK
from livectr.ingest.decode.decoder import Decoder
from livectr.ingest.decode.messages import MessageList
from livectr.ingest.decode.registered import RegisteredRows
from livectr.ingest.decode.registry import SchemaRegistry
from livectr.ingest.language.event_times import EventTime
from livectr.ingest.language.streams import Stream
from livectr.ingest.sources.kafka_batches import ReadableBatch
from livectr.ingest.sources.kafka_blocks import RecordBlock
from tests.ingest.decoding import STREAM, USED, Letters
from tests.ingest.protobuf_messages import descriptor, message_class, proto

SECONDS = Stream(
    "seconds", key="name", time=EventTime("at", unit="ns"), columns={"name": "string", "at": "int64"}
)
"""A second declaration, whose time has a unit."""

EVENTS = Stream(
    "events",
    key="user_id",
    time=EventTime("ts", unit="ms"),
    columns={
        **{"user_id": "int64", "ts": "int64", "page": "string", "price": "float64", "ids": "list<int64>"},
        **{"raw": "binary", "on": "bool", "kind": "string", "names": "list<string>", "n": "int32"},
    },
    fill={name: value for name, value in {"page": "none", "price": 0.0, "kind": "", "n": 0}.items()},
)

AVRO = {
    "type": "record",
    "name": "Event",
    "fields": [
        {"name": "user_id", "type": "int"},
        {"name": "ts", "type": {"type": "long", "logicalType": "timestamp-micros"}},
        {"name": "page", "type": ["null", "string"]},
        {"name": "price", "type": "float"},
        {"name": "ids", "type": {"type": "array", "items": "long"}},
        {"name": "raw", "type": "bytes"},
        {"name": "on", "type": "boolean"},
        {"name": "kind", "type": {"type": "enum", "name": "Kind", "symbols": ["a", "b"]}},
        {"name": "names", "type": {"type": "array", "items": "string"}},
        {"name": "n", "type": ["null", "int", "string"]},
        {"name": "unused", "type": {"type": "map", "values": "double"}},
    ],
}
PROTOBUF = """
    int64 user_id = 1;
    google.protobuf.Timestamp ts = 2;
    optional string page = 3;
    double price = 4;
    repeated int64 ids = 5;
    bytes raw = 6;
    bool on = 7;
    Kind kind = 8;
    repeated string names = 9;
    oneof one { sint32 n = 10; string other = 11; Event inner = 12; }
    enum Kind { A = 0; B = 1; }
"""


class KeptRegistry(SchemaRegistry):
    """Registry whose answers lie here: id → schema, as a registry has it."""

    def __init__(self, schemas: Mapping[int, Mapping[str, Any]]) -> None:
        super().__init__("http://registry")
        self._schemas = schemas

    def schema(self, number: int) -> dict[str, Any] | None:
        found = self._schemas.get(number)
        return None if found is None else {"path": f"/schemas/ids/{number}", **found}

    def _wanted(self, path: str, *, keep: bool = True, refusals: tuple[int, ...] = ()) -> Any:
        return None  # of a registry that has nothing else


def check(chunk: Chunk, letters: Letters, records: int) -> None:
    """Check that every record of a chunk is a row or a foreseen letter, with values that Arrow can hold."""
    chunk.batch.validate(full=True)
    places = list(zip(chunk.offset.tolist(), chunk.index.tolist(), strict=True))
    assert places == sorted(set(places)), "positions do not increase"
    assert not {*places} & {*letters.all}, "a row and a letter of one record"
    found = len({offset for offset, _ in (*places, *letters.all)})
    assert found <= records, f"{found} records of {records}"
    unforeseen = [detail for reason, detail in letters.all.values() if reason == Reason.NOT_DECODED]
    assert not unforeseen, unforeseen


def decode_twice(decoder: Any, values: Sequence[bytes]) -> None:
    """Decode messages as a block and one by one, and compare.

    Args:
        decoder: function of letters that makes a decoder.
        values: the messages.
    """
    if not values:
        return
    letters = Letters()
    chunk = decoder(letters).messages(0, MessageList.of(range(len(values)), values))
    check(chunk, letters, len(values))
    alone, rows = Letters(), []
    other = decoder(alone)
    for offset, value in enumerate(values):
        rows += other.messages(0, MessageList.of([offset], [value])).batch.to_pylist()
    assert repr(rows) == repr(chunk.batch.to_pylist()), "rows depend on the block"
    assert {*alone.all} == {*letters.all}, "letters depend on the block"


def json_rows(data: bytes) -> None:
    """Messages, one a line, for one of two declarations: all types, JSON fields, fills; text and times."""
    lines = data.split(b"\n")
    if data[:1] == b"1":
        decode_twice(lambda letters: Decoder(SECONDS, letters), [lines[0][1:], *lines[1:]])
    else:
        decode_twice(lambda letters: Decoder(STREAM, letters, columns=USED), lines)


def arrow_rows(data: bytes) -> None:
    """An Arrow IPC stream of any producer."""
    value = ARROW_MARK + data
    letters = Letters()
    chunk = Decoder(STREAM, letters, columns=USED).messages(0, MessageList.of([0], [value]))
    chunk.batch.validate(full=True)
    unforeseen = [detail for reason, detail in letters.all.values() if reason == Reason.NOT_DECODED]
    assert not unforeseen, unforeseen


def _pieces(data: bytes, head: bytes) -> list[bytes]:
    """Messages behind a head, each behind a byte with its length."""
    found, at = [], 0
    while at < len(data):
        size = data[at]
        found.append(head + data[at + 1 : at + 1 + size])
        at += 1 + size
    return found


@functools.cache
def _registered() -> RegisteredRows:
    file = descriptor(proto(PROTOBUF)).SerializeToString()
    import base64

    return RegisteredRows(
        KeptRegistry(
            {
                1: {"schema": json.dumps(AVRO)},
                2: {"schema": base64.b64encode(file).decode(), "schemaType": "PROTOBUF"},
                3: {"schema": "{}", "schemaType": "JSON"},
                4: {"schema": '{"type": "recor', "schemaType": "AVRO"},
            }
        )
    )


def _decoder(letters: Letters) -> Decoder:
    return Decoder(EVENTS, letters, registered=_registered())


def avro_rows(data: bytes) -> None:
    """Messages in a schema of Avro, or of the schema that the first byte names."""
    if not data:
        return
    number = data[0] % 8 or 1
    decode_twice(_decoder, _pieces(data[1:], b"\0\0\0\0" + bytes([number])))


def protobuf_rows(data: bytes) -> None:
    """Messages in a schema of Protobuf, also with an own path of indexes.

    A message is read where protobuf's own reader accepts it, but for times that no column can hold. Text that
    no column takes, such as that of an unread member, need not be UTF-8, as if it were bytes.
    """
    own = data[:1] == b"\xff"
    messages = _pieces(data[own:], b"\0\0\0\0\x02" + (b"" if own else b"\0"))
    decode_twice(_decoder, messages)
    if own or not messages:
        return
    letters = Letters()
    _decoder(letters).messages(0, MessageList.of(range(len(messages)), messages))
    for offset, value in enumerate(messages):
        reason, detail = letters.all.get((offset, 0), ("", ""))
        try:
            message = message_class(proto(PROTOBUF.replace("string", "bytes"))).FromString(value[6:])
            for text in (message.page, *message.names):
                text.decode()
        except (DecodeError, UnicodeDecodeError):
            assert reason == Reason.BAD_PROTOBUF, "protobuf refuses the message"
        else:
            assert reason != Reason.BAD_PROTOBUF or "is no time" in detail, f"protobuf reads it: {detail}"


def kafka_batches(data: bytes) -> None:
    """Record batches of a broker: of each byte behind its head, record by record and as a block."""
    head, records = data[:8].ljust(8, b"\0"), data[8:]
    codec, count, ms = head[0] % 8, int.from_bytes(head[1:3], "big", signed=True), head[3:8].ljust(8, b"\0")
    for blocks in (False, True):
        # baseOffset, length, leader epoch, magic, CRC, attributes, last delta, times, producer, count
        fields = (7, len(records) + 49, 0, 2, 0, codec, max(count - 1, 0))
        text = struct.pack(">qiibIhi", *fields) + ms + ms + struct.pack(">qhii", -1, -1, -1, count) + records
        batch = ReadableBatch(text)
        batch.blocks = blocks
        batch.unpacked_bytes = 1 << 16
        try:
            found = list(batch)
        except UnsupportedCodecError:
            continue
        letters = Letters()
        decoder = Decoder(STREAM, letters, columns=USED)
        for record in found:
            value = record.value
            if isinstance(value, RecordBlock):
                spans = value.spans
                size = len(value.data)
                assert ((spans.starts <= size) & (spans.stops <= size) & (spans.starts >= 0)).all()
            else:
                assert value is None or isinstance(value, bytes | memoryview | UnreadableMessage)
        values = [record for record in found if not isinstance(record.value, RecordBlock)]
        offsets = [record.offset for record in values]
        if values and offsets == sorted(set(offsets)):
            listed = [None if r.value is None else _bytes(r.value) for r in values]
            decoder.messages(0, MessageList.of(offsets, listed))


def _bytes(value: Any) -> bytes:
    return value if isinstance(value, bytes) else bytes(value)


assert pa  # the decoder's rows are Arrow's
