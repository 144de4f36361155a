"""Rows whose values have their columns' types; the others are set aside, with the value that does not fit."""

from __future__ import annotations

from collections.abc import Collection, Mapping
from types import MappingProxyType

import numpy as np
import numpy.typing as npt
import pyarrow as pa

from livectr.logs.account import Account
from livectr.logs.csv_rows import Rows
from livectr.logs.values import misfits

LONGEST_TEXT = 10_000
"""Characters of a row that an account keeps."""


def fitting(
    rows: Rows,
    found: Mapping[str, pa.Array],
    types: Mapping[str, str],
    needed: Collection[str],
    account: Account,
    said: Mapping[str, str] = MappingProxyType({}),
) -> Rows:
    """Rows of the typed columns, without those that do not fit.

    Args:
        rows: n rows as they were read.
        found: column → its n values, typed; null where a value has no place in the type.
        types: column → what its values are, for the reason.
        needed: columns that may not be empty.
        account: receives the rows that do not fit.
        said: column that is made of another one → the other one, which the file has.
    """
    batch, fits = rows.batch, np.ones(rows.batch.num_rows, np.bool_)
    for name, array in found.items():
        if name not in batch.schema.names:
            if name in needed and array.null_count:
                wrong = np.asarray(array.is_null().to_numpy(zero_copy_only=False), np.bool_) & fits
                for number in np.flatnonzero(wrong).tolist():
                    what = f"there is no column {said.get(name, name)!r}"
                    account.set_aside(int(rows.places[number]), f"{name} lacks", what, _text(batch, number))
                fits &= ~wrong
            continue
        wrong = _wrong(batch.column(name), array, name in needed) & fits
        for number in np.flatnonzero(wrong).tolist():
            of = said.get(name, name)
            value = batch.column(of if of in batch.schema.names else name)[number].as_py()
            empty = value is None or value == ""
            shown = "empty" if empty else repr(value) if isinstance(value, str | bytes) else str(value)
            what = f"column {of!r} is {shown}, not {types[name]}"
            account.set_aside(int(rows.places[number]), f"{name} {empty}", what, _text(batch, number))
        fits &= ~wrong
    typed = pa.RecordBatch.from_arrays(list(found.values()), list(found))
    if fits.all():
        return Rows(typed, rows.places)
    return Rows(typed.filter(pa.array(fits)), rows.places[fits])


def _wrong(given: pa.Array, found: pa.Array, needed: bool) -> npt.NDArray[np.bool_]:
    """bool[n], values that have no place in their column: NaN is an empty one, infinity has none."""
    if needed:
        return np.asarray(found.is_null().to_numpy(zero_copy_only=False), np.bool_)
    wrong = misfits(given, found)
    if pa.types.is_floating(found.type):
        wrong |= np.isinf(found.to_numpy(zero_copy_only=False))
    return wrong


def _text(batch: pa.RecordBatch, number: int) -> str:
    row = batch.slice(number, 1).to_pylist()[0]
    return "\t".join("" if value is None else str(value) for value in row.values())[:LONGEST_TEXT]
