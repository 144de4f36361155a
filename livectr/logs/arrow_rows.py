"""Parquet files as batches of plain columns: numbers, texts, bytes, times and lists of them.

Structs become columns of their own. Every type has a plain one, or stays as it is.
"""

from __future__ import annotations

from collections.abc import Iterator

import numpy as np
import pyarrow as pa
import pyarrow.compute as pc
import pyarrow.parquet as parquet

from livectr.logs.account import LONGEST_ROW, Account
from livectr.logs.csv_rows import I64, Rows
from livectr.logs.encoding import not_utf8
from livectr.logs.names import INSIDE, check_names, one_column
from livectr.logs.values import EXACT_DIGITS
from livectr.system.errors import ConfigError, reason_of
from livectr.system.file_kinds import unlike

LISTS = (
    *(pa.types.is_list, pa.types.is_large_list, pa.types.is_fixed_size_list),
    *(pa.types.is_list_view, pa.types.is_large_list_view),
)
BATCH_ROWS = 1 << 16


def parquet_rows(account: Account) -> Iterator[Rows]:
    """Rows of a Parquet file; places are its rows, from 1.

    Raises:
        ConfigError: the file cannot be read, is not Parquet, or two names become one.
    """
    first = 1
    try:
        # INT96 in nanoseconds cannot hold the year 2263.
        file = parquet.ParquetFile(account.path, coerce_int96_timestamp_unit="us")
        for batch in file.iter_batches(batch_size=BATCH_ROWS):
            flat = _flat(batch, account)
            columns = [plain(column) for column in flat.columns]
            rows = Rows(
                pa.RecordBatch.from_arrays(columns, flat.schema.names),
                np.arange(first, first + flat.num_rows, dtype=np.int64),
            )
            first += flat.num_rows
            for fit in _of_utf8(rows, account):
                if len((short := _without_long(fit, account)).places):
                    yield short
    except (OSError, pa.ArrowException) as error:
        if account.path.is_file() and (words := unlike(account.path, "Parquet")):
            raise ConfigError(f"{words}.") from None
        raise ConfigError(
            f"{account.path} cannot be read as Parquet: {reason_of(error).rstrip('.')}."
        ) from None


def row_bytes(batch: pa.RecordBatch) -> I64:
    """int64[n], bytes of each row: those of its texts and bytes, and 8 for any other value, null or not."""
    return sum((_bytes(column) for column in batch.columns), np.zeros(batch.num_rows, np.int64))


def _bytes(column: pa.Array) -> I64:
    kind = column.type
    if pa.types.is_string(kind) or pa.types.is_binary(kind):
        return np.asarray(pc.fill_null(pc.binary_length(column), 0), np.int64)
    if pa.types.is_list(kind):
        lengths = np.asarray(pc.fill_null(pc.list_value_length(column), 0), np.int64)
        ends = np.concatenate(([0], np.cumsum(_bytes(column.flatten()))))
        stops = np.cumsum(lengths)
        return np.asarray(ends[stops] - ends[stops - lengths], np.int64)
    return np.full(len(column), 8, np.int64)


def _without_long(rows: Rows, account: Account) -> Rows:
    """Rows of at most LONGEST_ROW bytes; the account receives the others."""
    if rows.batch.nbytes <= LONGEST_ROW:
        return rows
    fits = row_bytes(rows.batch) <= LONGEST_ROW
    if fits.all():
        return rows
    for number in np.flatnonzero(~fits).tolist():
        text = str(rows.batch.slice(number, 1).to_pylist()[0])
        account.set_aside_long(int(rows.places[number]), text[:LONGEST_ROW])
    return Rows(rows.batch.filter(pa.array(fits)), rows.places[fits])


