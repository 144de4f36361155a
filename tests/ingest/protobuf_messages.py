"""Protobuf messages of a shop's events, in the wire format of a schema registry."""

from __future__ import annotations

import functools
from typing import Any

from google.protobuf.descriptor_pb2 import FileDescriptorProto
from google.protobuf.message import Message

from livectr.ingest.decode import protobuf_files
from tests.ingest.protobuf_schemas import message_of

COLUMNS = {"user_id": "int64", "ts": "int64", "page": "string", "price": "float64"}
FIELDS = """
    int32 user_id = 1;
    google.protobuf.Timestamp ts = 2;
    optional string page = 3;
    float price = 4;
"""


def proto(fields: str) -> str:
    """Text of a file with one message."""
    head = 'syntax = "proto3"; package shop; import "google/protobuf/timestamp.proto";'
    return f"{head} message Event {{ {fields} }}"


@functools.cache
def descriptor(text: str) -> FileDescriptorProto:
    """Descriptor that protoc makes of a text without references."""
    files = list(protobuf_files._compiled({protobuf_files._ROOT: text}))
    return files[-1]


def message(number: int, text: str, indexes: bytes = b"\0", **values: Any) -> bytes:
    """A message in the wire format, as Confluent's serializers write it."""
    return b"\0" + number.to_bytes(4, "big") + indexes + filled(text, **values).SerializeToString()


@functools.cache
def message_class(text: str) -> type[Message]:
    return message_of(descriptor(text))


def filled(text: str, **values: Any) -> Message:
    found = message_class(text)()
    for name, value in values.items():
        field = getattr(found, name)
        if name == "ts":
            field.FromMicroseconds(value)
        elif isinstance(value, list):
            field.extend(value)
        elif isinstance(value, dict):
            field.update(value)
        else:
            setattr(found, name, value)
    return found
