"""Impressions and clicks in logs of their own: what joins them, when clicks come, and how both are keyed."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass, replace
from itertools import combinations
from typing import TypeAlias

import numpy as np
import numpy.typing as npt
import pyarrow as pa
import pyarrow.compute as pc

from livectr.guess.columns import LEFT_OUT, Use, listed
from livectr.guess.facts import Facts, guess
from livectr.guess.made import date_time
from livectr.guess.raw import RawLog
from livectr.guess.roles import REQUEST_NAME, ROW_ORDER, UNIQUE, Wanted, need, time_of
from livectr.ingest.language.streams import CLOCK_SLACK_MS
from livectr.logs.names import names_something
from livectr.logs.times import TimeForm, epoch_ms
from livectr.system.errors import ConfigError

LEAST_MATCHED = 0.01
"""Share of clicks with an impression from which columns join the logs by a guess."""
KEYED = 0.99
"""Share of messages whose key is a column's value, from which the topic is keyed by it."""
MOST_SLACK_S = 30
"""Time before its impression from which a click is of another clock or column, and not measured."""
APART = 0.01
"""Share of clicks in another partition than their impression above which a join would lose too many."""
LATE_TAIL = 10
"""p99.9 by p99 above which the window is that of p99: few clicks would hold up all examples."""
SEPARATOR = "\x1f"
MINUTE, HOUR, DAY = 60, 3600, 86_400
NICE_S = (
    *(1, 2, 5, 10, 15, 20, 30, MINUTE, 2 * MINUTE, 3 * MINUTE, 5 * MINUTE, 10 * MINUTE, 15 * MINUTE),
    *(30 * MINUTE, HOUR, 2 * HOUR, 3 * HOUR, 6 * HOUR, 12 * HOUR, DAY, 2 * DAY, 3 * DAY, 7 * DAY, 30 * DAY),
)
"""Durations that a person would write."""

Text: TypeAlias = pa.Array | pa.ChunkedArray
I64 = npt.NDArray[np.int64]
F64 = npt.NDArray[np.float64]


@dataclass(frozen=True)
class Delays:
    """Delays of the sample's clicks behind their impressions, in milliseconds.

    Args:
        p50_ms, p90_ms, p99_ms, p999_ms: quantiles of each impression's first click.
        early: clicks that come before their impression.
        early_ms: time by which 99 of 100 of these do.
        matched: clicks with an impression.
        unmatched: clicks without one in the time that the sample of impressions covers; None: unknown.
    """

    p50_ms: int
    p90_ms: int
    p99_ms: int
    p999_ms: int
    early: int
    early_ms: int
    matched: int
    unmatched: int | None

    @property
    def window_s(self) -> int:
        """Window of the label join: nearly all clicks come within it."""
        far = self.p999_ms if self.p999_ms <= LATE_TAIL * self.p99_ms else self.p99_ms
        return nice_s(1.05 * far)

    @property
    def wait_s(self) -> int | None:
        """Wait with `delayed="fnw"`, in which most clicks come; None: no shorter than the window."""
        found = nice_s(self.p90_ms)
        return found if found < self.window_s else None

    @property
    def slack_s(self) -> int | None:
        """Clock slack of the label join; None: that of every join is enough."""
        return nice_s(self.early_ms) if self.early_ms > CLOCK_SLACK_MS else None

    @property
    def words(self) -> str:
        """For a person."""
        p50, p99, p999 = (seconds(ms) for ms in (self.p50_ms, self.p99_ms, self.p999_ms))
        measured = f"{self.matched:,} clicks were measured"
        return f"clicks come after {p50} (p50), {p99} (p99), {p999} (p99.9); {measured}"


@dataclass(frozen=True)
class Pair:
    """Guesses about impressions and clicks in logs of their own.

    Args:
        shown: impressions.
        clicked: clicks; only what the join needs is kept.
        on: columns that name an impression in both.
        delays: of the clicks.
        remarks: what a user should know, in sentences.
    """

    shown: Facts
    clicked: Facts
    on: tuple[str, ...]
    delays: Delays
    remarks: list[str]


