"""All guesses about a file, from a sample of its first rows."""

from __future__ import annotations

from collections.abc import Iterable, Sequence
from dataclasses import dataclass, replace
from pathlib import Path
from typing import Any

import numpy as np
import pyarrow as pa
import pyarrow.compute as pc

from livectr.guess.columns import LEFT_OUT, Use, use_of
from livectr.guess.roles import Wanted, item_of, of_item, sample_labels, time_of, user_of
from livectr.logs.account import Account
from livectr.logs.csv_rows import Rows
from livectr.logs.files import Progress, log_rows
from livectr.logs.names import names_something
from livectr.logs.times import TimeForm, milliseconds, shown
from livectr.logs.values import STRAY, Form, form_of_column, valued
from livectr.system.errors import ConfigError

SAMPLE_ROWS = 100_000
NOBODY = "nobody"
"""User of rows without one, where users are texts."""
ROW = "row"
"""Column that numbers the rows of a log without users, if no other column has this name."""
USER = "user"
"""Column of several that name a user together, if no other column has this name."""


@dataclass(frozen=True)
class Facts:
    """Guesses about a file.

    Args:
        path: of the file.
        rows: of the sample.
        clicks: of the sample.
        label: its column.
        uses: column → use, in the file's order; a user that is named by several columns is a column more.
        key: column that names the user; ROW where nobody is known.
        user: columns of the file that name the user; () where nobody is known.
        time: column of the event time; None: rows stay in their order.
        form: of the times.
        item: column that names what is shown.
        of_item: columns that belong to the item.
        fills: column → value for nulls.
        sample: rows of the sample, in their forms.
        forms: column of the file → its form.
        empty_is_no_click: the label is 1 or empty.
    """

    path: Path
    rows: int
    clicks: int
    label: str
    uses: dict[str, Use]
    key: str
    user: tuple[str, ...]
    time: str | None
    form: TimeForm | None
    item: str | None
    of_item: tuple[str, ...]
    fills: dict[str, Any]
    sample: pa.Table
    forms: dict[str, Form]
    empty_is_no_click: bool

    @property
    def kept(self) -> dict[str, Use]:
        """Columns of the log."""
        return {name: use for name, use in self.uses.items() if use.role != LEFT_OUT}


