"""Decompressed size of an Arrow IPC stream, read from its metadata before memory is allocated.

A compressed buffer of 40 KB may hold 20 million rows. Each IPC message has a flatbuffer (Message.fbs) with
the number of rows and the place of each buffer; pyarrow verifies and hides it. A compressed buffer begins
with its uncompressed length (int64; -1: not compressed). Both are controlled by the producer and only bound
the allocation: `validate(full=True)` of the data is still needed.
"""

from __future__ import annotations

import struct

import numpy as np
import numpy.typing as npt
import pyarrow as pa
import pyarrow.compute as pc

_HEADER, _BODY = 2, 3  # fields of Message: header, bodyLength
_DATA = 1  # DictionaryBatch.data
_LENGTH, _BUFFERS, _COMPRESSION = 0, 2, 3  # fields of RecordBatch
GROWING = {
    pa.lib.Type_DICTIONARY, pa.lib.Type_STRING_VIEW, pa.lib.Type_BINARY_VIEW,
    pa.lib.Type_LIST, pa.lib.Type_LARGE_LIST, pa.lib.Type_FIXED_SIZE_LIST,
}  # fmt: skip
"""Types whose arrays may take much more memory as plain values; other types take what their buffers take."""
_CONTINUES = 0xFFFFFFFF
"""Mark before the length of a message's metadata."""
_BATCH_TYPES = ("record batch", "dictionary")


def read_messages(value: bytes) -> tuple[pa.Schema, int, int]:
    """Read the metadata of a stream.

    Returns:
        Schema; rows of all record batches; decompressed bytes of all buffers, dictionaries included.

    Raises:
        pa.ArrowInvalid: the metadata is damaged.
    """
    schema, rows, size = None, 0, 0
    try:
        _check_frames(memoryview(value))
        reader = pa.ipc.MessageReader.open_stream(value)
        while True:
            message = reader.read_next_message()
            if schema is None:
                if message.type != "schema":  # read_schema would read it as one, outside of the message
                    break
                schema = pa.ipc.read_schema(message)
            elif message.type in _BATCH_TYPES:
                more_rows, more = _batch_size(message)
                rows += more_rows if message.type == "record batch" else 0
                size += more
    except StopIteration:
        pass
    except (struct.error, IndexError) as error:
        raise pa.ArrowInvalid(f"the metadata of an Arrow message are damaged ({error})") from None
    if schema is None:
        raise pa.ArrowInvalid("an Arrow stream without schema")
    return schema, rows, size


def plain_bytes(array: pa.Array) -> int:
    """Approximate bytes of a validated array as plain values.

    A dictionary entry, or a text behind many views, is copied for each row. A list of nulls has no memory
    until it is cast to a type.
    """
    kind = array.type
    if pa.types.is_dictionary(kind):
        rows = array.indices.drop_null().to_numpy()
        return int(item_bytes(array.dictionary)[rows].sum()) if len(rows) else 0
    if pa.types.is_nested(kind) or pa.types.is_string_view(kind) or pa.types.is_binary_view(kind):
        return int(item_bytes(array).sum())
    return int(array.nbytes)


def row_bytes(rows: pa.RecordBatch) -> npt.NDArray[np.int64]:
    """Bytes of each row's values: int64[n]."""
    return sum((item_bytes(column) for column in rows.columns), np.zeros(len(rows), np.int64))


def item_bytes(array: pa.Array) -> npt.NDArray[np.int64]:
    """Bytes of each value, int64[n]; numbers count as 8 bytes, their greatest size.

    Each is at most 2³⁴, so that a sum over the rows of a message does not overflow.
    """
    kind, types = array.type, pa.types
    if types.is_fixed_size_binary(kind):
        return np.full(len(array), kind.byte_width, np.int64)
    if types.is_fixed_size_list(kind):
        return np.full(len(array), 8 * kind.list_size, np.int64)
    if types.is_list(kind) or types.is_large_list(kind):
        offsets = array.offsets.to_numpy().astype(np.int64)
        if not _has_bytes(kind.value_type):
            return np.asarray(8 * np.minimum(np.diff(offsets), 1 << 31))
        until = np.concatenate([[0], np.cumsum(item_bytes(array.values) + 8)])
        return np.asarray(np.diff(until[offsets]))
    if types.is_string_view(kind) or types.is_binary_view(kind):
        # A view is 16 bytes that begin with its length, an int32.
        lengths = np.frombuffer(array.buffers()[1] or b"", "<i4")[::4][array.offset :][: len(array)]
        valid = array.is_valid().to_numpy(zero_copy_only=False)
        return np.asarray(np.where(valid, lengths, 0), np.int64)
    if _has_bytes(kind):
        return np.asarray(pc.fill_null(pc.binary_length(array), 0).to_numpy(zero_copy_only=False), np.int64)
    return np.full(len(array), 8, np.int64)


