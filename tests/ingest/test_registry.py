"""Avro messages of a real broker with the schemas of a real registry."""

from __future__ import annotations

import io
import json
import logging
import time
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import fastavro
import pytest

from livectr.ingest.addresses import registry_options
from livectr.ingest.dead_letters.letters import DeadLetters
from livectr.ingest.decode.registry import SchemaRegistry
from livectr.ingest.language.event_times import EventTime
from livectr.ingest.language.streams import Stream
from livectr.ingest.language.tables import Table
from livectr.ingest.sources.source import open_source
from livectr.local.kafka import create_topics
from livectr.system.errors import ConfigError, ConnectError
from tests.ingest.reading import Read, Send, assign, to_end
from tests.ingest.registry_reading import letters_in, read_all, until_rows
from tests.registry import Registry
from tests.waiting import until

COLUMNS = {"user_id": "int64", "ts": "int64", "page": "string", "price": "float64"}
JSON_SCHEMA = {"$schema": "http://json-schema.org/draft-07/schema#", "type": "object"}
FIELDS: list[dict[str, Any]] = [
    {"name": "user_id", "type": "int"},
    {"name": "ts", "type": {"type": "long", "logicalType": "timestamp-micros"}},
    {"name": "page", "type": ["null", "string"]},
    {"name": "price", "type": "float"},
]


def record(fields: list[dict[str, Any]], name: str = "Event") -> dict[str, Any]:
    return {"type": "record", "name": name, "fields": fields}


def message(number: int, schema: Any, value: object) -> bytes:
    """A value in the wire format, as Confluent's serializers write it."""
    body = io.BytesIO()
    fastavro.schemaless_writer(body, fastavro.parse_schema(json.loads(json.dumps(schema))), value)
    return b"\0" + number.to_bytes(4, "big") + body.getvalue()


@pytest.fixture(scope="module")
def registry() -> Iterator[Registry]:
    with Registry() as registry:
        yield registry


@pytest.fixture
def stream(kafka_url: str, topic_name: Callable[[str], str]) -> Stream:
    name = topic_name("avro")
    create_topics(kafka_url, {name: 1})
    return Stream(
        name, key="user_id", time=EventTime("ts", unit="ms"), columns=COLUMNS, fill={"page": "none"}
    )


def test_schemas_evolve(
    kafka_url: str, registry: Registry, stream: Stream, send: Send, read: Read, tmp_path: Path
) -> None:
    """Added, removed and widened fields, renamed records, other producers' JSON: all in one topic."""
    subject = stream.topic
    versions = [
        FIELDS,
        [*FIELDS, {"name": "more", "type": {"type": "map", "values": "long"}, "default": {}}],  # added
        [{"name": "user_id", "type": "long"}, FIELDS[1], FIELDS[2], {"name": "price", "type": "double"}],
        [FIELDS[3], FIELDS[1], FIELDS[0]],  # page is gone, and the order is another
    ]
    schemas = [record(fields) for fields in versions]
    numbers = [registry.register(f"{subject}-{v}", schema) for v, schema in enumerate(schemas)]
    sent = []
    for n in range(40):
        v = n % len(schemas)
        value: dict[str, object] = {
            "user_id": n + (1 << 40 if v == 2 else 0),
            "ts": 1_000_000 + 1000 * n,
            "price": n / 2,
        }
        value |= {"page": None if n % 8 == 1 else f"p{n}"} if v != 3 else {}
        value |= {"more": {"x": 1}} if v == 1 else {}
        sent.append(message(numbers[v], schemas[v], value))
    sent.append(json.dumps({"user_id": 99, "ts": 2000, "page": "json", "price": 1}).encode())
    send(stream.topic, sent)
    letters = DeadLetters(tmp_path)
    rows = read_all(read, stream, f"{kafka_url}?registry={registry.url}", letters)
    letters.close()
    assert not letters_in(tmp_path)
    assert rows == [
        *(
            {
                "user_id": n + (1 << 40 if n % 4 == 2 else 0),
                "ts": 1000 + n,
                "page": "none" if n % 8 == 1 or n % 4 == 3 else f"p{n}",
                "price": n / 2,
            }
            for n in range(40)
        ),
        {"user_id": 99, "ts": 2000, "page": "json", "price": 1.0},
    ]