def look(path: Path, wanted: Wanted, progress: Progress = lambda done: None) -> Facts:
    """Guess from the first rows of a file.

    Raises:
        ConfigError: the file cannot be read, or label, time or user cannot be guessed.
    """
    account = Account(path)
    read = joined(_first(log_rows(account, progress=progress)))
    if read is None:
        why = "; ".join(account.first) or "it holds none"
        raise ConfigError(f"no row of {path} can be read ({why}).")
    forms = {
        name: form_of_column(read.column(name), is_id=names_something(name)) for name in read.column_names
    }
    sample = pa.table({name: valued(read.column(name), form) for name, form in forms.items()})
    clicked, empty_is_no_click = sample_labels(sample, wanted)
    timed = time_of(sample, wanted)
    uses: dict[str, Use] = {
        wanted.label: Use(
            "label", "int32", _rate(clicked) + (", empty is no click" if empty_is_no_click else "")
        )
    }
    for name in sample.column_names:
        if endless := _infinite(sample.column(name)):
            if endless > STRAY * sample.num_rows:
                why = f"is infinite in {endless:,} of {sample.num_rows:,} rows: write a number, or nothing"
                uses[name] = Use(LEFT_OUT, "", why)
            place, column = sample.column_names.index(name), sample.column(name)
            finite = pc.if_else(pc.is_inf(column), pa.scalar(None, column.type), column)
            sample = sample.set_column(place, name, finite)
    if timed is not None:
        name, (chosen, form) = timed[0].name[0], timed
        uses[name] = Use("time", "int64", f"{_span(sample, name, form)}, {chosen.why}")
    user = user_of(sample, wanted, [*uses])
    names = user.name if user is not None else ()
    if user is not None and len(names) == 1:
        empty = sample.column(names[0]).null_count
        alone = f", {empty:,} rows without one share a key" if empty else ""
        why = f"{user.why}, {_different(sample, names[0])}{alone}"
        uses[names[0]] = Use("user", _id_type(sample, names[0]), why)
    item = item_of(sample, wanted, [*uses, *names])
    if item is not None:
        uses[item.name[0]] = Use(
            "item", _id_type(sample, item.name[0]), f"{item.why}, {_different(sample, item.name[0])}"
        )
    for name in sample.column_names:
        if name not in uses:
            use = use_of(name, sample.column(name), clicked)
            words = forms[name].words if use.role == "number" else ""
            uses[name] = replace(use, why=f"{use.why}, {words}") if words else use
    ordered = {name: uses[name] for name in sample.column_names}
    key = names[0] if len(names) == 1 else _free(USER if names else ROW, sample.column_names)
    if len(names) > 1:
        ordered = {key: Use("user", "string", f"made of {', '.join(names)}"), **ordered}
    if not names:
        ordered = {
            key: Use("user", "int64", "number of the row: nobody is known, so there is no GAUC"),
            **ordered,
        }
    uses = ordered
    others = [name for name, use in uses.items() if use.role in ("id", "number", "list", "words")]
    items = item.name if item is not None else ()
    return Facts(
        path, sample.num_rows, int(clicked.sum()), wanted.label, ordered, key, names,
        timed[0].name[0] if timed is not None else None,
        timed[1] if timed is not None else None,
        item.name[0] if item is not None else None,
        of_item(sample, item.name[0], others) if item is not None else (),
        _fills(sample, {name: use for name, use in uses.items() if name in (*others, *names, *items)}),
        sample, forms, empty_is_no_click,
    )  # fmt: skip


def _fills(sample: pa.Table, uses: dict[str, Use]) -> dict[str, Any]:
    """Values for nulls: the median of a number, and a value of its own for an id or a user."""
    own: dict[str, Any] = {"int64": -1, "string": "", "bool": False}
    fills: dict[str, Any] = {}
    for name, use in uses.items():
        if use.role == "number":
            median = pc.quantile(sample.column(name), 0.5)[0].as_py()
            fills[name] = int(median) if use.dtype == "int64" else float(f"{median:.4g}")
        elif name in sample.column_names and sample.column(name).null_count and use.dtype in own:
            fills[name] = own[use.dtype] if use.role != "user" or use.dtype != "string" else NOBODY
    return fills


def _free(name: str, taken: Sequence[str]) -> str:
    """Name that no column has: the name, or one with more underscores."""
    while name in taken:
        name += "_"
    return name


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
            table.cast(
                pa.schema([(f.name, pa.string() if len(kinds[f.name]) > 1 else f.type) for f in table.schema])
            )
            for table in tables
        ]
        return pa.concat_tables(texts, promote_options="permissive")


def _id_type(sample: pa.Table, name: str) -> str:
    return "int64" if pa.types.is_integer(sample.column(name).type) else "string"


def _different(sample: pa.Table, name: str) -> str:
    return f"{pc.count_distinct(sample.column(name)).as_py():,} different"


def _rate(clicked: np.ndarray[tuple[int], np.dtype[np.bool_]]) -> str:
    return f"{int(clicked.sum()):,} of {len(clicked):,} are 1: a click rate of {clicked.mean():.2%}"


def _span(sample: pa.Table, name: str, form: TimeForm) -> str:
    values = milliseconds(sample.column(name).combine_chunks(), form)
    ends = pc.min_max(values)
    per_ms = {"s": 1000, "ms": 1, "us": 1 / 1000, "ns": 1 / 1_000_000}[
        form.unit if form.kind == "number" else "ms"
    ]
    least, most = (shown(int(ends[end].as_py() * per_ms)) for end in ("min", "max"))
    return f"{least} to {most}"
