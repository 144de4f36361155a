"""Impressions and clicks in logs of their own: what joins them, when clicks come, and how both are keyed."""

from __future__ import annotations

import json
import re
from collections.abc import Sequence
from dataclasses import dataclass, replace

import numpy as np
import numpy.typing as npt
import pyarrow as pa
import pyarrow.compute as pc

from livectr.guess.columns import LEFT_OUT, Use, shortened
from livectr.guess.delays import MOST_SLACK_S, Delays, delays_of, milliseconds_of, seconds, written
from livectr.guess.facts import Facts, guess
from livectr.guess.join_columns import Met, alike, join_columns, meet, whole_numbers
from livectr.guess.join_keys import is_id, together, whole
from livectr.guess.made import date_time
from livectr.guess.mismatches import check_written_alike
from livectr.guess.raw import RawLog
from livectr.guess.roles import ROW_ORDER, Wanted, labels, time_of
from livectr.ingest.language.streams import CLOCK_SLACK_MS
from livectr.logs.names import REQUEST_NAME, names_something
from livectr.logs.times import TimeForm, check_digits
from livectr.logs.values import Form
from livectr.system.errors import ConfigError

KEYED = 0.99
"""Share of messages whose key is a column's value, from which the topic is keyed by it."""
SAID = re.compile(r"(is_?)?click(ed)?|label", re.I)
"""Columns of a log of clicks that say which of its rows are."""
EVENT = re.compile(r"(^|_)(event|action|activity|type|kind)(_?(name|type|kind))?$", re.I)
"""Columns of a log that name the event of each row."""
CLICK, NO_CLICK = re.compile("click", re.I), re.compile(r"(no|non|not|un)[ _-]?click", re.I)
MOST_EVENTS = 50
APART = 0.01
"""Share of clicks in another partition than their impression above which a join would lose too many."""


@dataclass(frozen=True)
class Pair:
    """Guesses about impressions and clicks in logs of their own.

    Args:
        shown: impressions.
        clicked: clicks; only what the join needs is kept.
        on: columns that name an impression in both.
        delays: of the clicks.
        remarks: what a user should know, in sentences.
        labels: other events that follow an impression, such as orders, with what joins them.
    """

    shown: Facts
    clicked: Facts
    on: tuple[str, ...]
    delays: Delays
    remarks: list[str]
    labels: tuple[Pair, ...] = ()


def pair_of(
    shown: RawLog,
    clicked: RawLog,
    wanted: Wanted,
    on: Sequence[str],
    click_time: str | None,
    *,
    of_clicks: bool = True,
) -> Pair:
    """Guess what joins impressions and clicks, and the use of every column.

    Args:
        shown: sample of the impressions.
        clicked: sample of the clicks.
        wanted: columns of the impressions that the user named.
        on: columns that the user named; () to guess.
        click_time: time of the clicks; None: as that of the impressions, or guessed.
        of_clicks: False for other events, such as orders.

    Raises:
        ConfigError: the logs cannot be joined, or lie apart.
    """
    if ROW_ORDER in (wanted.time, click_time):
        raise ConfigError("clicks are joined by time: name the column of times in place of row.")
    shown, clicked = with_date_time(shown, wanted.time), with_date_time(clicked, click_time)
    shown_time, shown_form = time_column(shown, wanted, "--time")
    said = click_time or (shown_time if shown_time in clicked.table.column_names else None)
    clicked_time, clicked_form = time_column(clicked, Wanted("", time=said), "--click-time")
    clicked, said_by, not_clicked = _clicks_alone(clicked, by_event=of_clicks)
    rows, times = shown.table.num_rows, {shown_time, clicked_time}
    shown, clicked = whole_numbers(shown.without_repeats(), clicked, on, times)
    on = join_columns(shown, clicked, on, times)
    shown, clicked = alike(shown, clicked, on)
    check_written_alike(shown, clicked, on)
    met = meet(shown, clicked, on)
    _check_partitions(shown, clicked, met, on)
    key = _key_of_topics(shown, clicked)
    delays = delays_of(
        shown,
        milliseconds_of(shown.table.column(shown_time), shown_form),
        milliseconds_of(clicked.table.column(clicked_time), clicked_form),
        met,
    )
    facts = _shown_facts(shown, clicked, replace(wanted, time=shown_time), met, on)
    uses = {name: facts.uses[name] for name in shown.table.column_names}
    remarks = _rows_remarks(shown, on, rows)
    if key is None:
        key, other = _key_of_logs(shown, clicked, met, facts, on)
        remarks += other
    for name in (*on, key):
        if uses[name].role in (LEFT_OUT, "number", "words", "list"):
            uses[name] = _join_use(shown, clicked, name)
    fills = {name: value for name, value in facts.fills.items() if name not in on and name in uses}
    facts = replace(facts, uses=uses, key=key, fills=fills)
    clicks = _click_facts(clicked, facts, on, clicked_time, clicked_form)
    if said_by is not None:
        uses = clicks.uses | {said_by.name: Use("id", said_by.dtype, "says which rows are clicks")}
        fills = clicks.fills | ({} if said_by.fill is None else {said_by.name: said_by.fill})
        clicks = replace(clicks, uses=uses, where=said_by.where, fills=fills)
    return Pair(facts, clicks, tuple(on), delays, [*not_clicked, *remarks, *_remarks(facts, delays, on)])


