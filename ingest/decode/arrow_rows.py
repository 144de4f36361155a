"""Conversion of any producer's Arrow batches to the declared columns and types.

Schemas are checked as a whole; a row whose numbers do not fit is found and reported. Producers are not
trusted: an Arrow message is validated so that no offset points outside its buffer, and its decompressed size
is checked before decompression.
"""

from __future__ import annotations

from collections.abc import Callable, Collection, Mapping, Sequence
from dataclasses import dataclass
from functools import lru_cache

import numpy as np
import numpy.typing as npt
import pyarrow as pa
import pyarrow.compute as pc

from livectr.ingest.dead_letters import complaints
from livectr.ingest.dead_letters.letters import Reason
from livectr.ingest.decode.arrow_size import GROWING, plain_bytes, read_messages
from livectr.ingest.decode.json_rows import Bad
from livectr.ingest.language import dtypes
from livectr.ingest.limits import LIMITS, RecordLimits
from livectr.system.values import MOST_EXACT

PER_SECOND = {"s": 1, "ms": 10**3, "us": 10**6, "ns": 10**9}

_Rows = tuple[pa.RecordBatch, npt.NDArray[np.int64], list[Bad]]


class UnusableError(Exception):
    """Raised when a whole Arrow message or batch cannot be used. rows: its row count, or 1 if unknown."""

    def __init__(self, reason: Reason, detail: str, rows: int = 1) -> None:
        super().__init__(detail)
        self.reason = reason
        self.rows = rows


def names_of(value: bytes) -> list[str]:
    """Names of all columns of an Arrow IPC stream with a readable schema."""
    names: list[str] = pa.ipc.open_stream(value).schema.names
    return names


def read_stream(value: bytes, names: Collection[str], limits: RecordLimits = LIMITS) -> pa.RecordBatch:
    """Read the columns `names` of an Arrow IPC stream.

    Producers are not trusted: sizes are checked before decompression, and offsets afterwards.

    Raises:
        UnusableError: the stream is damaged or exceeds a limit.
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
    return batches[0] if batches else no_rows(table.schema)


def no_rows(schema: pa.Schema) -> pa.RecordBatch:
    """Batch of no rows; Arrow has no converter of Python's values to some types."""
    return pa.RecordBatch.from_arrays([pa.nulls(0, field.type) for field in schema], schema=schema)


def concat_rows(batches: Sequence[pa.RecordBatch]) -> pa.RecordBatch:
    """Concatenate batches of one schema; a single batch is returned without a copy."""
    return batches[0] if len(batches) == 1 else pa.concat_batches(batches)


def conform(
    batch: pa.RecordBatch,
    columns: Mapping[str, str],
    optional: Collection[str] = (),
    *,
    unpacked_bytes: int | None = None,
    seen: Callable[[], Collection[str]] | None = None,
    units: Mapping[str, str] | None = None,
) -> _Rows:
    """Cast a batch to the declared columns and types.

    Bool columns may hold the numbers 0 and 1, numeric columns may hold bools.

    Args:
        batch: rows as the producer wrote them.
        columns: name → declared type.
        optional: columns that may be absent; they become null.
        unpacked_bytes: greatest size of the columns as plain values (of dictionaries, views, lists); None: no
            limit.
        seen: returns the names of all columns of the log, for error messages; by default those of the batch.
        units: column → unit in which timestamps become int64; by default milliseconds.

    Returns:
        Batch of n rows, their row numbers int64[n], and the rows whose values do not fit.

    Raises:
        UnusableError: a column is absent, its type cannot become the declared type, or it has too many bytes.
    """
    schema = _schema(tuple(columns.items()))
    if batch.schema.equals(schema) and not any(kind.id in GROWING for kind in schema.types):
        return batch, np.arange(batch.num_rows, dtype=np.int64), []
    arrays, odd = [], list[Bad]()
    size = 0
    for (name, dtype), kind in zip(columns.items(), schema.types, strict=True):
        index = batch.schema.get_field_index(name)
        if index >= 0:
            array = batch.column(index)
            if not (as_declared := array.type.equals(kind)):
                _check_family(array, name, dtype)
            if unpacked_bytes is not None and array.type.id in GROWING:
                size += plain_bytes(array)
                _check_bytes(size, unpacked_bytes, batch.num_rows)
            if not as_declared:
                unit = (units or {}).get(name, "ms")
                array, bad = _within_int64(array, name, dtype, unit)
                odd += bad
                array = _convertible(array, dtype, unit)
                if pa.types.is_floating(array.type) and dtype in dtypes.FIXED:  # NaN is null
                    array = pc.if_else(pc.is_nan(array), pa.scalar(None, array.type), array)
                if dtype == "bool" and _family(array.type) == "number":
                    array, bad = _as_bool(array, name)
                    odd += bad
                elif dtypes.element(dtype) in ("int64", "int32"):
                    odd += _too_wide(array, name, dtype)
            arrays.append(array)
        elif name in batch.schema.names:
            raise UnusableError(Reason.WRONG_TYPE, complaints.repeated_column(name), batch.num_rows)
        elif name in optional:
            arrays.append(pa.nulls(batch.num_rows, kind))
        else:
            message = complaints.missing_column(name, batch.schema.names if seen is None else seen())
            raise UnusableError(Reason.MISSING_COLUMN, message, batch.num_rows)
    cast, rows, bad = _cast_rows(pa.RecordBatch.from_arrays(arrays, list(columns)), schema)
    if odd:
        known = {item.row for item in bad}
        first = {item.row: item for item in reversed(odd) if item.row not in known}
        keep = ~np.isin(rows, list(first))
        cast, rows = cast.filter(pa.array(keep)), rows[keep]
        bad = sorted([*bad, *first.values()], key=lambda item: item.row)
    return cast, rows, bad


