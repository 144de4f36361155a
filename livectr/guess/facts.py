"""All guesses about a log, from a sample of its first rows."""

from __future__ import annotations

import math
from collections.abc import Iterable, Mapping
from dataclasses import dataclass, field, replace
from pathlib import Path
from typing import Any

import numpy as np
import numpy.typing as npt
import pyarrow as pa
import pyarrow.compute as pc

from livectr.guess.columns import BINS, LEFT_OUT, Use, rounded, shortened, use_of
from livectr.guess.leaks import LEAST_CLICKS, first_rows
from livectr.guess.made import Made, date_time, free, label_rule
from livectr.guess.roles import Wanted, item_of, labels, need_label, of_item, sample_labels, time_of, user_of
from livectr.logs.account import Account
from livectr.logs.csv_rows import Rows
from livectr.logs.files import Progress, files_of, log_rows
from livectr.logs.names import names_something
from livectr.logs.times import TimeForm, check_digits, milliseconds, shown
from livectr.logs.values import STRAY, Form, form_of_column, in_type, missing, valued
from livectr.system.errors import ConfigError

SAMPLE_ROWS = 100_000
LEAST_OF_FILE = 1_000
"""Rows of each file of a folder that are looked at, at least; Parquet gives a batch."""
FILLS: Mapping[str, Any] = {"int64": -1, "string": "", "bool": False}
"""Values for nulls of ids, by type."""
NOBODY = "nobody"
"""User of rows without one, where users are texts."""
MANY_ROWS, OFTENER = 0.05, 5
"""Share of the rows of a user, and times as many rows as the next user has, from which it is doubted."""
ROW = "row"
"""Column that numbers the rows of a log without users, if no other column has this name."""
USER = "user"
"""Column of several that name a user together, if no other column has this name."""


@dataclass(frozen=True)
class Sample:
    """Rows of a log that are looked at.

    Args:
        name: of the file or topic.
        table: n rows, in their forms.
        forms: column → its form in the log.
        made: columns that are made of others.
        paths: column of a topic → "column.path.to.field" of the object that holds it.
        whole: the sample is all that the log has.
    """

    name: str
    table: pa.Table
    forms: dict[str, Form]
    made: tuple[Made, ...] = ()
    paths: Mapping[str, str] = field(default_factory=dict)
    whole: bool = False

    def with_made(self, made: Made) -> Sample:
        """The sample with one column more."""
        column = made.of(self.table)
        table = self.table.append_column(made.name, column)
        return replace(self, table=table, forms={**self.forms, made.name: Form("")}, made=(*self.made, made))


@dataclass(frozen=True)
class Facts:
    """Guesses about a log.

    Args:
        sample: rows that were looked at.
        clicks: of the sample.
        label: its column; None: clicks are in another log.
        uses: column → use, in the log's order; a user that is named by several columns is a column more.
        key: column that partitions the log: the user, or ROW where nobody is known.
        user: columns of the log that name the user; () where nobody is known.
        time: column of the event time; None: rows stay in their order.
        form: of the times.
        item: column that names what is shown.
        of_item: columns that belong to the item.
        fills: column → value for nulls.
        medians: column of numbers whose fill is below all of them → their median. Nulls have a bin.
        empty_is_no_click: the label is 1 or empty.
        repeated: rows that repeat an earlier one.
        where: condition of the rows that count, on a stream s; "" for all.
    """

    sample: Sample
    clicks: int
    label: str | None
    uses: dict[str, Use]
    key: str
    user: tuple[str, ...]
    time: str | None
    form: TimeForm | None
    item: str | None
    of_item: tuple[str, ...]
    fills: dict[str, Any]
    medians: dict[str, Any] = field(default_factory=dict)
    empty_is_no_click: bool = False
    repeated: int = 0
    where: str = ""

    @property
    def rows(self) -> int:
        """Rows of the sample."""
        return int(self.sample.table.num_rows)

    @property
    def kept(self) -> dict[str, Use]:
        """Columns of the log."""
        return {name: use for name, use in self.uses.items() if use.role != LEFT_OUT}

    @property
    def repeats(self) -> str:
        """Words for a sample with many rows that are there twice; "" for others."""
        if self.repeated <= STRAY * self.rows:
            return ""
        return (
            f"{self.repeated:,} of {self.rows:,} rows repeat an earlier one, and are learned again: was the "
            "log written twice, or does it lack a column that tells impressions apart?"
        )

    @property
    def few_clicks(self) -> str:
        """Words for a sample with too few clicks to find columns that tell the label; "" for others."""
        if min(self.clicks, self.rows - self.clicks) >= LEAST_CLICKS:
            return ""
        return (
            f"{self.clicks:,} clicks in {self.rows:,} rows are too few to judge whether a column is known "
            f"only after the click (it takes {LEAST_CLICKS} rows of each kind): look at the columns yourself."
        )


