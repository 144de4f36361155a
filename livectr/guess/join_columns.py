"""Columns that name an impression in two raw logs, and the clicks that find theirs by them."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from itertools import combinations
from typing import TypeAlias

import numpy as np
import numpy.typing as npt
import pyarrow as pa
import pyarrow.compute as pc

from livectr.guess.columns import listed
from livectr.guess.made import Columns
from livectr.guess.raw import RawLog
from livectr.guess.roles import UNIQUE, need
from livectr.logs.names import names_something
from livectr.logs.values import Form, valued
from livectr.system.errors import ConfigError

LEAST_MATCHED = 0.01
"""Share of clicks with an impression from which columns join the logs by a guess."""
MOST_SHARED, MOSTLY = 1000, 0.5
"""Most impressions that share a request's name, and least share of clicks that have such a name."""
SEPARATOR = "\x1f"
Text: TypeAlias = pa.Array | pa.ChunkedArray
I64 = npt.NDArray[np.int64]


@dataclass(frozen=True)
class Met:
    """m clicks that have an impression in the sample.

    Args:
        shown: int64[m], row of the impression.
        clicked: int64[m], row of the click.
    """

    shown: I64
    clicked: I64


def join_columns(shown: RawLog, clicked: RawLog, said: Sequence[str], times: set[str]) -> tuple[str, ...]:
    """Columns that name an impression in both logs."""
    for name in said:
        for log in (shown, clicked):
            need(name, log.table.column_names, f"--on, {log.sample.name}")
            _need_id(log, name)
    common = [
        name
        for name in shown.table.column_names
        if name in clicked.table.column_names
        and name not in times
        and is_id(shown.table.column(name).type)
        and is_id(clicked.table.column(name).type)
    ]
    if said:
        if shared := _shared(shown, said):
            finer = next((name for name in common if not _shared(shown, [*said, name])), None)
            raise _too_coarse(shown, clicked, said, shared, finer)
        return tuple(said)
    for count in (1, 2, 3):
        found: dict[tuple[str, ...], float] = {}
        for names in combinations(common, count):
            if not _shared(shown, names):
                found[names] = _share_known(shown, clicked, names)
        best = max(found, key=lambda names: found[names], default=None)
        if best is not None and found[best] >= LEAST_MATCHED:
            return best
    for name in filter(names_something, common):
        shared = _shared(shown, [name])
        if 0 < shared <= MOST_SHARED and _share_known(shown, clicked, [name]) >= MOSTLY:
            raise _too_coarse(shown, clicked, [name], shared, None)
    raise ConfigError(
        f"no columns of both {shown.sample.name} and {clicked.sample.name} name an impression "
        f"(both have {listed(common) or 'no column'}); say --on COLUMN, which both write alike, or "
        "--on A,B for columns that name it together."
    )


def _share_known(shown: RawLog, clicked: RawLog, names: Sequence[str]) -> float:
    """Share of clicks whose values of columns an impression has."""
    keys, others = together(shown.table, names), together(clicked.table, names)
    known = pc.is_in(others, value_set=whole(keys), skip_nulls=True)
    return float(pc.mean(known.cast(pa.float64())).as_py())


def _shared(shown: RawLog, names: Sequence[str]) -> int:
    """Impressions that share their values of columns, on average; 0: nearly each has its own."""
    keys = together(shown.table, names)
    different = pc.count_distinct(keys).as_py()
    return 0 if different >= UNIQUE * len(keys) else max(2, round(len(keys) / max(1, different)))


def _too_coarse(
    shown: RawLog, clicked: RawLog, names: Sequence[str], shared: int, finer: str | None
) -> ConfigError:
    """Error for columns that name several impressions; finer: column with which they name one."""
    if finer is not None:
        cure = f"say --on {','.join([*names, finer])}"
    else:
        others = [
            name
            for name in shown.table.column_names
            if name not in clicked.table.column_names
            and names_something(name)
            and is_id(shown.table.column(name).type)
            and not _shared(shown, [*names, name])
        ]
        such = f", such as {others[0]}" if others else ""
        cure = f"{clicked.sample.name} lacks a column that tells them apart{such}: write it with each click"
    return ConfigError(
        f"{shared:,} impressions of {shown.sample.name} share each {' and '.join(names)}, so no click says "
        f"which it is of; {cure}."
    )


def alike(shown: RawLog, clicked: RawLog, on: Sequence[str]) -> tuple[RawLog, RawLog]:
    """Logs whose common columns have the same types; those of topics must."""
    unlike = [
        name
        for name in shown.table.column_names
        if name in clicked.table.column_names
        and shown.table.column(name).type != clicked.table.column(name).type
        and is_id(shown.table.column(name).type)
        and is_id(clicked.table.column(name).type)
        and (name in on or names_something(name))
    ]
    if shown.brokers is None:
        return shown.retyped(unlike), clicked.retyped(unlike)
    if wrong := [name for name in unlike if name in on]:
        kinds = " and ".join(
            f"{log.table.column(wrong[0]).type} in {log.sample.name}" for log in (shown, clicked)
        )
        raise ConfigError(f"{wrong[0]} is {kinds}; write it alike in both topics.")
    return shown, clicked


def meet(shown: RawLog, clicked: RawLog, on: Sequence[str]) -> Met:
    """Clicks and their impressions. Raises ConfigError if there are none."""
    names, keys = together(shown.table, on), together(clicked.table, on)
    places = whole(pc.index_in(keys, value_set=whole(names), skip_nulls=True))
    found = np.flatnonzero(places.is_valid().to_numpy(zero_copy_only=False))
    if not len(found):
        raise ConfigError(
            f"none of {len(keys):,} clicks of {clicked.sample.name} has an impression among {len(names):,} "
            f"of {shown.sample.name} by {', '.join(on)}; say --on COLUMN that both write alike, or give logs "
            "of the same time."
        )
    return Met(np.asarray(places.drop_null().to_numpy(zero_copy_only=False), np.int64), found)


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


def _need_id(log: RawLog, name: str) -> None:
    kind = log.table.column(name).type
    if not is_id(kind):
        raise ConfigError(
            f"--on: {log.sample.name}.{name} holds {kind}; name a column of texts or whole numbers."
        )


def whole(values: Text) -> pa.Array:
    """Values as one array."""
    return values.combine_chunks() if isinstance(values, pa.ChunkedArray) else values