@dataclass(frozen=True)
class WireColumns:
    """Columns to read from a topic's Arrow batches, whoever wrote them.

    Args:
        columns: name → declared type.
        optional: columns that may be absent; they become null.
        units: column → unit in which timestamps become int64.
    """

    columns: Mapping[str, str]
    optional: Collection[str]
    units: Mapping[str, str]

    def conform(
        self,
        batch: pa.RecordBatch,
        *,
        unpacked_bytes: int | None = None,
        seen: Callable[[], Collection[str]] | None = None,
    ) -> _Rows:
        """Cast a batch to these columns; see `conform`."""
        return conform(
            batch, self.columns, self.optional, unpacked_bytes=unpacked_bytes, seen=seen, units=self.units
        )


@lru_cache(maxsize=256)
def _schema(columns: tuple[tuple[str, str], ...]) -> pa.Schema:
    return pa.schema([(name, dtypes.arrow_type(dtype)) for name, dtype in columns])


def _check_bytes(size: int, most: int, rows: int = 1) -> None:
    if size > most:
        raise UnusableError(Reason.OVERSIZE, f"{size} bytes when it is unpacked, more than {most}", rows)


def _check_family(array: pa.Array, name: str, dtype: str) -> None:
    """Check that a column's kind fits its type: text is never read as numbers."""
    plain = array.type.value_type if pa.types.is_dictionary(array.type) else array.type
    if pa.types.is_timestamp(plain) and dtype == "int64":
        return
    actual, wanted = _family(plain), _family(dtypes.arrow_type(dtype))
    empty = ("null", "list of null") if dtypes.is_list(dtype) else ("null",)
    if {actual, wanted} != {"number", "bool"} and actual not in (wanted, *empty):
        message = complaints.wrong_type(name, dtype, complaints.arrow_words(plain))
        raise UnusableError(Reason.WRONG_TYPE, message, len(array))


def _within_int64(array: pa.Array, name: str, dtype: str, unit: str) -> tuple[pa.Array, list[Bad]]:
    """(timestamps that `unit` can count in int64, the rows with others, which become null)."""
    if not pa.types.is_timestamp(array.type) or dtype != "int64":
        return array, []
    most = (2**63 - 1) * PER_SECOND[array.type.unit] // PER_SECOND[unit]
    if most >= 2**63 - 1:
        return array, []
    counts = array.view(pa.int64())
    wrong = pc.fill_null(pc.or_(pc.greater(counts, most), pc.less(counts, -most)), False)
    rows = np.flatnonzero(np.asarray(wrong.to_numpy(zero_copy_only=False)))
    bad = [
        Bad(row, Reason.WRONG_TYPE, complaints.beyond_years(name, f"{counts[row].as_py()} {array.type.unit}"))
        for row in rows.tolist()
    ]
    return (pc.if_else(wrong, pa.scalar(None, array.type), array) if bad else array), bad