def look(path: Path, wanted: Wanted, progress: Progress = lambda done: None) -> Facts:
    """Guess from the first rows of a file with a label.

    Raises:
        ConfigError: the file cannot be read, or label, time or user cannot be guessed.
    """
    sample = read_sample(path, progress)
    need_label(sample.table, wanted.label, path.name)
    said = wanted.label
    if (rule := label_rule(said, sample.table.column_names, sample.forms)) is not None:
        sample, wanted = sample.with_made(rule), replace(wanted, label=rule.name)
        of_rule = sample.table.column(rule.columns[0])
        clicked, empty_is_no_click = sample_labels(sample.table, wanted, (said, of_rule))
    else:
        clicked, empty_is_no_click = sample_labels(sample.table, wanted)
    empty = ", empty is no click" if empty_is_no_click else ""
    made = f", {sample.made[0].why}" if sample.made else ""
    known = np.ones(len(clicked), np.bool_)
    if not empty_is_no_click:  # rows without a label are set aside
        known = np.asarray(labels(sample.table.column(wanted.label), wanted.label)[0].is_valid())
    uses = {wanted.label: Use("label", "int32", rate(clicked[known]) + empty + made)}
    for name in (name for made_column in sample.made for name in made_column.columns):
        uses[name] = Use(LEFT_OUT, "", "the label is made of it")
    facts = guess(sample, wanted, clicked, uses)
    return replace(facts, label=wanted.label, empty_is_no_click=empty_is_no_click)


