"""Keys and values of a dictionary, from Python or from a file."""

from __future__ import annotations

from collections.abc import Mapping
from pathlib import Path
from typing import Any

import numpy as np
import pyarrow as pa
import pyarrow.csv
import pyarrow.ipc
import pyarrow.parquet

from livectr.ingest.language import dtypes
from livectr.ingest.language.expr import Expr
from livectr.ingest.language.keys import key_of
from livectr.kernels.operators.dictionary import EqualKeysError, Places, place
from livectr.system.errors import ConfigError, reason_of

SUFFIXES = (".parquet", ".arrow", ".feather", ".ipc", ".csv")


def read_pairs(
    mapping: Mapping[Any, Any] | str | Path, where: str, dtype: str, key: str, value: str
) -> tuple[pa.Array, pa.Array]:
    """Read a dictionary: (keys, values) without nulls, at least one pair.

    Of a file only the two columns are read.

    Args:
        mapping: dict, or path of a file.
        where: start of error messages.
        dtype: type that the keys are compared with; a CSV file's keys have this type.
        key: name of the key column.
        value: name of the value column.

    Raises:
        ConfigError: the dictionary cannot be read.
    """
    if isinstance(mapping, Mapping):
        keys, values = (
            as_array(list(mapping), f"{where}: keys"),
            as_array(list(mapping.values()), f"{where}: values"),
        )
    elif isinstance(mapping, str | Path):
        keys, values = _read(Path(mapping), where, dtype, key, value)
    else:
        raise ConfigError(f"{where}: the mapping must be a dict or the path of a file, not {mapping!r}")
    if not len(keys):
        raise ConfigError(f"{where}: the mapping is empty")
    for array, name in ((keys, "key"), (values, "value")):
        if array.null_count:
            row = int(np.flatnonzero(array.is_null())[0])
            raise ConfigError(f"{where}: the {name} of row {row} is null; leave the row out or fill it")
    return keys, values


def key_places(keys: pa.Array, where: str, node: Expr) -> Places:
    """Slots of keys in the hash table of a dictionary for `node`'s values.

    Raises:
        ConfigError: the types differ, a key is repeated, or two strings have the same 64-bit key.
    """
    wanted = "strings" if dtypes.element(node.dtype) == "string" else "whole numbers"
    texts = keys.type in (pa.string(), pa.large_string(), pa.string_view())
    if not (texts if wanted == "strings" else pa.types.is_integer(keys.type)):
        raise ConfigError(
            f"{where}: the keys must be {wanted}, because {node} is {node.dtype}, not {keys.type}"
        )
    try:
        return place(key_of(keys))
    except EqualKeysError as equal:
        first, second = (keys[index].as_py() for index in (equal.first, equal.second))
        if first == second:
            raise ConfigError(f"{where}: the key {first!r} is there twice") from None
        raise ConfigError(
            f"{where}: {first!r} and {second!r} have the same 64-bit key; leave one out"
        ) from None


def as_array(values: Any, where: str) -> pa.Array:
    """Arrow array of Python values.

    Raises:
        ConfigError: the values have no common type.
    """
    try:
        array = pa.array(values)
    except (pa.ArrowException, OverflowError, TypeError, ValueError) as error:
        raise ConfigError(f"{where} do not have one type: {error}") from None
    return array.combine_chunks() if isinstance(array, pa.ChunkedArray) else array


def _read(path: Path, where: str, dtype: str, key: str, value: str) -> tuple[pa.Array, pa.Array]:
    if path.suffix not in SUFFIXES:
        raise ConfigError(f"{where}: {path} must end in {', '.join(SUFFIXES)}")
    try:
        if path.suffix == ".parquet":
            table = pa.parquet.read_table(path, columns=[key, value])
        elif path.suffix == ".csv":
            kind = pa.string() if dtypes.element(dtype) == "string" else pa.int64()
            options = pa.csv.ConvertOptions(include_columns=[key, value], column_types={key: kind})
            table = pa.csv.read_csv(path, convert_options=options)
        else:
            with pa.memory_map(str(path)) as file:
                table = pa.ipc.open_file(file).read_all()
        return tuple(_plain(table.column(name)) for name in (key, value))
    except FileNotFoundError:
        raise ConfigError(f"{where}: there is no file {path}") from None
    except KeyError:
        raise ConfigError(
            f"{where}: {path} has no columns {key!r} and {value!r}; name them by key= and value="
        ) from None
    except (pa.ArrowException, OSError) as error:
        raise ConfigError(f"{where}: {path} cannot be read: {reason_of(error)}") from None


def _plain(column: pa.ChunkedArray) -> pa.Array:
    if pa.types.is_dictionary(column.type):
        column = column.cast(column.type.value_type)
    array = column.combine_chunks()
    return pa.concat_arrays(array.chunks) if isinstance(array, pa.ChunkedArray) else array
