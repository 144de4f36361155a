"""Rows of messages in Avro, and in JSON with a schema, of a schema registry.

Columns are found by name, so a schema may gain fields, lose fields that the declaration fills, and widen
types: int to long, float to double.
"""

from __future__ import annotations

import io
import json
from collections.abc import Callable, Mapping, Sequence
from functools import partial
from typing import Any

import numpy as np
import pyarrow as pa

from livectr.ingest.dead_letters.letters import Reason
from livectr.ingest.decode.registry import HEAD_BYTES, SchemaRegistry, Wanted
from livectr.ingest.decode.rows import Read, UnreadableError
from livectr.system.json_objects import REPEATED, mark_repeated, said

_ARROW: Mapping[str, pa.DataType] = {
    "boolean": pa.bool_(),
    "int": pa.int32(),
    "long": pa.int64(),
    "float": pa.float32(),
    "double": pa.float64(),
    "string": pa.string(),
    "enum": pa.string(),
}
MOST_DIGITS = 38
"""Digits of a decimal of 128 bits."""
_TIMES = {"timestamp-millis": "ms", "timestamp-micros": "us", "timestamp-nanos": "ns"}


class RecordReader:
    """Reader of one schema.

    Args:
        number: id of the schema.
        read: bytes without the head → record.
        types: field → Arrow type; None: by its values.
    """

    def __init__(
        self, number: int, read: Callable[[bytes], Any], types: Mapping[str, pa.DataType | None]
    ) -> None:
        self._number, self._read, self._types = number, read, types

    @staticmethod
    def avro(registry: SchemaRegistry, number: int, found: Mapping[str, Any]) -> RecordReader:
        """Reader of an Avro schema, as the registry has it; it may wait for the schemas to which it refers.

        Raises:
            Exception: no Avro; of any kind, as fastavro raises it.
        """
        import fastavro

        named: dict[str, Any] = {}
        _learn(registry, found, named)
        schema = json.loads(found["schema"])
        fields = schema.get("fields", []) if isinstance(schema, dict) else []
        types = {entry["name"]: _arrow_type(entry["type"]) for entry in fields}
        parsed = fastavro.parse_schema(_plain(schema), named_schemas=named)
        return RecordReader(number, lambda body: _whole(body, parsed), types)

    @staticmethod
    def json(number: int) -> RecordReader:
        """Reader of JSON, whose schema is not needed."""
        return RecordReader(number, partial(json.loads, object_pairs_hook=mark_repeated), {})

    def head(self, value: bytes) -> bytes:
        """Beginning that is equal for all messages that `batch` takes together."""
        return value[:HEAD_BYTES]

    def prepare(self, value: bytes, wanted: Wanted) -> bool:
        """Return true: all messages with this head can be read."""
        return True

    def key(self, value: bytes) -> object:
        """Value of a message key. Raises any Exception: it is none."""
        found = self._read(value[HEAD_BYTES:])
        if isinstance(found, dict) and len(found) == 1:
            (found,) = found.values()
        return found

    def batch(self, values: Sequence[bytes], wanted: Wanted) -> Read:
        """Read messages.

        Raises:
            UnreadableError: one of them cannot be read.
        """
        rows = []
        for value in values:
            try:
                row = self._read(value[HEAD_BYTES:])
            except Exception as error:  # fastavro raises what Python raises: of damaged bytes, anything
                raise self._unreadable(
                    f"not in its schema {self._number} ({type(error).__name__}: {error})"
                ) from None
            if not isinstance(row, dict):
                raise self._unreadable(f"a {type(row).__name__} and no record, in schema {self._number}")
            rows.append(row)
        present = [name for name in wanted.columns if any(name in row for row in rows)]
        if twice := next((name for name in present for row in rows if row.get(name) is REPEATED), None):
            raise self._unreadable(f"{said(twice)}, in a message of schema {self._number}")
        try:
            columns = [pa.array([row.get(name) for row in rows], self._types.get(name)) for name in present]
        except (pa.ArrowException, OverflowError) as error:
            raise self._unreadable(
                f"a value does not fit its column, in schema {self._number} ({error})"
            ) from None
        numbers = np.arange(len(rows), dtype=np.int64)
        names = self._types or dict.fromkeys(name for row in rows for name in row)
        if not present:
            columns, present = [pa.nulls(len(rows))], ["no wanted column"]
        return Read(pa.RecordBatch.from_arrays(columns, present), numbers, names=list(names))

    def _unreadable(self, detail: str) -> UnreadableError:
        return UnreadableError(Reason.BAD_AVRO, detail)


def _learn(registry: SchemaRegistry, found: Mapping[str, Any], named: dict[str, Any]) -> None:
    """Parse the schemas to which one refers, deepest first."""
    import fastavro

    for other in registry.references(found).values():
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
    """Schema without logical types but decimals: times stay numbers, whose unit `_arrow_type` knows."""
    if isinstance(schema, list):
        return [_plain(entry) for entry in schema]
    if isinstance(schema, dict):
        kept = schema.get("logicalType") == "decimal"
        return {name: _plain(value) for name, value in schema.items() if kept or name != "logicalType"}
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
    if schema.get("logicalType") == "decimal":
        digits = schema["precision"]
        wide = pa.decimal128 if digits <= MOST_DIGITS else pa.decimal256
        return wide(digits, schema.get("scale", 0))
    if schema.get("type") == "array":
        items = _arrow_type(schema["items"])
        return None if items is None else pa.list_(items)
    return _arrow_type(schema["type"]) if isinstance(schema.get("type"), str) else None
