"""Protobuf messages of a real broker with the schemas of a registry."""

from __future__ import annotations

import logging
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import pytest

from livectr.ingest.dead_letters.letters import DeadLetters
from livectr.ingest.language.event_times import EventTime
from livectr.ingest.language.streams import Stream
from livectr.ingest.language.tables import Table
from livectr.local.kafka import create_topics
from tests.confluent import Confluent
from tests.ingest.protobuf_messages import COLUMNS, FIELDS, descriptor, filled, message, proto
from tests.ingest.reading import Read, Send, assign, to_end
from tests.ingest.registry_reading import letters_in, read_all, until_rows
from tests.registry import Registry
from tests.waiting import until


@pytest.fixture(scope="module")
def registry() -> Iterator[Registry]:
    """A registry that serves text."""
    with Registry() as registry:
        yield registry


@pytest.fixture(scope="module")
def confluent() -> Iterator[Confluent]:
    """A registry that serves descriptors, too."""
    with Confluent() as registry:
        yield registry


@pytest.fixture
def stream(kafka_url: str, topic_name: Callable[[str], str]) -> Stream:
    name = topic_name("protobuf")
    create_topics(kafka_url, {name: 1})
    return Stream(
        name, key="user_id", time=EventTime("ts", unit="ms"), columns=COLUMNS, fill={"page": "none"}
    )


def test_schemas_evolve(
    kafka_url: str, registry: Registry, stream: Stream, send: Send, read: Read, tmp_path: Path
) -> None:
    """Added, removed, widened and renamed fields, other producers' JSON: all in one topic."""
    versions = [
        FIELDS,
        FIELDS + "map<string, int64> more = 9; repeated float ratios = 10;",  # added
        FIELDS.replace("int32 user_id", "int64 user_id").replace("float price", "double price"),  # widened
        FIELDS.replace("optional string page = 3;", "reserved 3;"),  # removed
        FIELDS.replace("user_id", "user").replace("price", "amount"),  # renamed
    ]
    texts = [proto(fields) for fields in versions]
    numbers = [registry.register(f"{stream.topic}-value", text, "PROTOBUF") for text in texts]
    sent = []
    for n in range(50):
        v = n % len(texts)
        user, price = ("user", "amount") if v == 4 else ("user_id", "price")
        values: dict[str, Any] = {
            user: n + (1 << 40 if v == 2 else 0),
            "ts": 1_000_000 + 1000 * n,
            price: n / 2,
        }
        values |= {"page": f"p{n}"} if v != 3 and n % 2 else {}
        values |= {"more": {"x": 1}, "ratios": [0.5, 2.0]} if v == 1 else {}
        sent.append(message(numbers[v], texts[v], **values))
    sent.append(b'{"user_id": 99, "ts": 2000, "page": "json", "price": 1}')
    send(stream.topic, sent)
    letters = DeadLetters(tmp_path)
    rows = read_all(read, stream, f"{kafka_url}?registry={registry.url}", letters)
    letters.close()
    assert not letters_in(tmp_path)
    assert rows == [
        *(
            {
                "user_id": n + (1 << 40 if n % 5 == 2 else 0),
                "ts": 1000 + n,
                "page": f"p{n}" if n % 5 != 3 and n % 2 else "none",
                "price": n / 2,
            }
            for n in range(50)
        ),
        {"user_id": 99, "ts": 2000, "page": "json", "price": 1.0},
    ]


def test_bad_messages_are_set_aside_with_reason_and_schema(
    kafka_url: str, confluent: Confluent, stream: Stream, send: Send, read: Read, tmp_path: Path
) -> None:
    def register(subject: str, text: str) -> int:
        return confluent.register(f"{stream.topic}-{subject}", text, descriptor(text))

    text = proto(FIELDS)
    number = register("value", text)
    other = proto(FIELDS.replace("float price", "string price"))
    narrow = proto(FIELDS.replace("float price = 4;", ""))
    grouped = proto(FIELDS.replace("float price", "map<string, float> price"))
    nested = proto(FIELDS.replace("float price", "Price price")) + " message Price { float amount = 1; }"
    large = proto(FIELDS.replace("int32 user_id", "uint64 user_id"))
    broken = confluent.register(f"{stream.topic}-broken", "no proto")
    values: dict[str, Any] = {"user_id": 1, "ts": 1_000_000, "page": "p"}
    good = message(number, text, **values, price=1.0)
    late = filled(text, **values, price=1.0)
    late.ts.seconds = 1 << 40
    numbers = {
        name: register(name, text)
        for name, text in (
            ("other", other),
            ("narrow", narrow),
            ("grouped", grouped),
            ("nested", nested),
            ("large", large),
        )
    }
    sent = [
        *(good, good[:-3], good + b"x", b"\0\0\0", b"\0\0\x0f\xff\xff" + good[5:], good),
        message(numbers["other"], other, **values, price="much"),
        message(numbers["narrow"], narrow, **values),
        message(numbers["grouped"], grouped, **values, price={"a": 1.0}),
        message(numbers["nested"], nested, **values),
        message(numbers["large"], large, **{**values, "user_id": 1 << 63}, price=1.0),
        good[:5] + b"\x02\x02" + good[6:],  # the second message of the file
        good[:5] + b"\x04\0",  # cut off
        good.replace(b"\x1a\x01p", b"\x1a\x01\xff"),
        good[:6] + late.SerializeToString(),
        message(broken, text, **values),
        good,
    ]
    send(stream.topic, sent)
    letters = DeadLetters(tmp_path)
    rows = read_all(read, stream, f"{kafka_url}?registry={confluent.url}", letters)
    letters.close()
    assert rows == [{"user_id": 1, "ts": 1000, "page": "p", "price": 1.0}] * 3
    bad = f"not in its schema {number} ("
    map_ = "column `price` is a map in the log, which no column can hold; write its keys and values as two"
    inner = "column `price` is a message (shop.Price) in the log, which no column can hold; write its fields"
    no_type = f"its message indexes name no message of schema {number}, or are cut off"
    right = [
        (1, "bad_protobuf", f"{bad}it is damaged or cut off)"),
        (2, "bad_protobuf", f"{bad}it is damaged or cut off)"),
        (3, "no_schema", "shorter than the head"),
        (4, "no_schema", f"schema {0x0FFFFF} is not in the registry"),
        (6, "wrong_type", "column `price` is text in the log, the pipeline says float64"),
        (7, "missing_column", "column `price` is not in the log; its columns are page, ts, user_id (schema"),
        (8, "wrong_type", map_),
        (9, "wrong_type", inner),
        (10, "wrong_type", f"(schema {numbers['large']})"),
        (11, "bad_protobuf", no_type),
        (12, "bad_protobuf", no_type),
        (13, "bad_protobuf", f"{bad}column `page` is no UTF-8)"),
        (14, "bad_protobuf", f"{bad}column `ts` is no time that a column can hold)"),
        (15, "bad_protobuf", f"schema {broken} is no Protobuf that can be read"),
    ]
    found = letters_in(tmp_path)
    assert [letter[:2] for letter in found] == [letter[:2] for letter in right]
    for (_, _, detail), (_, _, says) in zip(found, right, strict=True):
        assert says in detail