def plain(column: pa.Array) -> pa.Array:
    """Column of a plain type: bool, int32, int64, float, double, string, binary, times, or a list of these.

    Unsigned numbers beyond int64 and long decimals are texts, durations milliseconds. Floats stay floats, for
    they lack digits of ids and times (`livectr.logs.values.lost_digits`). A type that has no plain one stays
    as it is.
    """
    kind = column.type
    if isinstance(kind, pa.BaseExtensionType):
        if kind.extension_name == "arrow.uuid":
            return pa.array([None if one is None else str(one) for one in column.to_pylist()], pa.string())
        return plain(column.storage)
    if pa.types.is_dictionary(kind):
        return plain(column.dictionary_decode())
    if pa.types.is_unsigned_integer(kind) and kind.bit_width == 64:
        top = pc.max(column).as_py()
        return column.cast(pa.int64() if top is None or top < 1 << 63 else pa.string())
    if pa.types.is_integer(kind):
        return column.cast(pa.int32() if kind.bit_width < 32 else pa.int64() if kind == pa.uint32() else kind)
    if pa.types.is_decimal(kind):
        return _decimal(column)
    if pa.types.is_float16(kind):
        return column.cast(pa.float32())
    if pa.types.is_large_string(kind) or kind == pa.string_view():
        return column.cast(pa.string())
    if pa.types.is_large_binary(kind) or pa.types.is_fixed_size_binary(kind) or kind == pa.binary_view():
        return column.cast(pa.binary())
    if pa.types.is_null(kind):
        return column.cast(pa.string())
    if pa.types.is_duration(kind):
        return column.cast(pa.duration("ms"), safe=False).cast(pa.int64())
    if kind == pa.time64("ns"):
        return column.cast(pa.string())  # Python's have microseconds
    if pa.types.is_time(kind):
        return pa.array([None if one is None else one.isoformat() for one in column.to_pylist()], pa.string())
    if any(is_one(kind) for is_one in LISTS):
        return _list(column)
    return column


def is_plain(kind: pa.DataType) -> bool:
    """True for a type that logs have, times included."""
    if pa.types.is_list(kind):
        item = kind.value_type
        return is_plain(item) and not (
            pa.types.is_nested(item) or pa.types.is_temporal(item) or item == pa.binary()
        )
    plain = (pa.bool_(), pa.int32(), pa.int64(), pa.float32(), pa.float64(), pa.string(), pa.binary())
    return kind in plain or pa.types.is_timestamp(kind) or pa.types.is_date(kind)


def _decimal(column: pa.Array) -> pa.Array:
    kind = column.type
    if kind.precision <= EXACT_DIGITS and kind.scale > 0:
        return column.cast(pa.float64())
    if kind.scale == 0 and kind.precision <= 18:
        return column.cast(pa.int64())
    return pa.array([None if one is None else format(one, "f") for one in column.to_pylist()], pa.string())


def _list(column: pa.Array) -> pa.Array:
    """List with plain items."""
    kind = column.type
    if not pa.types.is_list(kind):
        column = column.cast(pa.list_(kind.value_type))
    items = plain(column.flatten())
    lengths = pc.fill_null(pc.list_value_length(column), 0).to_numpy(zero_copy_only=False)
    offsets = np.concatenate(([0], np.cumsum(lengths))).astype(np.int32)
    missing = column.is_null() if column.null_count else None
    return pa.ListArray.from_arrays(pa.array(offsets), items, mask=missing)


def _flat(batch: pa.RecordBatch, account: Account) -> pa.RecordBatch:
    """Rows whose structs are columns of their own."""
    names, paths, columns = list(batch.schema.names), list(batch.schema.names), batch.columns
    while any(pa.types.is_struct(column.type) for column in columns):
        inner: list[tuple[str, str, pa.Array]] = []
        for name, path, column in zip(names, paths, columns, strict=True):
            if pa.types.is_struct(column.type):
                fields = [column.type.field(place).name for place in range(column.type.num_fields)]
                inner += [
                    (f"{name}_{field}", f"{path}{INSIDE}{field}", values)
                    for field, values in zip(fields, column.flatten(), strict=True)
                ]
            else:
                inner.append((name, path, column))
        names, paths, columns = (list(some) for some in zip(*inner, strict=True))
    for name, path in zip(names, paths, strict=True):
        try:
            one_column(account.paths, name, path)
        except ValueError as error:
            raise ConfigError(f"{account.path}: {error}") from None
    check_names(names, account.path)
    return pa.RecordBatch.from_arrays(columns, names)


def _of_utf8(rows: Rows, account: Account) -> Iterator[Rows]:
    """Rows whose texts are UTF-8, which Parquet promises and does not check; the others are set aside."""
    wrong = np.zeros(rows.batch.num_rows, np.bool_)
    for name, column in zip(rows.batch.schema.names, rows.batch.columns, strict=True):
        try:
            column.validate(full=True)
        except pa.ArrowInvalid:
            for number in np.flatnonzero(~wrong).tolist():
                try:
                    column[number].as_py()
                except UnicodeDecodeError as error:
                    wrong[number] = True
                    what = f"column {name!r}: {not_utf8(error.object)}"
                    text = error.object.decode(errors="backslashreplace")
                    account.set_aside(int(rows.places[number]), f"{name} encoding", what, text)
    if not wrong.any():
        yield rows
    elif not wrong.all():
        yield Rows(rows.batch.filter(pa.array(~wrong)), rows.places[~wrong])