def label_of(shown: RawLog, events: RawLog, wanted: Wanted, pair: Pair) -> Pair:
    """Guess the delays of events beside the click, such as orders, which join impressions as the clicks do.

    Args:
        shown: sample of the impressions.
        events: sample of the events.
        wanted: columns of the impressions that the user named.
        pair: impressions and clicks.

    Raises:
        ConfigError: the events cannot be joined with the impressions as the clicks are.
    """
    name, key = events.sample.name, pair.shown.key
    if missing := [column for column in (*pair.on, key) if column not in events.table.column_names]:
        raise ConfigError(
            f"{name} has no column {missing[0]!r}, by which impressions and clicks are "
            f"{'joined' if missing[0] in pair.on else 'keyed'}; write it with each of its rows."
        )
    found = pair_of(shown, events, wanted, pair.on, None, of_clicks=False)
    if found.shown.key != key:
        raise ConfigError(
            f"{name} would be keyed by {found.shown.key}, impressions and clicks are keyed by {key}: write "
            f"the impression's {key} with each of its rows."
        )
    ours, theirs = (
        {column: facts.uses[column].dtype for column in (*pair.on, key)}
        for facts in (pair.clicked, found.clicked)
    )
    if unlike := [column for column in ours if ours[column] != theirs[column]]:
        raise ConfigError(f"{unlike[0]} is written otherwise in {name} than in clicks; write it alike.")
    return found


@dataclass(frozen=True)
class Said:
    """Column of a log of clicks that says which of its rows are.

    Args:
        name: of the column.
        dtype: in the log.
        where: condition on a stream s.
        fill: for rows without a value, which are no clicks; None: each has one.
    """

    name: str
    dtype: str
    where: str
    fill: bool | int | str | None


def _clicks_alone(clicked: RawLog, *, by_event: bool) -> tuple[RawLog, Said | None, list[str]]:
    """The log without rows that are no clicks; the column that says so; a remark."""
    for name in clicked.table.column_names:
        column, said = clicked.table.column(name), SAID.fullmatch(name) is not None
        chosen = (
            _said_by(column, name) if said else _events(column) if by_event and EVENT.search(name) else None
        )
        if chosen is None or chosen.all() or not chosen.any():
            continue
        yes = column.filter(pa.array(chosen)).unique().to_pylist()
        if len(yes) > 1:
            raise ConfigError(
                f"{clicked.sample.name} says in several ways by {name} which rows are clicks "
                f"({', '.join(map(shortened, yes))}); write a column of 1 for a click and 0 for none."
            )
        remark = (
            f"{np.count_nonzero(~chosen):,} of {len(chosen):,} rows of {clicked.sample.name} have "
            f"{'no' if said else 'another'} {name}{'' if said else f' than {shortened(yes[0])}'}, and are no "
            "clicks"
        )
        dtype = "bool" if pa.types.is_boolean(column.type) else facts_type(clicked.table, name)
        where = f"s[{json.dumps(name)}]" + ("" if dtype == "bool" else f" == {json.dumps(yes[0])}")
        nothing: dict[str, bool | int | str] = {"bool": False, "int64": 0, "string": ""}
        fill = nothing[dtype] if column.null_count else None
        return clicked.rows(chosen), Said(name, dtype, where, fill), [remark]
    return clicked, None, []


def _said_by(column: pa.ChunkedArray, name: str) -> npt.NDArray[np.bool_] | None:
    """bool[n], rows of which a column of 0 and 1, or no and yes, says that they are clicks; None: another."""
    if not (is_id(column.type) or pa.types.is_boolean(column.type)):
        return None
    numbers, odd = labels(column, name)
    return None if odd is not None else np.asarray(pc.fill_null(numbers, 0).to_numpy() > 0)


def _events(column: pa.ChunkedArray) -> npt.NDArray[np.bool_] | None:
    """bool[n], rows of a log of several events that are clicks by name; None: the column names none."""
    if not pa.types.is_string(column.type) or pc.count_distinct(column).as_py() > MOST_EVENTS:
        return None
    named = [
        one for one in column.unique().to_pylist() if one and CLICK.search(one) and not NO_CLICK.search(one)
    ]
    return np.asarray(pc.is_in(column, pa.array(named, pa.string())).to_numpy(), np.bool_)


