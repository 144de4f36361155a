"""Label, time, user and item among the columns of a sample.

A guess that fails is an error with the flag that says it: a wrong user or a missing time costs a day later.
"""

from __future__ import annotations

import re
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, replace

import numpy as np
import numpy.typing as npt
import pyarrow as pa
import pyarrow.compute as pc

from livectr.config.parsing import nearest
from livectr.guess.columns import SHORTENED, Use, listed, shortened
from livectr.logs.names import ITEM_NAME, REQUEST_NAME, USER_NAME
from livectr.logs.times import (
    BEST,
    DIGITS,
    NAMED,
    SINCE_2000,
    TimeForm,
    are_mostly_times,
    form_of,
    milliseconds,
    why_no_time,
)
from livectr.logs.values import ABSENT, are_rounded, are_shortened, lost_digits, missing, without_nan
from livectr.system.errors import ConfigError

NOBODY = "none"
"""Value of --user for a log without users."""
ROW_ORDER = "row"
"""Value of --time for a log without times."""
UNIQUE = 0.98
"""Share of different values from which a column names the row."""
MOST_OF_ONE = 0.5
"""Share of rows of a single user above which another column is taken for the user: it is nobody's id."""
SHARED = 0.1
"""Share of rows in requests of several rows, from which these tell what a request varies."""
VARIES = 0.9
"""Different items by rows of such requests, from which a column is another in each row."""
LEAST_ITEMS = 5
"""Different values of a column that can be an item without its name saying so."""
MOSTLY_GIVEN = 0.8
"""Share of an item's rows that have a value, from which it is the item's: a coupon is in a few of them."""
MOST_EMPTY = 0.1
"""Share of rows without a time from which a column is not taken for the log's time."""
TRUE = ("1", "1.0", "true", "True", "TRUE", "t", "T", "yes", "Yes", "YES", "y", "Y")
FALSE = ("0", "0.0", "false", "False", "FALSE", "f", "F", "no", "No", "NO", "n", "N")


@dataclass(frozen=True)
class Wanted:
    """Columns that the user named.

    Args:
        label: column that is 1 after a click, or a rule such as rating>=4; "" if none was named.
        time: column, "row" for the order of the file, or None to guess.
        user: columns that name a user together, ("none",), or () to guess.
        item: column, or None to guess.
    """

    label: str
    time: str | None = None
    user: tuple[str, ...] = ()
    item: str | None = None


@dataclass(frozen=True)
class Chosen:
    """A column with its role.

    Args:
        name: of the column; several for a user that is named by several.
        why: reason, for a person.
    """

    name: tuple[str, ...]
    why: str


def need(name: str, known: Sequence[str], flag: str) -> None:
    """Raise ConfigError with the nearest name if there is no such column."""
    if name not in known:
        raise ConfigError(f"{flag}: there is no column {name!r}; {nearest(name, known)}")


def _free(name: str, taken: Sequence[str], flag: str) -> None:
    """Raise ConfigError if a column has another role already."""
    if name in taken:
        raise ConfigError(
            f"{flag}: column {name!r} is the label, the time or the user already; name another one."
        )


def labels(
    values: pa.Array | pa.ChunkedArray, name: str
) -> tuple[pa.Array | pa.ChunkedArray, pa.Scalar | None]:
    """Labels as int32 (null: missing, or neither 0 nor 1), and the first value that is neither 0 nor 1.

    Args:
        values: label column as it was read.
        name: of the column.
    """
    if pa.types.is_nested(values.type) or pa.types.is_binary(values.type):
        given = values.drop_null()
        return pa.nulls(len(values), pa.int32()), given[0] if len(given) else None
    texts = pc.utf8_trim_whitespace(without_nan(values).cast(pa.string()))
    texts = pc.if_else(missing(texts, ABSENT), pa.scalar(None, pa.string()), texts)
    ones = pc.is_in(texts, pa.array(TRUE))
    known = pc.or_(ones, pc.is_in(texts, pa.array(FALSE)))
    wrong = pc.and_(pc.invert(known), texts.is_valid())
    odd = values.filter(wrong)
    numbers = pc.if_else(known, ones.cast(pa.int32()), pa.scalar(None, pa.int32()))
    return numbers, odd[0] if len(odd) else None


