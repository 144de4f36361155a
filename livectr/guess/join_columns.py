"""Columns that name an impression in two raw logs, and the clicks that find theirs by them."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from itertools import combinations

import numpy as np
import numpy.typing as npt
import pyarrow as pa
import pyarrow.compute as pc

from livectr.guess.columns import listed, shortened
from livectr.guess.join_keys import SEPARATOR, is_id, together, whole
from livectr.guess.mismatches import check_kinds, check_written_alike, named_otherwise, repeats
from livectr.guess.raw import RawLog
from livectr.guess.roles import UNIQUE, need
from livectr.logs.names import names_something
from livectr.system.errors import ConfigError

LEAST_MATCHED = 0.01
"""Share of clicks with an impression from which columns join the logs by a guess."""
MOST_SHARED, MOSTLY = 1000, 0.5
"""Most impressions that share a request's name, and least share of clicks that have such a name."""
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
            if (why := repeats(shown, said, times, shared)) is not None:
                raise why
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
    for name in common:
        if not (shared := _shared(shown, [name])):
            check_written_alike(shown, clicked, [name])
        elif _share_known(shown, clicked, [name]) >= MOSTLY and (
            why := repeats(shown, [name], times, shared)
        ):
            raise why
    check_kinds(shown, clicked, times)
    alone = [
        [
            name
            for name in one.table.column_names
            if name not in other.table.column_names
            and name not in times
            and is_id(one.table.column(name).type)
        ]
        for one, other in ((shown, clicked), (clicked, shown))
    ]
    ours = [name for name in alone[0] if not _shared(shown, [name])]
    if (why := named_otherwise(shown, clicked, ours, alone[1])) is not None:
        raise why
    for name in filter(names_something, common):
        shared = _shared(shown, [name])
        if 0 < shared <= MOST_SHARED and _share_known(shown, clicked, [name]) >= MOSTLY:
            raise _too_coarse(shown, clicked, [name], shared, None)
    raise ConfigError(
        f"no columns of both {shown.sample.name} and {clicked.sample.name} name an impression "
        f"(both have {listed(common) or 'no column'}); say --on COLUMN, which both write alike, or "
        "--on A,B for columns that name it together."
    )


def whole_numbers(
    shown: RawLog, clicked: RawLog, said: Sequence[str], times: set[str]
) -> tuple[RawLog, RawLog]:
    """Logs in which columns that may join them are whole numbers, though one writes 17 as 17.0."""
    names = [name for name in shown.table.column_names if name in clicked.table.column_names]
    for name in names:
        ids = [is_id(log.table.column(name).type) for log in (shown, clicked)]
        if name in times or all(ids):
            continue
        first, second = shown.with_whole(name), clicked.with_whole(name)
        if all(is_id(log.table.column(name).type) for log in (first, second)) and (
            name in said or any(ids) or not _shared(first, [name])
        ):
            shown, clicked = first, second
    return shown, clicked


def _share_known(shown: RawLog, clicked: RawLog, names: Sequence[str]) -> float:
    """Share of clicks whose values of columns an impression has."""
    keys, others = together(shown.table, names), together(clicked.table, names)
    known = pc.is_in(others, value_set=whole(keys), skip_nulls=True)
    return float(pc.mean(known.cast(pa.float64())).as_py())


def _shared(shown: RawLog, names: Sequence[str]) -> int:
    """Impressions that share their values of columns, on average; 0: nearly each has its own."""
    keys = together(shown.table, names).drop_null()
    different = pc.count_distinct(keys).as_py()
    return 0 if different >= UNIQUE * len(keys) > 0 else max(2, round(len(keys) / max(1, different)))


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
            f"of {shown.sample.name} by {', '.join(on)}{_such(names, keys)}; say --on COLUMN that both write "
            "alike, or give logs of the same time."
        )
    return Met(np.asarray(places.drop_null().to_numpy(zero_copy_only=False), np.int64), found)


def _such(names: pa.ChunkedArray, keys: pa.ChunkedArray) -> str:
    """Example of the names of impressions, and of those of clicks."""
    found = [
        shortened(texts.drop_null()[0].as_py()) for texts in (names, keys) if texts.null_count < len(texts)
    ]
    return f" ({' and '.join(map(repr, found))}, for instance)".replace(SEPARATOR, ",") if found else ""


def _need_id(log: RawLog, name: str) -> None:
    kind = log.table.column(name).type
    if not is_id(kind):
        raise ConfigError(
            f"--on: {log.sample.name}.{name} holds {kind}; name a column of texts or whole numbers."
        )
