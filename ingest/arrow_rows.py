"""Arrow batches of any producer → batches with the declared columns and types.

Schemas are checked as a whole; a row whose numbers do not fit is found and named. Producers are not trusted:
what comes in an Arrow message is validated, so that no offset points outside its buffer, and what it takes
unpacked is known before it is unpacked.
"""

from __future__ import annotations

from collections.abc import Collection, Mapping, Sequence

import numpy as np
import numpy.typing as npt
import pyarrow as pa
import pyarrow.compute as pc

from ingest import dtypes
from ingest.arrow_size import plain_bytes, read_messages
from ingest.deadletter import Reason
from ingest.json_rows import Bad
from ingest.limits import LIMITS, RecordLimits

_Rows = tuple[pa.RecordBatch, npt.NDArray[np.int64], list[Bad]]


class UnusableError(Exception):
    """A whole Arrow message or batch cannot be used."""

    def __init__(self, reason: Reason, detail: str) -> None:
        super().__init__(detail)
        self.reason = reason


def read_stream(value: bytes, names: Collection[str], limits: RecordLimits = LIMITS) -> pa.RecordBatch:
    """The columns `names` of an Arrow IPC stream, checked for memory safety: producers are not trusted.

    Raises UnusableError.
    """
    try:
        schema, rows, size = read_messages(value)
        if rows > limits.message_rows:
            raise UnusableError(Reason.OVERSIZE, f"{rows} rows, more than {limits.message_rows}")
        _check_bytes(size, limits.unpacked_bytes)
        wanted = [number for number, name in enumerate(schema.names) if name in names]
        options = pa.ipc.IpcReadOptions(included_fields=wanted, use_threads=False)
        table = pa.ipc.open_stream(value, options=options).read_all()
        table.validate(full=True)
        batches = table.combine_chunks().to_batches()
    except (pa.ArrowException, OSError, ValueError) as error:
        raise UnusableError(Reason.BAD_ARROW, str(error)) from error
    return batches[0] if batches else pa.RecordBatch.from_pylist([], schema=table.schema)


def as_one(batches: Sequence[pa.RecordBatch]) -> pa.RecordBatch:
    """The rows of one or more batches of a schema; of a single one without a copy."""
    return batches[0] if len(batches) == 1 else pa.concat_batches(batches)


def conform(
    batch: pa.RecordBatch,
    columns: Mapping[str, str],
    optional: Collection[str] = (),
    *,
    unpacked_bytes: int | None = None,
) -> _Rows:
    """(columns in their declared types, rows int64[n], rows whose numbers do not fit).

    optional: columns that may be absent; they become null. unpacked_bytes: most bytes that the columns may
    take as plain values (of dictionaries, views, lists); None: no limit. Raises UnusableError for an absent
    column, a type that cannot become the declared one, or too many bytes.
    """
    arrays = []
    size = 0
    for name, dtype in columns.items():
        index = batch.schema.get_field_index(name)
        if index >= 0:
            array = batch.column(index)
            _check_family(array.type, name, dtype)
            if unpacked_bytes is not None:
                size += plain_bytes(array)
                _check_bytes(size, unpacked_bytes)
            arrays.append(_convertible(array, dtype))
        elif name in optional:
            arrays.append(pa.nulls(batch.num_rows, dtypes.arrow_type(dtype)))
        else:
            raise UnusableError(Reason.MISSING_COLUMN, f"missing column {name}")
    schema = pa.schema([(name, dtypes.arrow_type(dtype)) for name, dtype in columns.items()])
    return _cast_rows(pa.RecordBatch.from_arrays(arrays, list(columns)), schema)


def _check_bytes(size: int, most: int) -> None:
    if size > most:
        raise UnusableError(Reason.OVERSIZE, f"{size} bytes when it is unpacked, more than {most}")


def _check_family(kind: pa.DataType, name: str, dtype: str) -> None:
    """Text is never read as numbers."""
    plain = kind.value_type if pa.types.is_dictionary(kind) else kind
    if pa.types.is_timestamp(plain) and dtype == "int64":
        return
    if _family(plain) not in (_family(dtypes.arrow_type(dtype)), "null", "list of null"):
        raise UnusableError(Reason.WRONG_TYPE, f"column {name}: expected {dtype}, found {plain}")


def _convertible(array: pa.Array, dtype: str) -> pa.Array:
    """Dictionaries replaced by values, times by milliseconds."""
    if pa.types.is_dictionary(array.type):
        array = array.dictionary_decode()
    if pa.types.is_timestamp(array.type) and dtype == "int64":
        return pc.cast(array, pa.timestamp("ms", array.type.tz), safe=False).cast(pa.int64())
    return array


def _family(kind: pa.DataType) -> str:
    types = pa.types
    if types.is_list(kind) or types.is_large_list(kind) or types.is_fixed_size_list(kind):
        return f"list of {_family(kind.value_type)}"
    if types.is_integer(kind) or types.is_floating(kind) or types.is_decimal(kind):
        return "number"
    if types.is_string(kind) or types.is_large_string(kind) or types.is_string_view(kind):
        return "text"
    if types.is_binary(kind) or types.is_large_binary(kind) or types.is_fixed_size_binary(kind):
        return "binary"
    return str(kind)


def _cast_rows(batch: pa.RecordBatch, schema: pa.Schema) -> _Rows:
    """Casts without loss; rows whose values do not fit are found by halving."""
    if batch.schema.equals(schema):
        return batch, np.arange(batch.num_rows, dtype=np.int64), []
    try:
        return batch.cast(schema, safe=True), np.arange(batch.num_rows, dtype=np.int64), []
    except (pa.ArrowInvalid, pa.ArrowNotImplementedError) as error:
        if batch.num_rows <= 1:
            return (
                batch.slice(0, 0).cast(schema),
                np.empty(0, np.int64),
                [Bad(0, Reason.WRONG_TYPE, str(error))],
            )
    half = batch.num_rows // 2
    front, front_rows, bad = _cast_rows(batch.slice(0, half), schema)
    back, back_rows, back_bad = _cast_rows(batch.slice(half), schema)
    bad += [Bad(item.row + half, item.reason, item.detail) for item in back_bad]
    return pa.concat_batches([front, back]), np.concatenate([front_rows, back_rows + half]), bad