@dataclass(frozen=True)
class _Met:
    """m clicks that have an impression in the sample.

    Args:
        shown: int64[m], row of the impression.
        clicked: int64[m], row of the click.
    """

    shown: I64
    clicked: I64


def pair_of(
    shown: RawLog, clicked: RawLog, wanted: Wanted, on: Sequence[str], click_time: str | None
) -> Pair:
    """Guess what joins impressions and clicks, and the use of every column.

    Args:
        shown: sample of the impressions.
        clicked: sample of the clicks.
        wanted: columns of the impressions that the user named.
        on: columns that the user named; () to guess.
        click_time: time of the clicks; None: as that of the impressions, or guessed.

    Raises:
        ConfigError: the logs cannot be joined, or lie apart.
    """
    if ROW_ORDER in (wanted.time, click_time):
        raise ConfigError("clicks are joined by time: name the column of times in place of row.")
    shown, clicked = _with_date_time(shown, wanted.time), _with_date_time(clicked, click_time)
    shown_time, shown_form = _time(shown, wanted, "--time")
    said = click_time or (shown_time if shown_time in clicked.table.column_names else None)
    clicked_time, clicked_form = _time(clicked, Wanted("", time=said), "--click-time")
    on = _on(shown, clicked, on, {shown_time, clicked_time})
    shown, clicked = _alike(shown, clicked, on)
    met = _meet(shown, clicked, on)
    _check_partitions(shown, clicked, met, on)
    key = _key_of_topics(shown, clicked)
    delays = _delays(
        shown,
        _ms(shown.table.column(shown_time), shown_form),
        _ms(clicked.table.column(clicked_time), clicked_form),
        met,
    )
    facts = _shown_facts(shown, clicked, replace(wanted, time=shown_time), met, on)
    uses = {name: facts.uses[name] for name in shown.table.column_names}
    if key is None:
        both = len(facts.user) == 1 and facts.user[0] in clicked.table.column_names
        key = facts.user[0] if both else on[0]
    for name in (*on, key):
        if uses[name].role in (LEFT_OUT, "number", "words", "list"):
            uses[name] = _join_use(shown, clicked, name)
    fills = {name: value for name, value in facts.fills.items() if name not in on and name in uses}
    facts = replace(facts, uses=uses, key=key, fills=fills)
    clicks = _click_facts(clicked, facts, on, clicked_time, clicked_form)
    return Pair(facts, clicks, tuple(on), delays, _remarks(facts, delays, on))