def test_bad_messages_are_set_aside_with_reason_and_schema(
    kafka_url: str, registry: Registry, stream: Stream, send: Send, read: Read, tmp_path: Path
) -> None:
    schema = record(FIELDS)
    number = registry.register(stream.topic, schema)
    other = registry.register(
        f"{stream.topic}-other", record([{"name": "price", "type": "string"}, *FIELDS[:3]])
    )
    narrow = registry.register(f"{stream.topic}-narrow", record(FIELDS[1:]))
    text = registry.register(f"{stream.topic}-text", '"string"')
    proto = registry.register(
        f"{stream.topic}-proto", 'syntax = "proto3"; message E { int64 user_id = 1; }', "PROTOBUF"
    )
    value = {"user_id": 1, "ts": 1_000_000, "page": "p", "price": 1.0}
    good = message(number, schema, value)
    sent = [
        *(good, good[:-3], good + b"x", b"\0\0\0", b"\0\0\x0f\xff\xff" + good[5:], good),
        message(
            other, record([{"name": "price", "type": "string"}, *FIELDS[:3]]), {**value, "price": "much"}
        ),
        message(narrow, record(FIELDS[1:]), value),
        message(text, "string", "hello"),
        b"\0" + proto.to_bytes(4, "big") + b"\0\x08\x01",
        good,
    ]
    send(stream.topic, sent)
    letters = DeadLetters(tmp_path)
    rows = read_all(read, stream, f"{kafka_url}?registry={registry.url}", letters)
    letters.close()
    assert len(rows) == 3
    found = letters_in(tmp_path)
    assert [(offset, reason) for offset, reason, _ in found] == [
        *((1, "bad_avro"), (2, "bad_avro"), (3, "no_schema"), (4, "no_schema")),
        *((6, "wrong_type"), (7, "missing_column"), (8, "bad_avro"), (9, "missing_column")),
    ]
    for (_, _, detail), says in zip(
        found,
        (
            *(f"not in its schema {number} (", f"not in its schema {number} (ValueError: 1 bytes are left)"),
            *("shorter than the head", f"schema {0x0FFFFF} is not in the registry"),
            *(f"(schema {other})", f"(schema {narrow})", f"a str and no record, in schema {text}"),
            f"its columns are user_id (schema {proto})",
        ),
        strict=True,
    ):
        assert says in detail


def test_tables_references_and_json_schemas(
    kafka_url: str, registry: Registry, send: Send, read: Read, topic_name: Callable[[str], str]
) -> None:
    """A null deletes its key; a schema may refer to another; lists and enums are columns."""
    topic = topic_name("ads")
    create_topics(kafka_url, {topic: 1}, compacted=[topic])
    kind = {"type": "enum", "name": "Kind", "symbols": ["VIDEO", "TEXT"]}
    registry.register(f"{topic}-kind", kind)
    fields: list[dict[str, Any]] = [
        {"name": "ad_id", "type": "long"},
        {"name": "kind", "type": "Kind"},
        {"name": "tags", "type": {"type": "array", "items": "string"}},
    ]
    reference = {"name": "Kind", "subject": f"{topic}-kind", "version": 1}
    number = registry.register(topic, record(fields, "Ad"), references=[reference])
    plain = registry.register(f"{topic}-json", JSON_SCHEMA, "JSON")
    inline = record([fields[0], {"name": "kind", "type": kind}, fields[2]], "Ad")
    ad = {"ad_id": 7, "kind": "VIDEO", "tags": ["a", "b"]}
    send(
        topic,
        [
            message(number, inline, ad),
            b"\0" + plain.to_bytes(4, "big") + json.dumps({**ad, "ad_id": 8}).encode(),
            *(None, None, None),
        ],
        keys=[
            *(b"7", b"8", b"7"),
            message(registry.register(f"{topic}-key", '"long"'), "long", 8),
            message(registry.register(f"{topic}-keys", record(fields[:1])), record(fields[:1]), {"ad_id": 9}),
        ],
    )
    table = Table(topic, key="ad_id", columns={"ad_id": "int64", "kind": "string", "tags": "list<string>"})
    source = read(table, url=f"{kafka_url}?registry={registry.url}")
    places = assign(source)
    source.start()
    chunks = to_end(source, places)
    rows = [row for chunk in chunks for row in chunk.batch.to_pylist()]
    assert rows[:2] == [ad, {**ad, "ad_id": 8}]
    (deleted,) = [chunk.deleted for chunk in chunks if chunk.deleted is not None]
    assert [row["ad_id"] for row in rows[2:]] == [7, 8, 9] and deleted.tolist()[-3:] == [True] * 3


