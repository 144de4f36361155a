"""A value in a message of a schema registry, in Avro and in Protobuf, by the most natural schema."""

from __future__ import annotations

import base64
import functools
import io
import json
from decimal import Decimal
from typing import Any

import fastavro
from google.protobuf.descriptor_pb2 import FieldDescriptorProto, FileDescriptorProto

from livectr.ingest.decode.registered import RegisteredRows
from tests.ingest.protobuf_schemas import message_of

DIGITS = 40
_OF_COLUMN = {"string": "STRING", "binary": "BYTES", "bool": "BOOL", "float32": "FLOAT", "float64": "DOUBLE"}


class UnwritableError(Exception):
    """Raised where a format has no way to write a value."""


class Schemas:
    """Registry that holds its schemas in memory."""

    url = "http://registry"

    def __init__(self) -> None:
        self._known: list[dict[str, Any]] = []

    def add(self, kind: str, schema: str) -> int:
        """Number of a schema."""
        found = {"schemaType": kind, "schema": schema}
        if found not in self._known:
            self._known.append(found)
        return self._known.index(found)

    def schema(self, number: int) -> dict[str, Any] | None:
        return self._known[number]

    def serialized(self, path: str) -> str | None:
        number = int(path.split("?")[0].rsplit("/", 1)[-1])
        return str(self._known[number]["schema"])

    def references(self, found: Any) -> dict[str, Any]:
        return {}

    def siblings(self, number: int) -> list[dict[str, Any]]:
        return []


SCHEMAS = Schemas()
REGISTERED = RegisteredRows(SCHEMAS)  # type: ignore[arg-type]


UNION = ["null", "boolean", "long", "double"]


def avro(value: Any, kind: Any = None) -> bytes:
    """Message of k = 1 and x = value; kind: the Avro type of x. Raises UnwritableError."""
    fields = [{"name": "k", "type": "long"}, {"name": "x", "type": kind or _avro_type(value)}]
    schema = {"type": "record", "name": "E", "fields": fields}
    number, body = SCHEMAS.add("AVRO", json.dumps(schema)), io.BytesIO()
    try:
        fastavro.schemaless_writer(body, _parsed(json.dumps(schema)), {"k": 1, "x": _avro_value(value)})
    except UnicodeEncodeError as error:
        raise UnwritableError from error
    return _headed(number) + body.getvalue()


def protobuf(value: Any, dtype: str) -> bytes:
    """Message of k = 1 and x = value. Raises UnwritableError."""
    kind, repeated = _protobuf_type(value, dtype)
    file = FileDescriptorProto(name="e.proto", package="p", syntax="proto3")
    message = file.message_type.add(name="E")
    field = FieldDescriptorProto
    message.field.add(name="k", number=1, type=field.TYPE_INT64, label=field.LABEL_OPTIONAL)
    x = message.field.add(name="x", number=2, type=getattr(field, f"TYPE_{kind}"), label=field.LABEL_REPEATED)
    if not repeated:
        x.label, x.proto3_optional, x.oneof_index = field.LABEL_OPTIONAL, True, 0
        message.oneof_decl.add(name="_x")
    number = SCHEMAS.add("PROTOBUF", base64.b64encode(file.SerializeToString()).decode())
    filled = _message_class(file.SerializeToString())(k=1)
    try:
        if repeated:
            filled.x.extend(value)
        elif value is not None:
            filled.x = value
    except (UnicodeEncodeError, ValueError) as error:
        raise UnwritableError from error
    return _headed(number) + b"\0" + bytes(filled.SerializeToString())


def _headed(number: int) -> bytes:
    return b"\0" + number.to_bytes(4, "big")


@functools.cache
def _parsed(schema: str) -> Any:
    return fastavro.parse_schema(json.loads(schema))


@functools.cache
def _message_class(file: bytes) -> Any:
    return message_of(FileDescriptorProto.FromString(file))


def _avro_type(value: Any) -> Any:
    if isinstance(value, list):
        kinds = [_avro_type(one) for one in value]
        unlike = [kind for number, kind in enumerate(kinds) if kind not in kinds[:number]]
        wide = [kind for kind in unlike if isinstance(kind, dict)]
        items = [*(kind for kind in unlike if kind == "null"), *wide] if wide else unlike
        return {"type": "array", "items": "null" if not items else items[0] if len(items) == 1 else items}
    if isinstance(value, int) and not isinstance(value, bool) and not -(2**63) <= value < 2**63:
        return {"type": "bytes", "logicalType": "decimal", "precision": DIGITS, "scale": 0}
    named = {type(None): "null", bool: "boolean", int: "long", float: "double", str: "string", bytes: "bytes"}
    return named[type(value)]


def _avro_value(value: Any) -> Any:
    """The value; a list with a decimal holds decimals alone."""
    if isinstance(value, list):
        wide = any(isinstance(_avro_type(one), dict) for one in value)
        return [Decimal(one) if wide and one is not None else one for one in value]
    return Decimal(value) if isinstance(_avro_type(value), dict) else value


def _protobuf_type(value: Any, dtype: str) -> tuple[str, bool]:
    """(type of a field, true if it is repeated); of a null and of an empty list the column's type."""
    if isinstance(value, list):
        if None in value:
            raise UnwritableError
        if not value:
            return _OF_COLUMN.get(dtype.removeprefix("list<").removesuffix(">"), "INT64"), True
        kinds = {_protobuf_type(one, dtype)[0] for one in value}
        if len(kinds) > 1:
            raise UnwritableError
        return kinds.pop(), True
    if isinstance(value, int) and not isinstance(value, bool):
        if not -(2**63) <= value < 2**64:
            raise UnwritableError
        return ("INT64" if value < 2**63 else "UINT64"), False
    kinds_of = {bool: "BOOL", float: "DOUBLE", str: "STRING", bytes: "BYTES"}
    if value is None:
        if dtype.startswith("list<"):
            raise UnwritableError
        return _OF_COLUMN.get(dtype, "INT64"), False
    return kinds_of[type(value)], False