def _shown_facts(shown: RawLog, clicked: RawLog, wanted: Wanted, met: Met, on: Sequence[str]) -> Facts:
    """Guesses about the impressions, of which those that were clicked are known."""
    label = np.zeros(shown.table.num_rows, np.bool_)
    label[met.shown] = True
    if label.all():
        raise ConfigError(
            f"each of {len(label):,} impressions of {shown.sample.name} has a click, so there is nothing to "
            "learn; give a log of all that was shown."
        )
    known = {name: Use(LEFT_OUT, "", why) for name, why in shown.left_out.items()}
    for made in shown.sample.made:
        known |= {name: Use(LEFT_OUT, "", f"is in {made.name}") for name in made.columns}
    requests = [name for name in on if len(on) == 1 or REQUEST_NAME.match(name)]
    known |= {name: _join_use(shown, clicked, name) for name in requests}
    return guess(shown.sample, wanted, label, known)


def _click_facts(
    clicked: RawLog, shown: Facts, on: Sequence[str], clicked_time: str, form: TimeForm
) -> Facts:
    """Clicks of which only what the join needs is kept."""
    uses = {
        name: Use(LEFT_OUT, "", "the join does not need it")
        for name in clicked.table.column_names
        if name not in (*on, shown.key, clicked_time)
    }
    for name in dict.fromkeys((*on, shown.key)):
        uses[name] = replace(shown.uses[name], role="join" if name in on else "user")
    uses[clicked_time] = Use("time", "int64", form.words)
    fills = {name: value for name, value in shown.fills.items() if name == shown.key}
    key = (shown.key,)
    return Facts(clicked.sample, 0, None, uses, shown.key, key, clicked_time, form, None, (), fills)


def _remarks(facts: Facts, delays: Delays, on: Sequence[str]) -> list[str]:
    remarks = []
    if facts.key not in facts.user:
        key = facts.key
        remarks.append(f"both logs are partitioned by {key}; GAUC is among the impressions of one {key}")
    if delays.are_shifted:
        remarks.append(
            f"nearly all clicks come {seconds(delays.p01_ms)} to {seconds(delays.p99_ms)} after their "
            "impression, and none soon: are the times of one log local, and not UTC?"
        )
    if delays.lost:
        remarks.append(
            f"{delays.lost:,} of {delays.matched + delays.lost:,} clicks come more than "
            f"{written(MOST_SLACK_S)} before their impression, and label nothing: are the times right?"
        )
    if near := delays.early - delays.lost:
        remarks.append(
            f"{near:,} of {delays.matched:,} clicks come before their impression, by up to "
            f"{seconds(delays.early_ms)}: the clocks of the two logs differ; clock_slack "
            f'"{written(delays.slack_s or CLOCK_SLACK_MS // 1000)}" joins them'
        )
    if delays.unmatched:
        share = delays.unmatched / (delays.unmatched + delays.matched)
        remarks.append(f"{share:.1%} of the clicks have no impression by {', '.join(on)}")
    return remarks


def facts_type(table: pa.Table, name: str) -> str:
    """Type of a column that names something."""
    return "int64" if pa.types.is_integer(table.column(name).type) else "string"


def with_date_time(log: RawLog, said: str | None) -> RawLog:
    """A file's log whose date and time of day are one column."""
    both = date_time(log.table, said, ()) if log.brokers is None else None
    return log if both is None else replace(log, sample=log.sample.with_made(both))


def time_column(log: RawLog, wanted: Wanted, flag: str) -> tuple[str, TimeForm]:
    """Column and form of a log's times."""
    name = log.sample.name
    if log.sample.made:
        wanted = replace(wanted, time=log.sample.made[-1].name)
    try:
        timed = time_of(log.table, wanted)
        if timed is not None:
            column = timed[0].name[0]
            check_digits(column, log.table.column(column), log.sample.forms.get(column, Form("")))
    except ConfigError as error:
        raise ConfigError(f"{name}: {error}".replace("--time", flag)) from None
    assert timed is not None
    chosen, form = timed
    if log.brokers is not None and form.kind != "number":
        raise ConfigError(
            f"topic {name}: the times of {chosen.name[0]} are {form.words.split(',')[0]}; a topic must hold "
            "whole numbers, epoch milliseconds or another unit."
        )
    return chosen.name[0], form


def _rows_remarks(shown: RawLog, on: Sequence[str], rows: int) -> list[str]:
    """Remarks about impressions that count once, or that no click names.

    Args:
        shown: impressions without repeats.
        on: columns that join the logs.
        rows: of the sample, with repeats.
    """
    name, remarks = shown.sample.name, []
    if repeated := rows - shown.table.num_rows:
        remarks.append(f"{repeated:,} of {rows:,} rows of {name} repeat another and count once")
    if empty := together(shown.table, on).null_count:
        remarks.append(
            f"{' or '.join(on)} is empty in {empty:,} of {shown.table.num_rows:,} rows of {name}: no click "
            "names these, and they are set aside"
        )
    return remarks


