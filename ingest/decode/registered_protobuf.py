"""Rows of messages in Protobuf of a schema registry.

A message begins with the path of its type in the schema: an array of indexes, then the message
(https://docs.confluent.io/platform/current/schema-registry/fundamentals/serdes-develop/index.html#wire-format).

A column is the field of its name. A field is known to producers by its number and may be renamed: if a
message's schema has no field of the name, the field is taken that has the name's number in another version
of the subject, the newest first.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import Any

import numpy as np
import pyarrow as pa
from google.protobuf.descriptor import Descriptor, FieldDescriptor

from livectr.ingest.dead_letters import complaints
from livectr.ingest.dead_letters.letters import Reason
from livectr.ingest.decode.arrow_rows import UnusableError
from livectr.ingest.decode.protobuf_files import file_of, mentions
from livectr.ingest.decode.registry import HEAD_BYTES, KEY, SchemaRegistry, Wanted, id_path
from livectr.ingest.decode.rows import Read, UnreadableError
from livectr.ingest.decode.texts import Texts
from livectr.kernels.protobuf.columns import Error, Field, Kind, ProtobufColumns, Shape

_MOST_INDEXES = 32
_TYPES: Mapping[int, tuple[Kind, pa.DataType]] = {
    FieldDescriptor.TYPE_DOUBLE: (Kind.WORD64, pa.float64()),
    FieldDescriptor.TYPE_FLOAT: (Kind.WORD32, pa.float32()),
    FieldDescriptor.TYPE_INT64: (Kind.INT64, pa.int64()),
    FieldDescriptor.TYPE_UINT64: (Kind.INT64, pa.uint64()),
    FieldDescriptor.TYPE_INT32: (Kind.INT32, pa.int32()),
    FieldDescriptor.TYPE_FIXED64: (Kind.WORD64, pa.uint64()),
    FieldDescriptor.TYPE_FIXED32: (Kind.WORD32, pa.uint32()),
    FieldDescriptor.TYPE_BOOL: (Kind.BOOL, pa.bool_()),
    FieldDescriptor.TYPE_STRING: (Kind.STRING, pa.string()),
    FieldDescriptor.TYPE_BYTES: (Kind.BYTES, pa.binary()),
    FieldDescriptor.TYPE_UINT32: (Kind.INT32, pa.uint32()),
    FieldDescriptor.TYPE_ENUM: (Kind.INT32, pa.int32()),
    FieldDescriptor.TYPE_SFIXED32: (Kind.WORD32, pa.int32()),
    FieldDescriptor.TYPE_SFIXED64: (Kind.WORD64, pa.int64()),
    FieldDescriptor.TYPE_SINT32: (Kind.SINT32, pa.int32()),
    FieldDescriptor.TYPE_SINT64: (Kind.SINT64, pa.int64()),
}
_TIME = "google.protobuf.Timestamp"
_WRAPPERS = {
    f"google.protobuf.{name}Value"
    for name in ("Double", "Float", "Int64", "UInt64", "Int32", "UInt32", "Bool", "String", "Bytes")
}
_SPLIT = "write its fields as fields of the message itself"
_REPEAT = "write its keys and values as two repeated fields"


@dataclass(frozen=True)
class _Layout:
    """Columns of one type of message.

    Args:
        columns: reader.
        names: column names, in the order of the reader.
        enums: column → number → name, of enums.
        fields: names of all fields.
        unusable: complaint about a wanted column that cannot be read; None: no complaint.
    """

    columns: ProtobufColumns
    names: list[str]
    enums: Mapping[str, Mapping[int, str]]
    fields: list[str]
    unusable: str | None


class ProtobufReader:
    """Reader of one schema, with the methods of `registered_avro.RecordReader`.

    Args:
        registry: knows the schema.
        number: id of the schema.
        found: the schema, as the registry has it.

    Raises:
        ValueError: it is no Protobuf, or refers to a schema that is not there.
        ConfigError: it is a text, and the package that compiles it is not installed.
    """

    def __init__(self, registry: SchemaRegistry, number: int, found: Mapping[str, Any]) -> None:
        self._registry, self._number = registry, number
        self._file = file_of(registry, id_path(number), found)
        self._layouts: dict[tuple[bytes, Wanted], _Layout] = {}

    def head(self, value: bytes) -> bytes:
        """Beginning that is equal for all messages of a type: the header and the path of indexes."""
        if value[HEAD_BYTES : HEAD_BYTES + 1] == b"\0":
            return value[: HEAD_BYTES + 1]
        found = _indexes(value)
        return value[: HEAD_BYTES + 1] if found is None else value[: found[1]]

    def prepare(self, value: bytes, wanted: Wanted) -> bool:
        """Plan the columns of a message type; False: the schema has no such type."""
        head = self.head(value)
        if (head, wanted) in self._layouts:
            return True
        message = self._message(head)
        if message is None:
            return False
        self._layouts[head, wanted] = self._layout(message, wanted)
        return True

    def key(self, value: bytes) -> object:
        """Value of the only field of a message key."""
        head = self.head(value)
        layout = self._layouts[head, KEY]
        columns, errors = layout.columns.read(value, np.array([len(head)]), np.array([len(value)]))
        if errors.any() or len(columns) != 1:
            return None
        (found,) = _named(columns[0], layout.enums.get(layout.names[0])).to_pylist()
        return found

    def batch(self, values: Sequence[bytes], wanted: Wanted) -> Read:
        """Read messages of one type; those that are damaged are refused.

        Raises:
            UnreadableError: the schema has no such type.
            UnusableError: a wanted column cannot be read.
        """
        head = self.head(values[0])
        layout = self._layouts.get((head, wanted))
        if layout is None:
            raise UnreadableError(
                Reason.BAD_PROTOBUF,
                f"its message indexes name no message of schema {self._number}, or are cut off",
            )
        if layout.unusable is not None:
            raise UnusableError(Reason.WRONG_TYPE, layout.unusable, len(values))
        texts = Texts.of(values)
        arrays, errors = layout.columns.read(texts.data, texts.starts + len(head), texts.stops)
        rows = np.flatnonzero(errors == 0)
        refused = [
            (row, self._complaint(int(errors[row]), layout.names)) for row in np.flatnonzero(errors).tolist()
        ]
        columns = [
            _named(array, layout.enums.get(name)) for name, array in zip(layout.names, arrays, strict=True)
        ]
        names = layout.names
        if not names:
            columns, names = [pa.nulls(len(rows))], ["no wanted column"]
        return Read(pa.RecordBatch.from_arrays(columns, names), rows, refused, layout.fields)

    def _complaint(self, error: int, names: Sequence[str]) -> str:
        kind = Error(error & 0xFF)
        if kind == Error.DAMAGED:
            return f"not in its schema {self._number} (it is damaged or cut off)"
        what = "is no UTF-8" if kind == Error.NOT_TEXT else "is no time that a column can hold"
        return f"not in its schema {self._number} (column `{names[error >> 8]}` {what})"

    def _message(self, head: bytes) -> Descriptor | None:
        """Type of the messages with a head."""
        found = _indexes(head)
        return None if found is None else _of_path(self._file, found[0])

    def _layout(self, message: Descriptor, wanted: Wanted) -> _Layout:
        fields = list(message.fields)
        columns = wanted.columns
        if wanted.key:
            columns = (fields[0].name,) if len(fields) == 1 else ()
        by_name = {name: field for name, field in message.fields_by_name.items() if name in columns}
        if missing := [name for name in columns if name not in by_name]:
            by_name |= self._renamed(message, missing, set(by_name))
        unusable = [text for name, field in by_name.items() if (text := _unusable(name, field))]
        names = [] if unusable else [name for name in columns if name in by_name]
        groups = {oneof.full_name: place for place, oneof in enumerate(message.oneofs)}
        taken = {by_name[name].number for name in names}
        read = [_field(by_name[name], groups, nanos=name in wanted.nanos) for name in names]
        read += [
            _field(field, groups, nanos=None)
            for field in fields
            if field.containing_oneof is not None and field.number not in taken
        ]
        enums = {
            name: {number: value.name for number, value in by_name[name].enum_type.values_by_number.items()}
            for name in names
            if by_name[name].enum_type is not None
        }
        first = unusable[0] if unusable else None
        return _Layout(ProtobufColumns(read), names, enums, [field.name for field in fields], first)

    def _renamed(
        self, message: Descriptor, missing: Sequence[str], taken: set[str]
    ) -> dict[str, FieldDescriptor]:
        """Fields of a message that have another name in another version of its subject."""
        found: dict[str, FieldDescriptor] = {}
        for schema in self._registry.siblings(self._number):
            left = [name for name in missing if name not in found]
            if not left:
                break
            if schema.get("schemaType") != "PROTOBUF" or not mentions(schema, left):
                continue
            try:
                file = file_of(self._registry, schema["path"], schema)
                other = file.pool.FindMessageTypeByName(message.full_name)
            except (ValueError, KeyError):  # says nothing of this schema's fields
                continue
            for name in left:
                known = other.fields_by_name.get(name)
                field = None if known is None else message.fields_by_number.get(known.number)
                if field is not None and field.name not in taken:
                    found[name] = field
                    taken.add(field.name)
        return found


def _indexes(value: bytes) -> tuple[list[int], int] | None:
    """(indexes of a message's type, place of the message); None: they are damaged."""
    numbers: list[int] = []
    count, place = None, HEAD_BYTES
    while count is None or len(numbers) < count:
        word = shift = 0
        while True:
            if place >= len(value) or shift > 28:
                return None
            byte = value[place]
            place += 1
            word |= (byte & 0x7F) << shift
            shift += 7
            if byte < 0x80:
                break
        number = (word >> 1) ^ -(word & 1)
        if number < 0 or (count is None and number > _MOST_INDEXES):
            return None
        if count is None:
            count = number
        else:
            numbers.append(number)
    return numbers or [0], place


def _of_path(file: Any, path: Sequence[int]) -> Descriptor | None:
    """Message of a path of indexes. Types that the compiler makes for maps do not count: no text has them."""
    among = list(file.message_types_by_name.values())
    message = None
    for index in path:
        if index >= len(among):
            return None
        message = among[index]
        among = [inner for inner in message.nested_types if not inner.GetOptions().map_entry]
    return message


def _unusable(name: str, field: FieldDescriptor) -> str | None:
    """Complaint about a field that is no column; None: it is one."""
    inner = field.message_type
    if inner is None:
        return None
    if inner.GetOptions().map_entry:
        return complaints.no_column(name, "a map", _REPEAT)
    if inner.full_name != _TIME and inner.full_name not in _WRAPPERS:
        return complaints.no_column(name, f"a message ({inner.full_name})", _SPLIT)
    if field.is_repeated:
        return complaints.no_column(name, f"a list of {inner.full_name}", "write a repeated field of numbers")
    return None


def _field(field: FieldDescriptor, groups: Mapping[str, int], *, nanos: bool | None) -> Field:
    """Field as the kernel reads it; nanos: times are in nanoseconds, None: it is no column."""
    oneof = -1 if field.containing_oneof is None else groups[field.containing_oneof.full_name]
    inner = field.message_type
    known = None
    if field.enum_type is not None and field.enum_type.is_closed:
        known = tuple(sorted(field.enum_type.values_by_number))
    if inner is not None and (nanos is None or inner.full_name not in {_TIME, *_WRAPPERS}):
        kind = Kind.GROUP if field.type == FieldDescriptor.TYPE_GROUP else Kind.MESSAGE
        return Field(field.number, kind, oneof=oneof)
    if inner is not None and inner.full_name == _TIME:
        shape = Shape.NANOS if nanos else Shape.MICROS
        arrow = pa.timestamp("ns" if nanos else "us")
        return Field(field.number, Kind.MESSAGE, arrow, shape, oneof, presence=True)
    kind, arrow = _TYPES[field.type if inner is None else inner.fields_by_number[1].type]
    if nanos is None:
        return Field(field.number, kind, oneof=oneof, known=known)
    if inner is not None:
        return Field(field.number, kind, arrow, Shape.WRAPPED, oneof, presence=True)
    if field.is_repeated:
        return Field(field.number, kind, pa.list_(arrow), oneof=oneof, known=known)
    presence = field.has_presence and not field.has_default_value
    absent = _absent(field.default_value, arrow)
    return Field(field.number, kind, arrow, oneof=oneof, presence=presence, absent=absent, known=known)


def _absent(default: Any, arrow: pa.DataType) -> int | bytes:
    """Value of an absent field, as `Field.absent`."""
    if isinstance(default, str | bytes):
        return default.encode() if isinstance(default, str) else default
    if arrow == pa.bool_():
        return int(default)
    return int.from_bytes(np.array(default, arrow.to_pandas_dtype()).tobytes(), "little")


def _named(array: pa.Array, names: Mapping[int, str] | None) -> pa.Array:
    """Names of an enum's numbers; a number without name is its text."""
    if names is None:
        return array
    numbers = (array.values if pa.types.is_list(array.type) else array).dictionary_encode()
    texts = [names.get(number, str(number)) for number in numbers.dictionary.to_pylist()]
    found = pa.array(texts, pa.string()).take(numbers.indices)
    if not pa.types.is_list(array.type):
        return found
    return pa.ListArray.from_arrays(array.offsets, found, mask=array.is_null() if array.null_count else None)
