"""Random Protobuf schemas and messages, and the columns that google.protobuf reads from them."""

from __future__ import annotations

import math
import struct
from dataclasses import dataclass
from typing import Any

from google.protobuf import message_factory, timestamp_pb2, wrappers_pb2
from google.protobuf.descriptor_pb2 import FieldDescriptorProto, FileDescriptorProto
from google.protobuf.descriptor_pool import DescriptorPool
from google.protobuf.message import DecodeError, Message
from hypothesis import strategies as st

SCALARS: dict[str, st.SearchStrategy[Any]] = {
    "double": st.floats(),
    "float": st.floats(width=32),
    "int64": st.integers(-(2**63), 2**63 - 1),
    "uint64": st.integers(0, 2**64 - 1),
    "int32": st.integers(-(2**31), 2**31 - 1),
    "fixed64": st.integers(0, 2**64 - 1),
    "fixed32": st.integers(0, 2**32 - 1),
    "bool": st.booleans(),
    "string": st.text(max_size=20),
    "bytes": st.binary(max_size=20),
    "uint32": st.integers(0, 2**32 - 1),
    "enum": st.sampled_from([0, 1, -5, 300]),
    "sfixed32": st.integers(-(2**31), 2**31 - 1),
    "sfixed64": st.integers(-(2**63), 2**63 - 1),
    "sint32": st.integers(-(2**31), 2**31 - 1),
    "sint64": st.integers(-(2**63), 2**63 - 1),
}
ENUM = {"NONE": 0, "ONE": 1, "LOW": -5, "HIGH": 300}
WRAPPERS = (
    "DoubleValue",
    "FloatValue",
    "Int64Value",
    "UInt64Value",
    "Int32Value",
    "UInt32Value",
    "BoolValue",
    "StringValue",
    "BytesValue",
)
_DEFAULTS = st.sampled_from([0.5, -1.25e10, math.nan, math.inf, -math.inf])
FIRST_S, LAST_S = -62_135_596_800, 253_402_300_799
_NUMBERS = st.one_of(st.integers(1, 12), st.integers(1, 2**29 - 1).filter(lambda n: not 19000 <= n < 20000))


@dataclass(frozen=True)
class Schema:
    """A file with one message `E`, and the class of its messages."""

    file: FileDescriptorProto
    message: type[Message]


def _default(kind: str, value: Any) -> str:
    if kind == "enum":
        return next(name for name, number in ENUM.items() if number == value)
    if kind == "bool":
        return str(value).lower()
    return str(value)


@st.composite
def schemas(draw: st.DrawFn) -> Schema:
    """Files with every kind of field that is a column, in proto2 and proto3."""
    syntax = draw(st.sampled_from(["proto2", "proto3"]))
    file = FileDescriptorProto(name="e.proto", package="p", syntax=syntax)
    file.dependency.extend(["google/protobuf/timestamp.proto", "google/protobuf/wrappers.proto"])
    enum = file.enum_type.add(name="Kind")
    for name, number in ENUM.items():
        enum.value.add(name=name, number=number)
    message = file.message_type.add(name="E")
    if draw(st.booleans()):
        message.oneof_decl.add(name="either")
    numbers = draw(st.lists(_NUMBERS, min_size=1, max_size=8, unique=True))
    lonely = []
    for place, number in enumerate(numbers):
        kind = draw(st.sampled_from([*SCALARS, "time", "wrapper"]))
        field = message.field.add(name=f"f{place}", number=number, label=FieldDescriptorProto.LABEL_OPTIONAL)
        if kind == "time":
            field.type, field.type_name = FieldDescriptorProto.TYPE_MESSAGE, ".google.protobuf.Timestamp"
        elif kind == "wrapper":
            wrapper = draw(st.sampled_from(WRAPPERS))
            field.type, field.type_name = FieldDescriptorProto.TYPE_MESSAGE, f".google.protobuf.{wrapper}"
        else:
            field.type = getattr(FieldDescriptorProto, f"TYPE_{kind.upper()}")
            if kind == "enum":
                field.type_name = ".p.Kind"
        forms = ["plain", "optional"]
        forms += ["repeated"] if kind in SCALARS else []
        forms += ["default"] if kind in SCALARS and kind != "bytes" and syntax == "proto2" else []
        forms += ["oneof"] * 2 if message.oneof_decl else []
        form = draw(st.sampled_from(forms))
        if form == "repeated":
            field.label = FieldDescriptorProto.LABEL_REPEATED
            if kind not in ("string", "bytes"):
                field.options.packed = draw(st.booleans())
        elif form == "oneof":
            field.oneof_index = 0
        elif form == "default":
            values = _DEFAULTS if kind in ("float", "double") else SCALARS[kind]
            field.default_value = _default(kind, draw(values))
        elif form == "optional" and syntax == "proto3":
            field.proto3_optional = True
            lonely.append(field)
    if message.oneof_decl and not any(field.HasField("oneof_index") for field in message.field):
        message.ClearField("oneof_decl")
    for field in lonely:
        field.oneof_index = len(message.oneof_decl)
        message.oneof_decl.add(name=f"_{field.name}")
    return Schema(file, message_of(file))