@pytest.mark.full
def test_a_registry_that_is_away_is_waited_for(
    kafka_url: str, stream: Stream, send: Send, read: Read, caplog: pytest.LogCaptureFixture
) -> None:
    """Reading continues with schemas that are known, waits for others, and ends at once when it is closed."""
    schema = record(FIELDS)
    value = {"user_id": 1, "ts": 1_000_000, "page": "p", "price": 1.0}
    with Registry() as registry, caplog.at_level(logging.WARNING):
        number = registry.register(stream.topic, schema)
        url = f"{kafka_url}?registry={registry.url}"
        source = read(stream, url=url, until_end=False)
        assign(source)
        source.start()
        send(stream.topic, [message(number, schema, value)])
        assert until_rows(source, 1) == 1
        registry.stop()
        send(stream.topic, [message(number, schema, value)])
        assert until_rows(source, 1) == 1
        send(stream.topic, [message(number + 1, schema, value)])
        until(lambda: "reading waits for the schema registry" in caplog.text)
        registry.start()

        def change() -> None:  # it has forgotten all, and counts from 1
            schema["fields"] = [*FIELDS, {"name": f"x{time.monotonic_ns()}", "type": "int", "default": 0}]

        until(lambda: registry.register(stream.topic, schema), equals=number + 1, turn=change)
        registry.stop()
        source.close()  # though it waits for the registry
        registry.start()
    with pytest.raises(ConnectError, match="no schema registry answers at"):
        open_source(url, [stream], until_end=True, dead_letters=DeadLetters(None))


def test_an_address_without_registry_says_what_to_add(
    kafka_url: str, stream: Stream, send: Send, read: Read, tmp_path: Path
) -> None:
    send(stream.topic, [b"\0\0\0\0\x01\x02"])
    letters = DeadLetters(tmp_path)
    assert read_all(read, stream, kafka_url, letters) == []
    letters.close()
    ((_, reason, detail),) = letters_in(tmp_path)
    assert reason == "no_schema" and "registry=" in detail


def test_addresses(tmp_path: Path, monkeypatch: pytest.MonkeyPatch, registry: Registry) -> None:
    monkeypatch.setenv("REGISTRY", "key:secret")
    url = "kafka://b:9092?registry=https://r:8081&registry_auth_env=REGISTRY&registry_ca=/tls/ca.crt"
    assert registry_options(url) == {"url": "https://r:8081", "auth": "key:secret", "ca": "/tls/ca.crt"}
    assert registry_options("kafka://b:9092") is None
    for address, says in (
        ("kafka://b:9092?registry_auth_env=X", "registry_auth_env needs registry, too"),
        ("kafka://b:9092?registry=r:8081", "registry is not http://HOST:PORT"),
        ("kafka://b:9092?registry=http://r&registry_auth_env=NOT_THERE", "a variable that is not set"),
    ):
        with pytest.raises(ConfigError, match=says):
            registry_options(address)
    with pytest.raises(ConfigError, match="is no schema registry"):
        SchemaRegistry(registry.url.replace("/apis/ccompat/v7", "/apis")).check()
    with pytest.raises(ConfigError, match="cannot be used"):
        SchemaRegistry("https://r", ca=str(tmp_path / "none"))