def read_sample(path: Path, progress: Progress = lambda done: None) -> Sample:
    """The first rows of a file, or of each file of a folder.

    Raises:
        ConfigError: the file cannot be read, or has no row.
    """
    account = Account(path)
    files = len(files_of(account)) if path.is_dir() else 1
    most = max(LEAST_OF_FILE, SAMPLE_ROWS // files)
    read = joined(_first(log_rows(account, progress=progress, most=most)))
    if read is None:
        why = "; ".join(account.first) or "it holds none"
        raise ConfigError(f"no row of {path} can be read ({why}).")
    forms = {
        name: form_of_column(read.column(name), is_id=names_something(name)) for name in read.column_names
    }
    table = pa.table({name: valued(read.column(name), form) for name, form in forms.items()})
    return Sample(path.name, table, forms, whole=files == 1 and table.num_rows < SAMPLE_ROWS)


def guess(sample: Sample, wanted: Wanted, clicked: npt.NDArray[np.bool_], known: Mapping[str, Use]) -> Facts:
    """Guess the use of every column.

    Args:
        sample: of the log.
        wanted: columns that the user named.
        clicked: bool[n], the label.
        known: column → use, of those that have one already.

    Raises:
        ConfigError: time or user cannot be guessed.
    """
    uses = dict(known)
    if (both := date_time(sample.table, wanted.time, list(uses))) is not None:
        sample, wanted = sample.with_made(both), replace(wanted, time=both.name)
        uses |= {name: Use(LEFT_OUT, "", f"is in {both.name}") for name in both.columns}
    table = sample.table
    timed = time_of(table, wanted)
    if timed is not None:
        name, (chosen, form) = timed[0].name[0], timed
        check_digits(name, table.column(name), sample.forms[name])
        made = next((f"{one.why}, " for one in sample.made if one.name == name), "")
        uses[name] = Use("time", "int64", f"{_span(table, name, form)}, {made}{chosen.why}")
    for name in table.column_names:
        if name not in uses and (endless := _infinite(table.column(name))):
            if endless > STRAY * table.num_rows:
                why = f"is infinite in {endless:,} of {table.num_rows:,} rows: write a number, or nothing"
                uses[name] = Use(LEFT_OUT, "", why)
            place, column = table.column_names.index(name), table.column(name)
            finite = pc.if_else(pc.is_inf(column), pa.scalar(None, column.type), column)
            table = table.set_column(place, name, finite)
    user = user_of(table, wanted, [*uses])
    names = user.name if user is not None else ()
    if user is not None and len(names) == 1:
        empty = table.column(names[0]).null_count
        alone = f", {empty:,} rows without one share a key" if empty else ""
        alone += _named_nothing(table.column(names[0]))
        why = f"{user.why}, {_different(table, names[0])}{alone}"
        uses[names[0]] = Use("user", _id_type(table, names[0]), why)
    firsts = first_rows(table.columns, table.num_rows)
    once = table if firsts.all() else table.filter(pa.array(firsts))
    others = {
        name: _use(name, once, sample.forms[name], clicked[firsts])
        for name in table.column_names
        if name not in uses
    }
    moment = (timed[0].name[0],) if timed is not None else ()
    item = item_of(table, wanted, others, (*names, *moment) if names and moment else ())
    if item is not None:
        others[item.name[0]] = Use(
            "item", _id_type(table, item.name[0]), f"{item.why}, {_different(table, item.name[0])}"
        )
    uses |= others
    ordered = {name: uses[name] for name in table.column_names}
    key = names[0] if len(names) == 1 else free(USER if names else ROW, table.column_names)
    if len(names) > 1:
        ordered = {key: Use("user", "string", f"made of {', '.join(names)}"), **ordered}
    if not names:
        ordered = {
            key: Use("user", "int64", "number of the row: nobody is known, so there is no GAUC"),
            **ordered,
        }
    plain = [name for name, use in ordered.items() if use.role in ("id", "number", "list", "words")]
    items = item.name if item is not None else ()
    return Facts(
        replace(sample, table=table), int(clicked.sum()), None, ordered, key, names,
        timed[0].name[0] if timed is not None else None,
        timed[1] if timed is not None else None,
        item.name[0] if item is not None else None,
        of_item(table, item.name[0], plain) if item is not None else (),
        *_fills(table, {name: use for name, use in ordered.items() if name in (*plain, *names, *items)}),
        repeated=int(np.count_nonzero(~firsts)),
    )  # fmt: skip


def _use(name: str, table: pa.Table, form: Form, clicked: npt.NDArray[np.bool_]) -> Use:
    use = use_of(name, table.column(name), clicked)
    if use.role != "number":
        return use
    words = f", {form.words}" if form.words else ""
    bins = "" if use.flat else f"; also in up to {BINS} bins of equally many rows"
    return replace(use, why=f"{use.why}{words}{bins}")


def _fills(sample: pa.Table, uses: dict[str, Use]) -> tuple[dict[str, Any], dict[str, Any]]:
    """Values for nulls, of an id or a user one of its own; medians of numbers that have nulls, too."""
    fills: dict[str, Any] = {}
    medians: dict[str, Any] = {}
    for name, use in uses.items():
        if use.role == "number":
            how = "lower" if use.dtype == "int64" else "linear"  # a double would round large numbers
            median = pc.quantile(sample.column(name), 0.5, interpolation=how)[0].as_py()
            fills[name] = int(median) if use.dtype == "int64" else rounded(median)
            below = _below(sample.column(name), whole=use.dtype == "int64")
            if sample.column(name).null_count and not use.flat and below is not None:
                fills[name], medians[name] = below, fills[name]
        elif name in sample.column_names and sample.column(name).null_count and use.dtype in FILLS:
            fills[name] = own_fill(use)
    return fills, medians


def own_fill(use: Use) -> Any:
    """Value for nulls of an id or a user; None: null is a value of its own, as an empty list."""
    return NOBODY if use.role == "user" and use.dtype == "string" else FILLS.get(use.dtype)


def _below(column: pa.ChunkedArray, *, whole: bool) -> float | int | None:
    """A number below all of a column: -1 where none is negative; None: their type has none."""
    least = pc.min(column).as_py()
    if least >= 0:
        return -1 if whole else -1.0
    if whole:
        return max(2 * int(least), -(2**63)) if least > -(2**63) else None
    below = rounded(2 * float(least))
    return below if math.isfinite(below) else None


def _named_nothing(column: pa.ChunkedArray) -> str:
    """Words on a user who is nobody by its name, such as "None", or by its rows, such as 0; "" for none."""
    nothing = column.filter(missing(column)).drop_null() if pa.types.is_string(column.type) else ()
    if len(nothing) > STRAY * len(column):
        return _leave_empty(*_most_common(nothing)[0])
    (most, rows), (_, others) = _most_common(column)
    many = rows > MANY_ROWS * len(column) and 0 < OFTENER * others < rows
    return _leave_empty(most, rows) if many else ""


def _leave_empty(user: Any, rows: int) -> str:
    name = repr(shortened(user)) if isinstance(user, str) else user
    return f", of which {name} has {rows:,} rows: leave it empty if it is nobody"


def _most_common(column: pa.ChunkedArray) -> list[tuple[Any, int]]:
    """The two commonest values and their rows; None and 0 where there is none."""
    counts = pc.value_counts(column.drop_null())
    most = counts.take(pc.array_sort_indices(counts.field("counts"), order="descending")[:2])
    return [*((one["values"], one["counts"]) for one in most.to_pylist()), (None, 0), (None, 0)][:2]


def _infinite(column: pa.ChunkedArray) -> int:
    """Number of infinite values; 0 in a column that has no fractions."""
    return int(pc.sum(pc.is_inf(column)).as_py() or 0) if pa.types.is_floating(column.type) else 0


def _first(found_rows: Iterable[Rows]) -> list[pa.RecordBatch]:
    found, rows = [], 0
    for some in found_rows:
        found.append(some.batch.slice(0, SAMPLE_ROWS - rows))
        rows += found[-1].num_rows
        if rows >= SAMPLE_ROWS:
            break
    return found


def joined(batches: list[pa.RecordBatch]) -> pa.Table | None:
    """Batches as a table; a column of several types is a text. None: there are no rows."""
    if not batches:
        return None
    tables = [pa.Table.from_batches([batch]) for batch in batches]
    try:
        return pa.concat_tables(tables, promote_options="permissive")
    except pa.ArrowException:
        kinds: dict[str, set[pa.DataType]] = {}
        for table in tables:
            for field in table.schema:
                kinds.setdefault(field.name, set()).add(field.type)
        texts = [
            pa.table(
                {
                    name: in_type(table.column(name), "string")
                    if len(kinds[name]) > 1
                    else table.column(name)
                    for name in table.column_names
                }
            )
            for table in tables
        ]
        return pa.concat_tables(texts, promote_options="permissive")


def _id_type(sample: pa.Table, name: str) -> str:
    return "int64" if pa.types.is_integer(sample.column(name).type) else "string"


def _different(sample: pa.Table, name: str) -> str:
    return f"{pc.count_distinct(sample.column(name)).as_py():,} different"


def rate(clicked: npt.NDArray[np.bool_]) -> str:
    """Click rate, for a person."""
    return f"{int(clicked.sum()):,} of {len(clicked):,} are 1: a click rate of {clicked.mean():.2%}"


def _span(sample: pa.Table, name: str, form: TimeForm) -> str:
    values = milliseconds(sample.column(name).combine_chunks(), form)
    ends = pc.min_max(values)
    per_ms = {"s": 1000, "ms": 1, "us": 1 / 1000, "ns": 1 / 1_000_000}[
        form.unit if form.kind == "number" else "ms"
    ]
    least, most = (shown(int(ends[end].as_py() * per_ms)) for end in ("min", "max"))
    return f"{least} to {most}"