def need_label(sample: pa.Table, label: str, file: str) -> None:
    """Raise ConfigError if no label was named, with the columns that may be one."""
    if label:
        return
    likely = []
    for name in sample.column_names:
        column = sample.column(name)
        if not pa.types.is_nested(column.type) and not pa.types.is_binary(column.type):
            given = set(column.unique().cast(pa.string()).drop_null().to_pylist()[:3])
            if given and given <= {*TRUE, *FALSE}:
                likely.append(name)
    pair = "livectr init --impressions FILE --clicks FILE (or kafka://HOST:PORT/TOPIC)"
    if likely:
        raise ConfigError(
            f"say --label COLUMN, too: the column that is 1 after a click, else 0 ({listed(likely)}); "
            f"where clicks are in a log of their own: {pair}."
        )
    raise ConfigError(
        f"{file} has no column of 0 and 1, so it does not say what was clicked. Where clicks are in a log of "
        f"their own: {pair}. Where a column says it otherwise, write a rule: --label 'rating>=4', "
        "--label event=click."
    )


def sample_labels(
    sample: pa.Table, wanted: Wanted, rule: tuple[str, pa.ChunkedArray] | None = None
) -> tuple[npt.NDArray[np.bool_], bool]:
    """bool[n], True after a click; and True if the column is 1 or empty, so that empty is no click.

    Args:
        sample: rows of the log.
        wanted: flags of the user.
        rule: that made the column, and the values that it compares; None: the file has the column.

    Raises:
        ConfigError: there is no such column, it is not 0 or 1, or no row has a click.
    """
    name = wanted.label
    need(name, sample.column_names, "--label")
    numbers, odd = labels(sample.column(name), name)
    if odd is not None:
        distinct = [*dict.fromkeys(map(shortened, sample.column(name).to_pylist()))][:4]
        raise ConfigError(
            f"--label: column {name!r} must be 0 or 1 (or false and true), but has {', '.join(distinct)}; "
            f"write a rule such as --label '{name}>=NUMBER' or --label '{name}=VALUE', or name another one."
        )
    clicked = np.asarray(pc.fill_null(numbers, 0).to_numpy() > 0)
    if not clicked.any() or clicked.all():
        every = "1" if clicked.any() else "0"
        if rule is not None:
            some = listed(shortened(value) for value in rule[1].unique().to_pylist()[:12])
            raise ConfigError(
                f"--label: {rule[0]!r} is {'true' if clicked.any() else 'false'} in all of the first "
                f"{len(clicked):,} rows, so there is nothing to learn; there its column is {some}."
            )
        raise ConfigError(
            f"--label: column {name!r} is {every} in all of the first {len(clicked):,} rows, so there is "
            "nothing to learn; give a log with both, or name another column."
        )
    return clicked, bool(numbers.null_count and pc.min(numbers).as_py() == 1)


def time_of(sample: pa.Table, wanted: Wanted) -> tuple[Chosen, TimeForm] | None:
    """The log's time column; None: rows are ordered as they are in the file.

    Raises:
        ConfigError: the column that was named holds no times, or none can be guessed.
    """
    if wanted.time == ROW_ORDER:
        return None
    if wanted.time is not None:
        need(wanted.time, sample.column_names, "--time")
        try:
            form = form_of(sample.column(wanted.time), named=True)
        except ConfigError as error:
            raise ConfigError(f"--time: column {wanted.time!r}: {error}") from None
        if form is None:
            raise ConfigError(
                f"--time: column {wanted.time!r} {why_no_time(sample.column(wanted.time))}; "
                "write it as 2026-11-25T08:00:00 or as epoch seconds, or say --time row."
            )
        return Chosen((wanted.time,), form.words), form
    mostly = [
        name for name in sample.column_names if sample.column(name).null_count < MOST_EMPTY * sample.num_rows
    ]
    forms = {name: form_of(sample.column(name)) for name in mostly if name != wanted.label}
    found = {
        name: form
        for name, form in forms.items()
        if form is not None and (form.kind not in ("number", *DIGITS) or NAMED.search(name))
    }
    if not found:
        named = [name for name in sample.column_names if NAMED.search(name) and name != wanted.label]
        hint = "".join(f" {name}{_no_time(sample.column(name), name)}." for name in named[:3])
        write = " Write it as 2026-11-25T08:00:00 or as epoch seconds." if named else ""
        raise ConfigError(
            f"no column is a time.{hint}{write} Say --time COLUMN, or --time row to learn rows in the order "
            "of the file."
        )
    name = min(
        found, key=lambda one: (_rank(one, BEST), not NAMED.search(one), sample.column_names.index(one))
    )
    spoiled = [one for one in mostly if one not in found and _rank(one, BEST) < _rank(name, BEST)]
    for one in spoiled:
        if one != wanted.label and are_mostly_times(sample.column(one)):
            why = _no_time(sample.column(one), one).removeprefix(":").strip()
            raise ConfigError(f"column {one!r}: {why}. Or say --time {name}.")
    others = (
        f"; --time names another: {listed(other for other in found if other != name)}"
        if len(found) > 1
        else ""
    )
    form = found[name]
    assert form is not None
    return Chosen((name,), form.words + others), form