def _has_bytes(kind: pa.DataType) -> bool:
    types = pa.types
    return bool(
        types.is_string(kind)
        or types.is_large_string(kind)
        or types.is_string_view(kind)
        or types.is_binary(kind)
        or types.is_large_binary(kind)
        or types.is_binary_view(kind)
    )


def _check_frames(value: memoryview) -> None:
    """Check that metadata and bodies lie within the stream.

    pyarrow allocates what their lengths ask for; without so much memory it ends the process.

    Raises:
        pa.ArrowInvalid, struct.error, IndexError: they do not, or the metadata are damaged.
    """
    at = 0
    while at + 8 <= len(value):
        mark, size = struct.unpack_from("<Ii", value, at)
        if mark == _CONTINUES and size == 0:
            return  # the end of the stream
        body = at + 8 + size
        if mark != _CONTINUES or size < 0 or body > len(value):
            raise pa.ArrowInvalid("the metadata of an Arrow message lie outside of it")
        flat = value[at + 8 : body]
        place = _field(flat, _follow(flat, 0), _BODY)
        length = struct.unpack_from("<q", flat, place)[0] if place else 0
        if not 0 <= length <= len(value) - body:
            raise pa.ArrowInvalid("the body of an Arrow message lies outside of it")
        at = body + length


def _batch_size(message: pa.ipc.Message) -> tuple[int, int]:
    """(rows, bytes) of a record batch or a dictionary."""
    flat = memoryview(message.metadata)
    at = _follow(flat, _field(flat, _follow(flat, 0), _HEADER))
    if message.type == "dictionary":
        at = _follow(flat, _field(flat, at, _DATA))
    place = _field(flat, at, _LENGTH)
    rows = struct.unpack_from("<q", flat, place)[0] if place else 0
    place = _field(flat, at, _BUFFERS)
    if not place:
        return _checked(rows), 0
    place = _follow(flat, place)
    count = struct.unpack_from("<I", flat, place)[0]
    # A Buffer is a struct of two int64: offset in the body, and length.
    buffers = np.frombuffer(flat, "<i8", 2 * count, place + 4).reshape(count, 2)
    lengths = buffers[:, 1]
    if _field(flat, at, _COMPRESSION):
        body = memoryview(message.body)
        lengths = np.array([_uncompressed(body, *buffer) for buffer in buffers.tolist()], np.int64)
    # Summed as Python integers: damaged lengths must not wrap around.
    return _checked(rows), sum(map(_checked, lengths.tolist()))


def _uncompressed(body: memoryview, offset: int, length: int) -> int:
    if length == 0:
        return 0
    if offset < 0 or length < 8 or offset + length > len(body):
        raise pa.ArrowInvalid("a buffer of an Arrow message lies outside its body")
    size: int = struct.unpack_from("<q", body, offset)[0]
    return length - 8 if size == -1 else size


def _checked(size: int) -> int:
    if size < 0:
        raise pa.ArrowInvalid("an Arrow message has a negative size")
    return size


def _follow(flat: memoryview, place: int) -> int:
    """Follow the offset stored at `place`."""
    if place < 0:
        raise IndexError("offset")
    return int(place + struct.unpack_from("<I", flat, place)[0])


def _field(flat: memoryview, table: int, number: int) -> int:
    """Place of a table's field; 0 where it is absent."""
    vtable = table - struct.unpack_from("<i", flat, table)[0]
    if vtable < 0:
        raise IndexError("vtable")
    if 4 + 2 * number >= struct.unpack_from("<H", flat, vtable)[0]:
        return 0
    offset = struct.unpack_from("<H", flat, vtable + 4 + 2 * number)[0]
    return table + offset if offset else 0
