"""Rows of messages in the wire format of a schema registry: Avro, Protobuf, and JSON with a schema.

Each message is read with the schema that its producer wrote it with.
"""

from __future__ import annotations

import time
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import Any, Protocol

from livectr.ingest.dead_letters.letters import Reason
from livectr.ingest.decode.registry import HEAD_BYTES, KEY, MARK, UNKNOWN_S, SchemaRegistry, Wanted
from livectr.ingest.decode.rows import Read, UnreadableError
from livectr.system.errors import ConfigError, UserError

NO_REGISTRY = (
    "it begins like a message of a schema registry; add registry=http://HOST:PORT to the source's address"
)


class _Reader(Protocol):
    """Reader of one schema; `registered_avro.RecordReader` says what the methods do."""

    def head(self, value: bytes) -> bytes: ...
    def prepare(self, value: bytes, wanted: Wanted) -> bool: ...
    def key(self, value: bytes) -> object: ...
    def batch(self, values: Sequence[bytes], wanted: Wanted) -> Read: ...


@dataclass(frozen=True)
class _Unreadable:
    """Reader of a schema that cannot be read; it is looked at again `until_s` by the monotonic clock."""

    reason: Reason
    detail: str
    until_s: float

    def head(self, value: bytes) -> bytes:
        return value[:HEAD_BYTES]

    def prepare(self, value: bytes, wanted: Wanted) -> bool:
        return False

    def key(self, value: bytes) -> object:
        raise UnreadableError(self.reason, self.detail)

    def batch(self, values: Sequence[bytes], wanted: Wanted) -> Read:
        raise UnreadableError(self.reason, self.detail)


class RegisteredRows:
    """Reads messages by the schemas of a registry.

    Args:
        registry: knows the schemas.

    Raises:
        ConfigError: fastavro is not installed.
    """

    def __init__(self, registry: SchemaRegistry) -> None:
        try:
            import fastavro  # noqa: F401
        except ImportError:
            raise ConfigError(
                "registry= in the source's address needs a reader of Avro: pip install fastavro"
            ) from None
        self._registry = registry
        self._readers: dict[int, _Reader] = {}

    def prepare(self, value: bytes, wanted: Wanted) -> bytes | None:
        """Fetch what reading a message needs, waiting for the registry.

        Returns:
            Beginning of messages that can be read without another call; None: each needs a call.

        Raises:
            ConfigError: a package is missing that its schema needs.
        """
        if len(value) < HEAD_BYTES:
            return None
        number = schema_id(value)
        reader = self._readers.get(number)
        if reader is None or (isinstance(reader, _Unreadable) and time.monotonic() > reader.until_s):
            self._readers[number] = reader = _reader_of(self._registry, number)
        return reader.head(value) if reader.prepare(value, wanted) else None

    def key(self, value: bytes | None) -> bytes | None:
        """Message key as text: of a number, a string, or a record of one. Other keys stay as they are."""
        if value is None or not is_registered(value) or len(value) < HEAD_BYTES:
            return value
        self.prepare(value, KEY)
        try:
            found = self._readers[schema_id(value)].key(value)
        except Exception:  # as in `batch`; whoever parses the key says that it is none
            return value
        return str(found).encode() if isinstance(found, int | str) else value

    def head(self, value: bytes) -> bytes:
        """Beginning of a prepared message that is equal for all messages that `batch` takes together."""
        return self._readers[schema_id(value)].head(value) if len(value) >= HEAD_BYTES else value

    def batch(self, values: Sequence[bytes], wanted: Wanted) -> Read:
        """Read messages of one head, which are prepared, to the columns that their schema has.

        Raises:
            UnreadableError: one of them cannot be read; none where the result names those.
            UnusableError: a wanted column cannot be read.
        """
        if len(values[0]) < HEAD_BYTES:
            detail = "shorter than the head of a schema registry's message (5 bytes)"
            raise UnreadableError(Reason.NO_SCHEMA, detail)
        return self._readers[schema_id(values[0])].batch(values, wanted)


def is_registered(value: bytes | None) -> bool:
    """Tell if a message is in the wire format: JSON and Arrow begin otherwise."""
    return value is not None and value[:1] == MARK


def schema_id(value: bytes) -> int:
    """Id of a message's schema."""
    return int.from_bytes(value[1:HEAD_BYTES], "big")


def _reader_of(registry: SchemaRegistry, number: int) -> _Reader:
    found = registry.schema(number)
    if found is None:
        return _unreadable(Reason.NO_SCHEMA, f"schema {number} is not in the registry {registry.url}")
    kind = found.get("schemaType", "AVRO")
    try:
        return _of_kind(kind, registry, number, found)
    except UserError:
        raise
    except Exception as error:  # fastavro's, protobuf's, KeyError, ValueError: of a schema that is none
        reason, name = (Reason.BAD_PROTOBUF, "Protobuf") if kind == "PROTOBUF" else (Reason.BAD_AVRO, "Avro")
        detail = f"schema {number} is no {name} that can be read ({type(error).__name__}: {error})"
        return _unreadable(reason, detail)


def _of_kind(kind: str, registry: SchemaRegistry, number: int, found: Mapping[str, Any]) -> _Reader:
    from livectr.ingest.decode.registered_avro import RecordReader
    from livectr.ingest.decode.registered_protobuf import ProtobufReader

    if kind == "AVRO":
        return RecordReader.avro(registry, number, found)
    if kind == "JSON":
        return RecordReader.json(number)
    if kind == "PROTOBUF":
        return ProtobufReader(registry, number, found)
    return _unreadable(Reason.NO_SCHEMA, f"schema {number} is {kind}; Avro, Protobuf and JSON are read")


def _unreadable(reason: Reason, detail: str) -> _Unreadable:
    return _Unreadable(reason, detail, time.monotonic() + UNKNOWN_S)