def _shown_facts(shown: RawLog, clicked: RawLog, wanted: Wanted, met: _Met, on: Sequence[str]) -> Facts:
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
    if delays.early:
        remarks.append(
            f"{delays.early:,} of {delays.matched:,} clicks come before their impression, by up to "
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


def nice_s(ms: float) -> int:
    """The least duration that a person would write, from `ms` on, in seconds."""
    return next((one for one in NICE_S if 1000 * one >= ms), -(-int(ms) // (1000 * DAY)) * DAY)


def written(duration_s: int) -> str:
    """Duration as `label_join` takes it: 90 is "90s", 120 is "2m"."""
    for size, unit in ((DAY, "d"), (HOUR, "h"), (MINUTE, "m")):
        if duration_s % size == 0:
            return f"{duration_s // size}{unit}"
    return f"{duration_s}s"


def seconds(ms: float) -> str:
    """Duration for a person."""
    if ms < 1000:
        return f"{ms:.0f} ms"
    for size, unit in ((DAY, "d"), (HOUR, "h"), (MINUTE, "min")):
        if ms >= 2000 * size:
            return f"{ms / 1000 / size:.1f} {unit}"
    return f"{ms / 1000:.1f} s"


def _with_date_time(log: RawLog, said: str | None) -> RawLog:
    """A file's log whose date and time of day are one column."""
    both = date_time(log.table, said, ()) if log.brokers is None else None
    return log if both is None else replace(log, sample=log.sample.with_made(both))


def _time(log: RawLog, wanted: Wanted, flag: str) -> tuple[str, TimeForm]:
    """Column and form of a log's times."""
    name = log.sample.name
    if log.sample.made:
        wanted = replace(wanted, time=log.sample.made[-1].name)
    try:
        timed = time_of(log.table, wanted)
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


def _on(shown: RawLog, clicked: RawLog, said: Sequence[str], times: set[str]) -> tuple[str, ...]:
    """Columns that name an impression in both logs."""
    for name in said:
        for log in (shown, clicked):
            need(name, log.table.column_names, f"--on, {log.sample.name}")
            _need_id(log, name)
    if said:
        return tuple(said)
    common = [
        name
        for name in shown.table.column_names
        if name in clicked.table.column_names
        and name not in times
        and _is_id(shown.table.column(name).type)
        and _is_id(clicked.table.column(name).type)
    ]
    for count in (1, 2, 3):
        found: dict[tuple[str, ...], float] = {}
        for names in combinations(common, count):
            keys = _joined(shown.table, names)
            if pc.count_distinct(keys).as_py() < UNIQUE * len(keys):
                continue
            others = _joined(clicked.table, names)
            found[names] = float(
                pc.mean(pc.is_in(others, value_set=_array(keys), skip_nulls=True).cast(pa.float64())).as_py()
            )
        best = max(found, key=lambda names: found[names], default=None)
        if best is not None and found[best] >= LEAST_MATCHED:
            return best
    raise ConfigError(
        f"no columns of both {shown.sample.name} and {clicked.sample.name} name an impression "
        f"(both have {listed(common) or 'no column'}); say --on COLUMN, which both write alike, or "
        "--on A,B for columns that name it together."
    )


def _is_id(kind: pa.DataType) -> bool:
    return bool(pa.types.is_integer(kind) or pa.types.is_string(kind))


def _need_id(log: RawLog, name: str) -> None:
    kind = log.table.column(name).type
    if not _is_id(kind):
        raise ConfigError(
            f"--on: {log.sample.name}.{name} holds {kind}; name a column of texts or whole numbers."
        )


def _alike(shown: RawLog, clicked: RawLog, on: Sequence[str]) -> tuple[RawLog, RawLog]:
    """Logs whose common columns have the same types; those of topics must."""
    unlike = [
        name
        for name in shown.table.column_names
        if name in clicked.table.column_names
        and shown.table.column(name).type != clicked.table.column(name).type
        and _is_id(shown.table.column(name).type)
        and _is_id(clicked.table.column(name).type)
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


def _array(values: Text) -> pa.Array:
    return values.combine_chunks() if isinstance(values, pa.ChunkedArray) else values


def _joined(table: pa.Table, names: Sequence[str]) -> pa.ChunkedArray:
    """Values of columns as texts, null where one is empty."""
    texts = [table.column(name).cast(pa.string()) for name in names]
    whole = texts[0] if len(texts) == 1 else pc.binary_join_element_wise(*texts, SEPARATOR)
    return whole if isinstance(whole, pa.ChunkedArray) else pa.chunked_array([whole])


def _ms(values: pa.ChunkedArray, form: TimeForm) -> npt.NDArray[np.float64]:
    """Times in milliseconds; NaN where there is none."""
    found = epoch_ms(_array(values), form)
    return np.asarray(pc.fill_null(found.cast(pa.float64()), np.nan).to_numpy(zero_copy_only=False))


def _join_use(shown: RawLog, clicked: RawLog, name: str) -> Use:
    distinct = pc.count_distinct(shown.table.column(name)).as_py()
    why = f"names the impression, as in {clicked.sample.name}: {distinct:,} different"
    return Use("join", facts_type(shown.table, name), why)


def _meet(shown: RawLog, clicked: RawLog, on: Sequence[str]) -> _Met:
    """Clicks and their impressions. Raises ConfigError if there are none."""
    names, keys = _joined(shown.table, on), _joined(clicked.table, on)
    places = _array(pc.index_in(keys, value_set=_array(names), skip_nulls=True))
    found = np.flatnonzero(places.is_valid().to_numpy(zero_copy_only=False))
    if not len(found):
        raise ConfigError(
            f"none of {len(keys):,} clicks of {clicked.sample.name} has an impression among {len(names):,} "
            f"of {shown.sample.name} by {', '.join(on)}; say --on COLUMN that both write alike, or give logs "
            "of the same time."
        )
    return _Met(np.asarray(places.drop_null().to_numpy(zero_copy_only=False), np.int64), found)


def _check_partitions(shown: RawLog, clicked: RawLog, met: _Met, on: Sequence[str]) -> None:
    """Raise ConfigError for topics in which clicks do not meet their impressions."""
    if shown.partitions != clicked.partitions:
        raise ConfigError(
            f"{shown.sample.name} has {shown.partitions} partitions, {clicked.sample.name} "
            f"{clicked.partitions}: a click must be in the partition of its impression; write one of them "
            "again with as many."
        )
    apart = float((shown.partition[met.shown] != clicked.partition[met.clicked]).mean())
    if apart > APART:
        said = "; ".join(
            f"{log.sample.name} is keyed by {_keyed_by(log) or 'no column of it'}" for log in (shown, clicked)
        )
        raise ConfigError(
            f"{apart:.0%} of the clicks are in another partition than their impression (joined on "
            f"{', '.join(on)}): {said}; write both topics with the same message key."
        )


def _keyed_by(log: RawLog) -> str | None:
    """Column whose values are the message keys; of several, the one that is named like an id."""
    if log.keys is None or log.keys.null_count > (1 - KEYED) * len(log.keys):
        return None
    found = []
    for name in log.table.column_names:
        if _is_id(log.table.column(name).type):
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


def _delays(shown: RawLog, shown_ms: F64, clicked_ms: F64, met: _Met) -> Delays:
    """Delays of the clicks.

    Args:
        shown: impressions.
        shown_ms: float64[n], times of the impressions; NaN where there is none.
        clicked_ms: float64[c], times of the clicks.
        met: clicks with their impressions.

    Raises:
        ConfigError: all clicks come before their impressions.
    """
    late = clicked_ms[met.clicked] - shown_ms[met.shown]
    timed = np.isfinite(late)
    early, behind = timed & (late < 0), timed & (late >= -1000 * MOST_SLACK_S)
    if not behind.any():
        least = seconds(-float(late[early].max(initial=-np.inf))) if early.any() else "no known time"
        raise ConfigError(
            f"all {len(late):,} clicks come before their impressions, by {least} and more; are these the "
            "right columns of times, and their units?"
        )
    of, after = met.shown[behind], np.maximum(late[behind], 0)
    order = np.lexsort((after, of))
    _, first = np.unique(of[order], return_index=True)
    ends = np.ceil(np.quantile(after[order][first], (0.5, 0.9, 0.99, 0.999))).astype(int).tolist()
    unmatched = None
    if shown.sample.whole:
        unmatched = len(clicked_ms) - len(met.clicked)
    elif shown.brokers is None and (np.diff(shown_ms[np.isfinite(shown_ms)]) >= 0).all():
        inside = (clicked_ms >= np.nanmin(shown_ms)) & (clicked_ms <= np.nanmax(shown_ms))
        unmatched = int(inside.sum()) - int(inside[met.clicked].sum())
    return Delays(
        p50_ms=ends[0],
        p90_ms=ends[1],
        p99_ms=ends[2],
        p999_ms=ends[3],
        early=int(early.sum()),
        early_ms=int(np.quantile(-late[early & behind], 0.99)) if (early & behind).any() else 0,
        matched=int(behind.sum()),
        unmatched=unmatched,
    )