def message_of(file: FileDescriptorProto) -> type[Message]:
    """Class of the file's first message."""
    pool = DescriptorPool()
    for known in (timestamp_pb2, wrappers_pb2):
        pool.AddSerializedFile(known.DESCRIPTOR.serialized_pb)
    pool.AddSerializedFile(file.SerializeToString())
    found = pool.FindMessageTypeByName(f"{file.package}.{file.message_type[0].name}")
    return message_factory.GetMessageClass(found)


@st.composite
def encoded(draw: st.DrawFn, schema: Schema) -> bytes:
    """A message of a schema with some of its fields, as google.protobuf writes it."""
    message = schema.message()
    for field in message.DESCRIPTOR.fields:
        if draw(st.booleans()):
            continue
        inner = field.message_type
        if inner is None:
            values = SCALARS[_kind(field)]
            if field.is_repeated:
                getattr(message, field.name).extend(draw(st.lists(values, max_size=4)))
            else:
                setattr(message, field.name, draw(values))
        elif inner.name == "Timestamp":
            getattr(message, field.name).SetInParent()
            times = st.one_of(st.integers(FIRST_S, LAST_S), st.integers(0, 2**33), st.just(LAST_S + 1))
            getattr(message, field.name).seconds = draw(times)
            getattr(message, field.name).nanos = draw(st.sampled_from([0, 1, 1500, 999_999_999, -1, 10**9]))
        else:
            getattr(message, field.name).SetInParent()
            getattr(message, field.name).value = draw(SCALARS[_kind(inner.fields[0])])
    return bytes(message.SerializeToString())


def _kind(field: Any) -> str:
    return str(FieldDescriptorProto.Type.Name(field.type)).removeprefix("TYPE_").lower()


def expected(schema: Schema, body: bytes) -> dict[str, Any] | None:
    """Columns of a message; None: google.protobuf cannot read it, or a value cannot be a column's."""
    try:
        message = schema.message.FromString(body)
        return {field.name: comparable(_value(message, field)) for field in message.DESCRIPTOR.fields}
    except (DecodeError, UnicodeDecodeError, _NoColumnError):
        return None


class _NoColumnError(Exception):
    pass


def _value(message: Any, field: Any) -> Any:
    value = getattr(message, field.name)
    if field.is_repeated:
        return [_name(field, each) for each in value]
    if field.has_presence and not message.HasField(field.name) and not field.has_default_value:
        return None
    if field.message_type is None:
        return _name(field, value)
    if field.message_type.name != "Timestamp":
        return value.value
    if not (FIRST_S <= value.seconds <= LAST_S and 0 <= value.nanos < 10**9):
        raise _NoColumnError
    return 10**6 * value.seconds + value.nanos // 1000


def _name(field: Any, value: Any) -> Any:
    if field.type == field.TYPE_STRING and isinstance(value, bytes):  # proto2 takes what is no UTF-8
        raise _NoColumnError
    if field.enum_type is None:
        return value
    known = field.enum_type.values_by_number.get(value)
    return str(value) if known is None else known.name


def comparable(value: Any) -> Any:
    """Value in which NaN equals NaN, and 0.0 is not -0.0."""
    if isinstance(value, list):
        return [comparable(each) for each in value]
    return ("nan" if math.isnan(value) else struct.pack("<d", value)) if isinstance(value, float) else value
