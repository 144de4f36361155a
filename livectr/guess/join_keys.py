"""Values of columns by which raw logs join, together as one text for each row."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import TypeAlias

import pyarrow as pa
import pyarrow.compute as pc

from livectr.guess.made import Columns
from livectr.logs.values import Form, valued

SEPARATOR = "\x1f"
Text: TypeAlias = pa.Array | pa.ChunkedArray


def together(rows: Columns, names: Sequence[str], forms: Mapping[str, Form] | None = None) -> pa.ChunkedArray:
    """Values of columns together as texts, null where one is empty.

    Args:
        rows: in their forms, or as they were read.
        names: of the columns.
        forms: column → form of rows as they were read.
    """
    values = [
        rows.column(name) if forms is None else valued(rows.column(name), forms[name]) for name in names
    ]
    texts = [column.cast(pa.string()) for column in values]
    whole = texts[0] if len(texts) == 1 else pc.binary_join_element_wise(*texts, SEPARATOR)
    return whole if isinstance(whole, pa.ChunkedArray) else pa.chunked_array([whole])


def is_id(kind: pa.DataType) -> bool:
    """True for a type whose values can join: whole numbers and texts."""
    return bool(pa.types.is_integer(kind) or pa.types.is_string(kind))


def whole(values: Text) -> pa.Array:
    """Values as one array."""
    return values.combine_chunks() if isinstance(values, pa.ChunkedArray) else values
