"""Rows of a batch as JSON events, column by column: `json.dumps` of each row takes twice as long."""

from __future__ import annotations

import base64
import json
from collections.abc import Iterator

import pyarrow as pa
import pyarrow.compute as pc

from livectr.system.values import MOST_EXACT

_ROWS = 10_000
"""Rows that are encoded at a time: their text is shorter than the 2 GiB that an Arrow array may hold."""
_PLAIN = r"^[ !#-\[\]-~]*$"
"""Text that JSON writes as it is: ASCII without quotes, backslashes and control characters."""


def json_events(batch: pa.RecordBatch) -> Iterator[bytes]:
    """Yield the event of each row, equal to `json.dumps` of the row as a dictionary."""
    for start in range(0, batch.num_rows, _ROWS):
        some = batch.slice(start, _ROWS)
        parts: list[pa.Scalar | pa.Array] = []
        for name, column in zip(some.schema.names, some.columns, strict=True):
            parts += [pa.scalar(f"{', ' if parts else '{'}{json.dumps(name)}: "), _texts(column)]
        yield from pc.binary_join_element_wise(*parts, pa.scalar("}"), "").cast(pa.binary()).to_pylist()


def message_keys(column: pa.Array) -> list[bytes | None]:
    """Message key of each value, as of `message_key`."""
    if not column.null_count and (pa.types.is_integer(column.type) or pa.types.is_string(column.type)):
        return column.cast(pa.string()).cast(pa.binary()).to_pylist()  # type: ignore[no-any-return]
    return [message_key(value) for value in column.to_pylist()]


def message_key(value: object) -> bytes | None:
    """Message key of a value of a plain type: its text, 17 of 17.0; None for null."""
    if value is None:
        return None
    if isinstance(value, bool):
        return b"true" if value else b"false"
    whole = isinstance(value, float) and value.is_integer() and abs(value) <= MOST_EXACT
    return str(int(value) if whole else value).encode()  # type: ignore[call-overload]


def _texts(column: pa.Array) -> pa.Array:
    """JSON of each value."""
    kind = column.type
    if pa.types.is_integer(kind) or pa.types.is_boolean(kind):
        return column.cast(pa.string()).fill_null("null")
    if pa.types.is_string(kind) and pc.all(pc.match_substring_regex(column, _PLAIN)).as_py() is not False:
        return pc.binary_join_element_wise('"', column, '"', "").fill_null("null")
    values = column.to_pylist()
    if pa.types.is_binary(kind):  # as readers of JSON expect bytes
        values = [None if one is None else base64.b64encode(one).decode() for one in values]
    if pa.types.is_nested(kind):
        return pa.array(map(json.dumps, values), pa.string())
    # All in one call: text in JSON has no line ends.
    return pa.array(json.dumps(values, separators=("\n", ": "))[1:-1].split("\n"), pa.string())