def _no_time(column: pa.ChunkedArray, name: str) -> str:
    """Words on a column that is named like a time, and is none."""
    rows = len(column)
    if column.null_count >= MOST_EMPTY * rows:
        return f" is empty in {column.null_count:,} of {rows:,} rows"
    try:
        form = form_of(column, named=True)
    except ConfigError as error:
        return f": {str(error).rstrip('.')}"
    if form is None:
        return f" {why_no_time(column)}"
    inside = milliseconds(column, replace(form, since_s=SINCE_2000))
    return (
        f": {inside.null_count:,} of {rows:,} values are no times of 2000 to 2100; --time {name} reads those "
        "of 1973 on, and of any year where most are older"
    )


def user_of(sample: pa.Table, wanted: Wanted, taken: Sequence[str]) -> Chosen | None:
    """Columns that name the user; None: nobody is known.

    Args:
        sample: rows of the log.
        wanted: flags of the user.
        taken: columns that have a role.

    Raises:
        ConfigError: a column that was named is missing, or none can be guessed.
    """
    if wanted.user == (NOBODY,):
        return None
    if wanted.user:
        for name in wanted.user:
            need(name, sample.column_names, "--user")
            _free(name, taken, "--user")
            _one_value(sample, name, "--user")
        if len({*wanted.user}) < len(wanted.user):
            raise ConfigError(f"--user names {wanted.user[0]!r} twice; name each column once.")
        return Chosen(wanted.user, "as you said")
    named = [name for name in _nameable(sample) if USER_NAME.match(name) and name not in taken]
    found = [name for name in named if not (name.lower() == "uuid" and _unique(sample, name))]
    found = [name for name in found if _commonest(sample, name) <= MOST_OF_ONE] or found
    if not found:
        unusable = [name for name in sample.column_names if USER_NAME.match(name) and name not in taken]
        why = "".join(f" {name} holds {_held(sample.column(name))}." for name in unusable)
        likely = [
            name for name in sample.column_names if re.match(r"(user|visitor|customer|device)", name, re.I)
        ]
        some = [name for name in likely if name not in unusable]
        some = some or [name for name in _nameable(sample) if name not in taken]
        raise ConfigError(
            f"no column is named like a user.{why} Say --user COLUMN ({listed(some)}), --user A,B for "
            "columns that name a user together, or --user none where nobody is known."
        )
    repeats = max(found, key=lambda name: (_width(name), -sample.column_names.index(name)))
    return Chosen((repeats,), "named like a user")


def _unique(sample: pa.Table, name: str) -> bool:
    """True for a column that is another in nearly each row."""
    return bool(pc.count_distinct(sample.column(name)).as_py() > UNIQUE * sample.num_rows)


def _commonest(sample: pa.Table, name: str) -> float:
    """Share of the rows with the commonest value."""
    counts = pc.value_counts(sample.column(name)).field("counts")
    most = int(pc.max(counts).as_py() or 0)
    return most / max(1, sample.num_rows) if most else 0.0


def item_of(
    sample: pa.Table, wanted: Wanted, uses: Mapping[str, Use], moment: Sequence[str]
) -> Chosen | None:
    """Column that names what is shown; None: it cannot be told.

    A name says it, of several one that differs in each row of a request. Else what differs in each row of a
    request, while the request's other columns are equal; else the column on which the most others depend.

    Args:
        sample: rows of the log.
        wanted: flags of the user.
        uses: column → use, of those without a role.
        moment: columns of user and time, whose values together are one request; () where they are not known.

    Raises:
        ConfigError: the column that was named is missing.
    """
    if wanted.item is not None:
        need(wanted.item, sample.column_names, "--item")
        _free(wanted.item, [name for name in sample.column_names if name not in uses], "--item")
        _one_value(sample, wanted.item, "--item")
        return Chosen((wanted.item,), "as you said")
    found = [name for name in _nameable(sample) if ITEM_NAME.match(name) and name in uses]
    request = next((name for name in sample.column_names if REQUEST_NAME.match(name)), None)
    requests = (request,) if request is not None else moment
    if len(found) > 1:
        found = _varied(sample, found, requests) or found
    if found:
        name = max(
            found,
            key=lambda one: (
                one.lower() not in ("campaign", "campaign_id"),
                -sample.column_names.index(one),
            ),
        )
        return Chosen((name,), "named like what is shown")
    ids = [name for name in _nameable(sample) if name in uses and uses[name].role == "id"]
    counts = {name: pc.count_distinct(sample.column(name)).as_py() for name in ids}
    plain = [name for name, use in uses.items() if use.role in ("id", "number")]
    owned = {
        name: len(of_item(sample, name, [other for other in plain if other != name]))
        for name in ids
        if counts[name] >= LEAST_ITEMS
    }
    varied = _varied(sample, [*owned], requests)
    if varied:
        name = max(varied, key=lambda one: (owned[one], counts[one]))
        of = request if request is not None else "user and time"
        return Chosen((name,), f"differs in each row of a request (equal {of})")
    for_users = of_item(sample, moment[0], ids) if moment else ()
    most = max((name for name in owned if name not in for_users), key=lambda one: owned[one], default=None)
    if most is None or not owned[most]:
        return None
    return Chosen((most,), f"{owned[most]} other columns have a single value for each of its values")


