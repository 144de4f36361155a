"""Impressions whose label is that a file of clicks without times has them."""

from __future__ import annotations

import re
from collections.abc import Sequence
from dataclasses import replace
from pathlib import Path

import pyarrow as pa
import pyarrow.compute as pc

from livectr.guess.columns import Use
from livectr.guess.facts import Facts, guess, rate
from livectr.guess.join_columns import alike, join_columns, meet, whole_numbers
from livectr.guess.join_keys import is_id, together, whole
from livectr.guess.made import Columns, Made, free
from livectr.guess.mismatches import check_written_alike
from livectr.guess.pair import with_date_time
from livectr.guess.raw import RawLog
from livectr.guess.roles import UNIQUE, Wanted, labels, sample_labels, time_of
from livectr.logs.account import Account
from livectr.logs.files import log_rows
from livectr.logs.values import valued
from livectr.system.errors import ConfigError

CLICK_NAME = re.compile(r"click|label|target|convert", re.I)
"""Columns of clicks that say which rows are."""


def why_no_time(clicked: RawLog) -> str | None:
    """Words on a file of clicks whose times cannot be read; "": it has none; None: it has times."""
    if clicked.brokers is not None:
        return None
    log = with_date_time(clicked, None)
    try:
        return None if time_of(log.table, Wanted("")) is not None else ""
    except ConfigError as error:
        found = re.search(r"^no column is a time\. (.+?)\. (Write|Say) ", str(error))
        return found[1] if found else ""


def marked(
    shown: RawLog,
    clicked: RawLog,
    events: Path,
    clicks: Account,
    wanted: Wanted,
    on: Sequence[str],
    no_time: str = "",
) -> Facts:
    """Guesses about impressions of a file, whose label is that a file of clicks without times has them.

    Args:
        shown: sample of the impressions.
        clicked: sample of the clicks.
        events: file of the impressions.
        clicks: account of the file of clicks, which is read whole.
        wanted: columns of the impressions that the user named.
        on: columns that the user named; () to guess.
        no_time: words on times of the clicks that cannot be read.

    Raises:
        ConfigError: the files cannot be joined, or a guess fails.
    """
    shown, clicked = whole_numbers(shown, clicked, on, set())
    on = join_columns(shown, clicked, on, set())
    shown, clicked = alike(shown, clicked, on)
    check_written_alike(shown, clicked, on)
    meet(shown, clicked, on)
    found = list[pa.ChunkedArray]()
    yes = _said(clicked)
    if yes is not None:
        _check_rows(shown, clicked, events, clicks.path, on, yes)
    for rows in log_rows(clicks):
        clicks.kept += rows.batch.num_rows
        texts = together(rows.batch, on, clicked.sample.forms)
        if yes is not None:
            one = labels(valued(rows.batch.column(yes), clicked.sample.forms[yes]), yes)[0]
            texts = texts.filter(pc.equal(one, 1))
        found.append(texts)
    keys = pc.unique(pa.chunked_array([chunk for texts in found for chunk in texts.chunks], pa.string()))

    def of(rows: Columns) -> pa.Array | pa.ChunkedArray:
        texts = together(rows, on, shown.sample.forms)
        return pc.is_in(texts, value_set=keys, skip_nulls=True).cast(pa.int32())

    name = free("clicked", shown.table.column_names)
    why = f"1 where {clicked.sample.name} has {' and '.join(on)}"
    if shown.sample.whole:
        known = pc.is_in(keys, value_set=whole(together(shown.table, on)), skip_nulls=True)
        lost = len(keys) - (pc.sum(known).as_py() or 0)
        why += f", which for {lost:,} of its {len(keys):,} has no impression" if lost else ""
    why += f"; clicks are joined without times, since {no_time}" if no_time else ""
    made = Made(name, tuple(on), why, of)
    sample = shown.sample.with_made(made)
    label, _ = sample_labels(sample.table, Wanted(name))
    use = Use("label", "int32", f"{rate(label)}, {made.why}")
    return replace(guess(sample, wanted, label, {name: use}), label=name)


def _check_rows(
    shown: RawLog, clicked: RawLog, events: Path, clicks: Path, on: Sequence[str], yes: str
) -> None:
    """Raise ConfigError for a file that has several rows, clicked or not, for each row of the impressions."""
    keys = together(clicked.table, on)
    known = pc.is_in(keys, value_set=whole(together(shown.table, on)), skip_nulls=True)
    rows, different = pc.sum(known).as_py() or 0, pc.count_distinct(keys.filter(known)).as_py()
    if different >= UNIQUE * rows:
        return
    held = clicked.table.column_names
    twice = [name for name in shown.table.column_names if name not in on and name in held]
    drop = f".drop({twice!r})" if twice else ""
    command = (
        f"from pyarrow.csv import read_csv, write_csv as w; w(read_csv({str(clicks)!r})"
        f".join(read_csv({str(events)!r}){drop}, {list(on)!r}), 'joined.csv')"
    )
    cure = (
        f': python -c "{command}"' if clicks.suffix == events.suffix == ".csv" else ", in a file joined.csv"
    )
    raise ConfigError(
        f"{clicks} has {round(rows / different):,} rows for each {' and '.join(on)} of {shown.sample.name}, "
        f"clicked and not: its rows are the impressions. Give each the columns of its event{cure}; "
        f"then: livectr init --from joined.csv --label {yes}"
    )


def _said(clicked: RawLog) -> str | None:
    """Column of the clicks that says which rows are clicks; None: all are."""
    for name in clicked.table.column_names:
        column = clicked.table.column(name)
        if CLICK_NAME.search(name) and is_id(column.type):
            numbers, odd = labels(column, name)
            if odd is None and pc.min(numbers).as_py() == 0:
                return str(name)
    return None
