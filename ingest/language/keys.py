"""Keys of values outside a plan: joins, histories and serving use the same 64-bit keys as the features."""

from __future__ import annotations

from collections.abc import Sequence
from functools import reduce

import numpy as np
import numpy.typing as npt
import pyarrow as pa

from livectr.kernels.keys.keys import combine_keys, hash_texts
from livectr.system.errors import ConfigError

Keys = npt.NDArray[np.int64]


def key_of(values: pa.Array | pa.ChunkedArray) -> Keys:
    """Keys of values, int64[n], equal to `key()`.

    Integers are their own keys, bools 0 or 1, strings the XXH64 of their UTF-8 bytes. Null counts as 0, false
    or "".

    Raises:
        ConfigError: the values have another type.
    """
    if isinstance(values, pa.ChunkedArray):
        values = values.combine_chunks()
    kind = values.type
    if pa.types.is_dictionary(kind):
        return key_of(values.dictionary_decode())
    if kind == pa.int64() and not values.null_count:
        if not len(values):  # Arrow may leave out the buffer
            return np.empty(0, np.int64)
        # to_numpy would release the interpreter's lock, and a server's request would wait to get it again.
        return np.frombuffer(values.buffers()[1], np.int64, len(values), 8 * values.offset)
    if pa.types.is_integer(kind) or pa.types.is_boolean(kind):
        filled = values.fill_null(False if pa.types.is_boolean(kind) else 0) if values.null_count else values
        try:
            return np.asarray(filled.cast(pa.int64()).to_numpy(zero_copy_only=False))
        except pa.ArrowInvalid as error:
            raise ConfigError(f"a key does not fit 64 bits: {error}") from error
    if kind in (pa.string(), pa.large_string(), pa.string_view(), pa.binary(), pa.large_binary(), pa.null()):
        return _hashed(values if kind in (pa.string(), pa.binary()) else values.cast(_narrow(kind)))
    raise ConfigError(f"values of type {kind} have no key; use integers, bools or strings")


def hash_strings(values: pa.Array | Sequence[str | None]) -> Keys:
    """Keys of strings, int64[n]."""
    return key_of(values if isinstance(values, pa.Array) else pa.array(values, pa.string()))


def _narrow(kind: pa.DataType) -> pa.DataType:
    return pa.binary() if kind == pa.large_binary() else pa.string()


def _hashed(texts: pa.Array) -> Keys:
    """Keys of strings or binaries, int64[n]."""
    if not len(texts):  # Arrow may leave out the buffers of empty columns
        return np.empty(0, np.int64)
    filled = texts.fill_null(b"" if texts.type == pa.binary() else "") if texts.null_count else texts
    _, offsets, data = filled.buffers()
    places = np.frombuffer(offsets, np.int32)[filled.offset : filled.offset + len(filled) + 1]
    return hash_texts(np.frombuffer(data or b"", np.uint8), places)


def keys_of(batch: pa.RecordBatch | None, names: Sequence[str]) -> Keys:
    """Key of some columns for each row: int64[n]; without a batch, of no row."""
    if batch is None:
        return np.empty(0, np.int64)
    return reduce(combine_keys, (key_of(batch.column(name)) for name in names))
