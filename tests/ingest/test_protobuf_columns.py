"""Random schemas and messages of Protobuf, encoded by google.protobuf, read as google.protobuf reads them."""

from __future__ import annotations

from collections.abc import Iterator
from typing import Any

import pyarrow as pa
import pytest
from hypothesis import given
from hypothesis import strategies as st

from livectr.ingest.decode.registered_protobuf import ProtobufReader
from livectr.ingest.decode.registry import SchemaRegistry, Wanted
from tests.confluent import Confluent
from tests.ingest.protobuf_schemas import Schema, comparable, encoded, expected, schemas
from tests.tiers import examples


@pytest.fixture(scope="module")
def registry() -> Iterator[Confluent]:
    with Confluent() as registry:
        yield registry


def columns_of(registry: Confluent, schema: Schema, bodies: list[bytes], names: list[str]) -> list[Any]:
    """Rows of messages as the reader gives them; None where it refuses one."""
    number = registry.register("e", 'syntax = "proto3";', schema.file)
    client = SchemaRegistry(registry.url)
    found = client.schema(number)
    assert found is not None
    reader = ProtobufReader(client, number, found)
    wanted = Wanted(tuple(names))
    messages = [b"\0" + number.to_bytes(4, "big") + b"\0" + body for body in bodies]
    assert reader.prepare(messages[0], wanted)
    read = reader.batch(messages, wanted)
    batch = pa.RecordBatch.from_arrays(
        [
            array.cast(pa.int64()) if pa.types.is_timestamp(array.type) else array
            for array in read.batch.columns
        ],
        read.batch.schema.names,
    )
    batch.validate(full=True)
    rows: list[Any] = [None] * len(bodies)
    for place, row in zip(read.rows.tolist(), batch.to_pylist(), strict=True):
        rows[place] = {name: comparable(row[name]) for name in names}
    assert {place for place, _ in read.refused} == {place for place, row in enumerate(rows) if row is None}
    return rows


@examples(150)
@given(data=st.data())
def test_messages_are_read_as_google_protobuf_reads_them(registry: Confluent, data: st.DataObject) -> None:
    """Also messages that are joined, which merges them, and some of the columns alone."""
    schema = data.draw(schemas())
    one = encoded(schema)
    bodies = data.draw(st.lists(st.one_of(one, st.tuples(one, one).map(b"".join)), min_size=1, max_size=5))
    names = [field.name for field in schema.message.DESCRIPTOR.fields]
    wanted = data.draw(st.lists(st.sampled_from(names), unique=True, min_size=1))
    rows = columns_of(registry, schema, bodies, wanted)
    for row, body in zip(rows, bodies, strict=True):
        right = expected(schema, body)
        if right is not None:
            assert row == {name: right[name] for name in wanted}
        elif len(wanted) == len(names):
            assert row is None


@examples(150)
@given(data=st.data())
def test_other_messages_are_read_or_refused_as_google_protobuf_does(
    registry: Confluent, data: st.DataObject
) -> None:
    """Fields of another type, unknown fields, damaged bytes: read alike, and refused alike."""
    schema, other = data.draw(schemas()), data.draw(schemas())
    bodies = []
    for _ in range(6):
        drawn = bytearray(data.draw(encoded(data.draw(st.sampled_from([schema, other])))))
        for place in data.draw(st.lists(st.integers(0, max(len(drawn) - 1, 0)), max_size=2)):
            drawn[place : place + 1] = data.draw(st.binary(max_size=3))
        bodies.append(bytes(drawn))
    names = [field.name for field in schema.message.DESCRIPTOR.fields]
    rows = columns_of(registry, schema, bodies, names)
    for row, body in zip(rows, bodies, strict=True):
        assert row == expected(schema, body), body.hex()