def test_tables_references_and_nested_types(
    kafka_url: str, registry: Registry, send: Send, read: Read, topic_name: Callable[[str], str]
) -> None:
    """A null deletes its key; a schema may import another; a type may be inside another; lists and enums."""
    topic = topic_name("ads")
    create_topics(kafka_url, {topic: 1}, compacted=[topic])
    kinds = 'syntax = "proto3"; package kinds; enum Kind { NONE = 0; VIDEO = 1; TEXT = 2; }'
    registry.register(f"{topic}-kinds", kinds, "PROTOBUF")
    head = 'syntax = "proto3"; package shop; import "shop/kinds.proto"; '
    lists = "repeated string tags = 3; repeated sint32 sizes = 4;"
    ad = f"message Ad {{ int64 ad_id = 1; kinds.Kind kind = 2; {lists} }}"
    text = f"{head} message Other {{ int64 x = 1; }} message Outer {{ message First {{}} {ad} }}"
    reference = {"name": "shop/kinds.proto", "subject": f"{topic}-kinds", "version": 1}
    number = registry.register(f"{topic}-value", text, "PROTOBUF", references=[reference])
    inline = f'syntax = "proto3"; package kinds; {ad.replace("kinds.Kind", "Kind")} {kinds.split(";", 2)[2]}'
    keys = 'syntax = "proto3"; package shop; message Key { int64 id = 1; }'
    key = registry.register(f"{topic}-key", keys, "PROTOBUF")
    path = b"\x04\x02\x02"  # two indexes: 1, 1
    values = {"ad_id": 7, "kind": 1, "tags": ["a", "b"], "sizes": [-1, 5]}
    send(
        topic,
        [
            message(number, inline, path, **values),
            message(number, inline, path, ad_id=8, kind=9),
            message(number, inline, path, ad_id=9),
            *(None, None),
        ],
        keys=[b"7", b"8", b"9", b"7", message(key, keys, id=8)],
    )
    columns = {"ad_id": "int64", "kind": "string", "tags": "list<string>", "sizes": "list<int64>"}
    table = Table(topic, key="ad_id", columns=columns)
    source = read(table, url=f"{kafka_url}?registry={registry.url}")
    places = assign(source)
    source.start()
    chunks = to_end(source, places)
    rows = [row for chunk in chunks for row in chunk.batch.to_pylist()]
    assert rows[:3] == [
        {**values, "kind": "VIDEO"},
        {"ad_id": 8, "kind": "9", "tags": [], "sizes": []},
        {"ad_id": 9, "kind": "NONE", "tags": [], "sizes": []},
    ]
    (deleted,) = [chunk.deleted for chunk in chunks if chunk.deleted is not None]
    assert [row["ad_id"] for row in rows[3:]] == [7, 8] and deleted.tolist()[-2:] == [True] * 2


@pytest.mark.full  # as with Avro: test_registry.py
def test_a_registry_that_is_away_is_waited_for(
    kafka_url: str, stream: Stream, send: Send, read: Read, caplog: pytest.LogCaptureFixture
) -> None:
    """Reading continues with schemas that are known, waits for others, and ends at once when it is closed."""
    text = proto(FIELDS)
    values: dict[str, Any] = {"user_id": 1, "ts": 1_000_000, "page": "p", "price": 1.0}
    with Registry() as registry, caplog.at_level(logging.WARNING):
        number = registry.register(f"{stream.topic}-value", text, "PROTOBUF")
        source = read(stream, url=f"{kafka_url}?registry={registry.url}", until_end=False)
        assign(source)
        source.start()
        send(stream.topic, [message(number, text, **values)])
        assert until_rows(source, 1) == 1
        registry.stop()
        send(stream.topic, [message(number, text, **values)])
        assert until_rows(source, 1) == 1
        send(stream.topic, [message(number + 1, text, **values)])
        until(lambda: "reading waits for the schema registry" in caplog.text)
        source.close()  # though it waits for the registry
        assert "reading waits for the schema registry" in caplog.text