def _key_of_logs(
    shown: RawLog, clicked: RawLog, met: Met, facts: Facts, on: Sequence[str]
) -> tuple[str, list[str]]:
    """Column to key both logs by, and remarks: the user, unless clicks have another one."""
    user = facts.user[0] if len(facts.user) == 1 else ""
    if user not in clicked.table.column_names:
        return on[0], []
    differ, clicks = _differing(shown, clicked, met, user), len(met.clicked)
    remark = f"{differ:,} of {clicks:,} clicks have another {user} than their impression"
    remark += _such_users(shown, clicked, met, user)
    if differ > APART * clicks:
        return on[0], [remark]
    return user, [f"{remark}: they are in another partition, and may label nothing"] if differ else []


def _join_use(shown: RawLog, clicked: RawLog, name: str) -> Use:
    distinct = pc.count_distinct(shown.table.column(name)).as_py()
    why = f"names the impression, as in {clicked.sample.name}: {distinct:,} different"
    return Use("join", facts_type(shown.table, name), why)


def _check_partitions(shown: RawLog, clicked: RawLog, met: Met, on: Sequence[str]) -> None:
    """Raise ConfigError for topics in which clicks do not meet their impressions."""
    if shown.partitions != clicked.partitions:
        raise ConfigError(
            f"{shown.sample.name} has {shown.partitions} partitions, {clicked.sample.name} "
            f"{clicked.partitions}: a click must be in the partition of its impression; write one of them "
            "again with as many."
        )
    apart = float((shown.partition[met.shown] != clicked.partition[met.clicked]).mean())
    if apart > APART:
        first, second = (_keyed_by(log) for log in (shown, clicked))
        said = "; ".join(
            f"{log.sample.name} is keyed by {key or 'no column of it'}"
            for log, key in ((shown, first), (clicked, second))
        )
        cure = "write both topics with the same message key"
        if first is not None and first == second:
            said = f"both are keyed by {first}, but by different partitioners"
            cure = "write both topics with the same one"
            if 2 * _differing(shown, clicked, met, first) > apart * len(met.shown):
                said = f"both are keyed by {first}, but clicks have another {first} than their impression"
                cure = f"write both topics with a message key that they share, such as {on[0]}"
        raise ConfigError(
            f"{apart:.0%} of the clicks are in another partition than their impression (joined on "
            f"{', '.join(on)}): {said}; {cure}."
        )


def _differing(shown: RawLog, clicked: RawLog, met: Met, name: str) -> int:
    """Clicks with another value of a column than their impression."""
    return pc.sum(pc.not_equal(*_both(shown, clicked, met, name))).as_py() or 0


def _both(shown: RawLog, clicked: RawLog, met: Met, name: str) -> tuple[pa.Array, pa.Array]:
    """Values of a column in impressions and in their clicks; empty for null."""
    first, second = (
        pc.fill_null(whole(together(log.table, [name])).take(pa.array(rows)), "")
        for log, rows in ((shown, met.shown), (clicked, met.clicked))
    )
    return first, second


def _such_users(shown: RawLog, clicked: RawLog, met: Met, name: str) -> str:
    """Example of an impression and a click with another user each."""
    first, second = _both(shown, clicked, met, name)
    differ = pc.and_(pc.not_equal(first, second), pc.not_equal(second, ""))
    row = pc.index(differ, True).as_py()
    if row < 0:
        return ""
    ours, theirs = (shortened(values[row].as_py()) for values in (first, second))
    return f" ({ours!r} and {theirs!r}, for instance)"


def _keyed_by(log: RawLog) -> str | None:
    """Column whose values are the message keys; of several, the one that is named like an id."""
    if log.keys is None or log.keys.null_count > (1 - KEYED) * len(log.keys):
        return None
    found = []
    for name in log.table.column_names:
        if is_id(log.table.column(name).type):
            same = pc.equal(log.table.column(name).cast(pa.string()), log.keys)
            if (pc.sum(same.cast(pa.int64())).as_py() or 0) >= KEYED * len(log.keys):
                found.append(name)
    return max(found, key=names_something, default=None)


def _key_of_topics(shown: RawLog, clicked: RawLog) -> str | None:
    """Column that keys both topics; None: files, or messages whose keys are no column."""
    keys = [_keyed_by(log) for log in (shown, clicked)]
    if None in keys or keys[0] == keys[1]:
        return keys[0] if keys[0] == keys[1] else None
    raise ConfigError(
        f"{shown.sample.name} is keyed by {keys[0]}, {clicked.sample.name} by {keys[1]}, so clicks would "
        "not meet their impressions; write both topics with the same message key."
    )
