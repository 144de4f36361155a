"""Keys of messages."""

from __future__ import annotations

import pyarrow as pa

from livectr.ingest.language import dtypes


def parse_key(key: bytes | None, dtype: str) -> int | str:
    """Parse a message key: UTF-8 text, integers in decimal.

    Args:
        key: of the message; None: the message has none.
        dtype: type of the key column.

    Raises:
        ValueError: there is no key, or it has another type.
    """
    if key is None:
        raise ValueError("the message has no key")
    text = key.decode()
    if dtype == "string":
        return text
    try:
        pa.array([int(text)], dtypes.arrow_type(dtype))
    except (ValueError, pa.ArrowInvalid, OverflowError):
        raise ValueError(f"message key {text[:100]!r} is no {dtype}") from None
    return int(text)