def _as_bool(array: pa.Array, name: str) -> tuple[pa.Array, list[Bad]]:
    """(numbers 0 and 1 as bool, the rows with other numbers, which become null)."""
    numbers = array if pa.types.is_decimal(array.type) else array.cast(pa.float64(), safe=False)
    wrong = pc.fill_null(pc.and_(pc.not_equal(numbers, 0), pc.not_equal(numbers, 1)), False)
    rows = np.flatnonzero(np.asarray(wrong.to_numpy(zero_copy_only=False)))
    bad = [
        Bad(row, Reason.WRONG_TYPE, complaints.not_a_bool(name, array[row].as_py())) for row in rows.tolist()
    ]
    return pc.if_else(wrong, pa.scalar(None, pa.bool_()), pc.equal(numbers, 1)), bad


def _too_wide(array: pa.Array, name: str, dtype: str) -> list[Bad]:
    """Rows with a floating number so large that it stands for more than one whole number."""
    listed = dtypes.is_list(dtype) and not pa.types.is_null(array.type)
    items = array.flatten() if listed else array
    if not pa.types.is_floating(items.type):
        return []
    wide = np.abs(items.fill_null(0).to_numpy(zero_copy_only=False)) > MOST_EXACT
    if not wide.any():
        return []
    rows = np.flatnonzero(wide)
    rows = np.unique(np.asarray(pc.list_parent_indices(array))[rows]) if listed else rows
    return [
        Bad(row, Reason.WRONG_TYPE, complaints.of_value(name, dtype, array[row].as_py()))
        for row in rows.tolist()
    ]


def _convertible(array: pa.Array, dtype: str, unit: str) -> pa.Array:
    """Replace dictionaries by values, times by int64 in `unit`, bools of a numeric column by 0 and 1."""
    if pa.types.is_dictionary(array.type):
        array = array.dictionary_decode()
    if pa.types.is_timestamp(array.type) and dtype == "int64":
        instants = array.view(pa.timestamp(array.type.unit))  # UTC in any zone, whose name may be damaged
        return pc.cast(instants, pa.timestamp(unit), safe=False).cast(pa.int64())
    if pa.types.is_boolean(array.type) and dtype in dtypes.NUMBERS:
        return array.cast(pa.int8())
    if dtypes.element(dtype) in ("float64", "float32") and not pa.types.is_null(array.type):
        # The nearest number, as in JSON: a whole number may have more digits than a float.
        return array.cast(dtypes.arrow_type(dtype), safe=False)
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


def _misfit(batch: pa.RecordBatch, schema: pa.Schema, error: Exception) -> str:
    """Sentence about the first value of a row that does not fit its column."""
    for name, array, field in zip(batch.schema.names, batch.columns, schema, strict=True):
        try:
            array.cast(field.type, safe=True)
        except (pa.ArrowInvalid, pa.ArrowNotImplementedError):
            return complaints.of_value(name, dtypes.dtype_of(field.type), array[0].as_py())
    return str(error)


def _cast_rows(batch: pa.RecordBatch, schema: pa.Schema) -> _Rows:
    """Cast without loss; rows whose values do not fit are found by bisection."""
    if batch.schema.equals(schema):
        return batch, np.arange(batch.num_rows, dtype=np.int64), []
    try:
        return batch.cast(schema, safe=True), np.arange(batch.num_rows, dtype=np.int64), []
    except (pa.ArrowInvalid, pa.ArrowNotImplementedError) as error:
        if batch.num_rows <= 1:
            return (
                batch.slice(0, 0).cast(schema),
                np.empty(0, np.int64),
                [Bad(0, Reason.WRONG_TYPE, _misfit(batch, schema, error))],
            )
    half = batch.num_rows // 2
    front, front_rows, bad = _cast_rows(batch.slice(0, half), schema)
    back, back_rows, back_bad = _cast_rows(batch.slice(half), schema)
    bad += [Bad(item.row + half, item.reason, item.detail) for item in back_bad]
    return pa.concat_batches([front, back]), np.concatenate([front_rows, back_rows + half]), bad