def _varied(sample: pa.Table, names: Sequence[str], request: Sequence[str]) -> list[str]:
    """Columns that have another value in each row of a request, where requests have several rows."""
    if not request or not names or any(pa.types.is_nested(sample.column(one).type) for one in request):
        return []
    others = [name for name in dict.fromkeys(names) if name not in request]
    few, numbers = _numbered(sample, [*dict.fromkeys(request), *others])
    aggregates = [(numbers[name], "count_distinct") for name in others]
    groups = few.group_by([numbers[name] for name in request]).aggregate([*aggregates, ([], "count_all")])
    several = groups.filter(pc.greater(groups.column("count_all"), 1))
    if not several.num_rows or pc.sum(several.column("count_all")).as_py() < SHARED * sample.num_rows:
        return []
    rows = several.column("count_all").cast(pa.float64())
    different = {name: several.column(f"{numbers[name]}_count_distinct") for name in others}
    return [name for name, count in different.items() if pc.mean(pc.divide(count, rows)).as_py() >= VARIES]


def of_item(sample: pa.Table, item: str, names: Sequence[str]) -> tuple[str, ...]:
    """Columns that have a single value for each item, such as its category, in most of its rows.

    Args:
        sample: rows of the log.
        item: column of the item.
        names: columns to look at.
    """
    distinct = pc.count_distinct(sample.column(item)).as_py()
    plain = [name for name in names if not pa.types.is_nested(sample.column(name).type)]
    if not plain or distinct < 2 or sample.num_rows < 1.5 * distinct:
        return ()
    few, numbers = _numbered(sample, [item, *(name for name in plain if name != item)])
    groups = few.group_by(numbers[item]).aggregate(
        [*((numbers[name], how) for name in plain for how in ("count_distinct", "count")), ([], "count_all")]
    )
    return tuple(name for name in plain if _is_single(groups, numbers[name]))


def _is_single(groups: pa.Table, name: str) -> bool:
    """True for a column of which each group has at most one value, and those that have one in most rows."""
    if pc.max(groups.column(f"{name}_count_distinct")).as_py() > 1:
        return False
    having = groups.filter(pc.greater(groups.column(f"{name}_count"), 0))
    rows = pc.sum(having.column("count_all")).as_py() or 0
    return bool((pc.sum(having.column(f"{name}_count")).as_py() or 0) >= MOSTLY_GIVEN * rows)


def _numbered(sample: pa.Table, names: Sequence[str]) -> tuple[pa.Table, dict[str, str]]:
    """Columns by numbers, and name → number: Arrow would read a name such as "." as a path."""
    numbers = {name: str(number) for number, name in enumerate(names)}
    return sample.select(list(names)).rename_columns(list(numbers.values())), numbers


def _nameable(sample: pa.Table) -> list[str]:
    """Columns whose values can name something: texts, whole numbers, true and false."""
    return [name for name in sample.column_names if _names(sample.column(name))]


def _names(column: pa.ChunkedArray) -> bool:
    if pa.types.is_string(column.type):
        return not are_shortened(column)
    return bool(pa.types.is_integer(column.type) or pa.types.is_boolean(column.type))


def _one_value(sample: pa.Table, name: str, flag: str) -> None:
    """Raise ConfigError for a column whose values cannot name something."""
    column = sample.column(name)
    if not _names(column):
        raise ConfigError(f"{flag}: column {name!r} holds {_held(column)}")


def _held(column: pa.ChunkedArray) -> str:
    """Words on values that name nothing, and what to do."""
    if pa.types.is_floating(column.type) and are_rounded(column):
        return lost_digits(column.type)
    if are_shortened(column):
        return SHORTENED
    return f"{column.type}; name a column of texts or whole numbers"


def _rank(name: str, best: Sequence[str]) -> int:
    return best.index(name.lower()) if name.lower() in best else len(best)


def _width(name: str) -> int:
    """Likeliness of a user's name: a user before a device, a device before a session."""
    order = (
        "ip",
        "session",
        "cookie",
        "client",
        "device",
        "account",
        "member",
        "customer",
        "visitor",
        "uid",
        "user",
    )
    return max((place for place, word in enumerate(order) if name.lower().startswith(word)), default=0)
