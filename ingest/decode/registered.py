"""Rows of messages in the wire format of a schema registry: Avro, and JSON with a schema.

Each message is read with the schema that its producer wrote it with. Columns are found by name, so a schema
may gain fields, lose fields that the declaration fills, and widen types: int to long, float to double.
"""

from __future__ import annotations

import io
import json
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, field
from typing import Any

import pyarrow as pa

from livectr.ingest.decode.registry import HEAD_BYTES, MARK, SchemaRegistry
from livectr.kernels.errors import ConfigError

_ARROW: Mapping[str, pa.DataType] = {
    "boolean": pa.bool_(),
    "int": pa.int32(),
    "long": pa.int64(),
    "float": pa.float32(),
    "double": pa.float64(),
    "string": pa.string(),
    "enum": pa.string(),
}
NO_REGISTRY = (
    "it begins like a message of a schema registry; add registry=http://HOST:PORT to the source's address"
)
_TIMES = {"timestamp-millis": "ms", "timestamp-micros": "us", "timestamp-nanos": "ns"}


class UnreadableError(ValueError):
    """A message that cannot be read; the text says why, with the id of its schema."""


@dataclass(frozen=True)
class _Reader:
    """Reader of one schema.

    Args:
        read: bytes without the head → record.
        types: field → Arrow type; None: by its values.
        trouble: reason why its messages cannot be read; "" if there is none.
    """

    read: Callable[[bytes], Any]
    types: Mapping[str, pa.DataType | None] = field(default_factory=dict)
    trouble: str = ""


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

    def prepare(self, value: bytes) -> None:
        """Fetch the schema of a message, waiting for the registry."""
        if len(value) < HEAD_BYTES:
            return
        number = schema_id(value)
        if number not in self._readers or self._readers[number].trouble:
            self._readers[number] = _reader_of(self._registry, number)

    def key(self, value: bytes | None) -> bytes | None:
        """Message key as text: of a number, a string, or a record of one. Other keys stay as they are."""
        if value is None or not is_registered(value) or len(value) < HEAD_BYTES:
            return value
        self.prepare(value)
        reader = self._readers[schema_id(value)]
        if reader.trouble:
            return value
        try:
            found = reader.read(value[HEAD_BYTES:])
        except Exception:  # as in `batch`; whoever parses the key says that it is none
            return value
        if isinstance(found, dict) and len(found) == 1:
            (found,) = found.values()
        return str(found).encode() if isinstance(found, int | str) else value

    def batch(self, values: Sequence[bytes], names: Sequence[str]) -> pa.RecordBatch:
        """Read messages of one schema, which is prepared, to the columns that the schema has.

        Args:
            values: n messages.
            names: columns that are wanted.

        Raises:
            UnreadableError: one of them cannot be read.
        """
        if len(values[0]) < HEAD_BYTES:
            raise UnreadableError("shorter than the head of a schema registry's message (5 bytes)")
        number = schema_id(values[0])
        reader = self._readers[number]
        if reader.trouble:
            raise UnreadableError(reader.trouble)
        rows = []
        for value in values:
            try:
                row = reader.read(value[HEAD_BYTES:])
            except Exception as error:  # fastavro raises what Python raises: of damaged bytes, anything
                raise UnreadableError(
                    f"not in its schema {number} ({type(error).__name__}: {error})"
                ) from None
            if not isinstance(row, dict):
                raise UnreadableError(f"a {type(row).__name__} and no record, in schema {number}")
            rows.append(row)
        present = [name for name in names if any(name in row for row in rows)]
        try:
            columns = [pa.array([row.get(name) for row in rows], reader.types.get(name)) for name in present]
        except (pa.ArrowException, OverflowError) as error:
            raise UnreadableError(f"a value does not fit its column, in schema {number} ({error})") from None
        if not present:  # a batch without columns has no rows
            return pa.RecordBatch.from_arrays([pa.nulls(len(rows))], ["no wanted column"])
        return pa.RecordBatch.from_arrays(columns, present)


def is_registered(value: bytes | None) -> bool:
    """Tell if a message is in the wire format: JSON and Arrow begin otherwise."""
    return value is not None and value[:1] == MARK


def schema_id(value: bytes) -> int:
    """Id of a message's schema."""
    return int.from_bytes(value[1:HEAD_BYTES], "big")


def _reader_of(registry: SchemaRegistry, number: int) -> _Reader:
    found = registry.schema(number)
    if found is None:
        return _unreadable(f"schema {number} is not in the registry {registry.url}")
    kind = found.get("schemaType", "AVRO")
    if kind == "JSON":
        return _Reader(json.loads)
    if kind != "AVRO":
        return _unreadable(f"schema {number} is {kind}; Avro and JSON are read")
    try:
        return _avro(registry, found)
    except Exception as error:  # fastavro's, KeyError, ValueError: of a schema that is no Avro
        return _unreadable(f"schema {number} is no Avro that can be read ({type(error).__name__}: {error})")


def _unreadable(trouble: str) -> _Reader:
    return _Reader(json.loads, trouble=trouble)


def _avro(registry: SchemaRegistry, found: Mapping[str, Any]) -> _Reader:
    import fastavro

    named: dict[str, Any] = {}
    _learn(registry, found, named)
    schema = json.loads(found["schema"])
    fields = schema.get("fields", []) if isinstance(schema, dict) else []
    types = {entry["name"]: _arrow_type(entry["type"]) for entry in fields}
    parsed = fastavro.parse_schema(_plain(schema), named_schemas=named)
    return _Reader(lambda body: _whole(body, parsed), types)


def _learn(registry: SchemaRegistry, found: Mapping[str, Any], named: dict[str, Any]) -> None:
    """Parse the schemas to which one refers, deepest first."""
    import fastavro

    for reference in found.get("references") or []:
        other = registry.version(reference["subject"], reference["version"])
        if other is None:
            raise ValueError(
                f"it refers to {reference['subject']} {reference['version']}, which is not there"
            )
        _learn(registry, other, named)
        fastavro.parse_schema(_plain(json.loads(other["schema"])), named_schemas=named)


def _whole(body: bytes, schema: Any) -> Any:
    """Record of a message that has nothing behind it."""
    import fastavro

    stream = io.BytesIO(body)
    record = fastavro.schemaless_reader(stream, schema, None)
    if left := len(body) - stream.tell():
        raise ValueError(f"{left} bytes are left")
    return record


def _plain(schema: Any) -> Any:
    """Schema without logical types: times stay numbers, whose unit `_arrow_type` knows."""
    if isinstance(schema, list):
        return [_plain(entry) for entry in schema]
    if isinstance(schema, dict):
        return {name: _plain(value) for name, value in schema.items() if name != "logicalType"}
    return schema


def _arrow_type(schema: Any) -> pa.DataType | None:
    """Arrow type of a field; None: by its values."""
    if isinstance(schema, list):
        kinds = [entry for entry in schema if entry != "null"]
        return _arrow_type(kinds[0]) if len(kinds) == 1 else None
    if isinstance(schema, str):
        return _ARROW.get(schema)
    if schema.get("logicalType") in _TIMES:
        return pa.timestamp(_TIMES[schema["logicalType"]])
    if schema.get("type") == "array":
        items = _arrow_type(schema["items"])
        return None if items is None else pa.list_(items)
    return _arrow_type(schema["type"]) if isinstance(schema.get("type"), str) else None
