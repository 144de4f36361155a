"""Reasons for which a column that two raw logs have does not join them, each with a sentence for a person."""

from __future__ import annotations

from collections.abc import Collection, Sequence

import pyarrow as pa
import pyarrow.compute as pc

from livectr.guess.columns import shortened
from livectr.guess.join_keys import SEPARATOR, Text, is_id, together, whole
from livectr.guess.raw import RawLog
from livectr.guess.roles import UNIQUE
from livectr.logs.names import names_something
from livectr.system.errors import ConfigError

MOSTLY = 0.5
"""Least share of clicks that have an impression's name, and of different ones among these."""
MOST_OTHERWISE = 0.01
"""Share of clicks that write an impression's name otherwise up to which they are only counted as lost."""


def check_written_alike(shown: RawLog, clicked: RawLog, names: Sequence[str]) -> None:
    """Raise ConfigError where clicks have the names of impressions with another case, zeros or beginning."""
    ours, theirs = together(shown.table, names), together(clicked.table, names)
    lost = pc.invert(whole(pc.is_in(theirs, value_set=whole(ours), skip_nulls=True)))
    forms = _numbers(ours), _numbers(theirs)
    plain, asked = (
        (_plain(ours), _plain(theirs)) if forms[0] is None or forms[1] is None else (forms[0], forms[1])
    )
    places = whole(pc.index_in(asked, value_set=plain, skip_nulls=True))
    other = pc.and_(lost, places.is_valid())
    count = pc.sum(other).as_py() or 0
    # Short names are alike by chance where the sample lacks many impressions.
    if count <= max(MOST_OTHERWISE * len(theirs), 0.5 * pc.sum(lost).as_py()):
        return
    row = pc.index(other, True).as_py()
    first, second = ours[places[row].as_py()].as_py(), theirs[row].as_py()
    raise ConfigError(
        f"{_words(names)} is in both logs, but {count:,} of {len(theirs):,} clicks write it otherwise: "
        f"{_value(first)} in {shown.sample.name} is {_value(second)} in {clicked.sample.name}; write it "
        "alike in both."
    )


def check_kinds(shown: RawLog, clicked: RawLog, times: Collection[str]) -> None:
    """Raise ConfigError for a column that names an impression, and is of another kind in the clicks."""
    for name in shown.table.column_names:
        if name in times or name not in clicked.table.column_names or not names_something(name):
            continue
        ours, theirs = (log.table.column(name).drop_null() for log in (shown, clicked))
        if ours.type == theirs.type or not is_id(ours.type) or not len(theirs):
            continue
        if pc.count_distinct(ours).as_py() >= UNIQUE * len(ours):
            kinds = " and ".join(
                f"{values.type} in {log.sample.name} (such as {shortened(values[0].as_py())})"
                for log, values in ((shown, ours), (clicked, theirs))
            )
            raise ConfigError(f"{name} is {kinds}; write it alike in both logs.")


def _numbers(texts: Text) -> pa.Array | None:
    """Numbers behind a beginning that all texts have, without leading zeros; None: texts of other kinds."""
    parts = pc.extract_regex(whole(texts), r"^(?P<head>\D*)0*(?P<number>\d+)$")
    heads = pc.struct_field(parts, "head")
    if heads.null_count > texts.null_count or pc.count_distinct(heads).as_py() != 1:
        return None
    return pc.struct_field(parts, "number")


def named_otherwise(
    shown: RawLog, clicked: RawLog, ours: Sequence[str], theirs: Sequence[str]
) -> ConfigError | None:
    """Error for a column of clicks that has the names of impressions, which have another name there.

    Args:
        shown: impressions.
        clicked: clicks.
        ours: columns that name an impression.
        theirs: columns that clicks alone have.
    """
    for name in ours:
        known = whole(together(shown.table, [name]))
        for other in theirs:
            values = whole(together(clicked.table, [other]).drop_null())
            found = values.filter(pc.is_in(values, value_set=known))
            if len(found) >= MOSTLY * max(1, len(clicked.table)) and pc.count_distinct(
                found
            ).as_py() >= MOSTLY * len(found):
                return ConfigError(
                    f"{other} of {clicked.sample.name} has values of {name} of {shown.sample.name} "
                    f"({_value(found[0].as_py())}, for instance): if it names the impression, call it {name} "
                    "in both logs."
                )
    return None


def _plain(texts: Text) -> pa.Array:
    """Texts in lower case, without what is around them, leading zeros, and the dashes of a UUID."""
    text = pc.utf8_lower(whole(texts))
    ends = rf"(^|{SEPARATOR})[\s{{'\"=]*0*"
    text = pc.replace_substring_regex(pc.replace_substring_regex(text, ends, r"\1"), r"[\s}'\"]+$", "")
    plain = pc.replace_substring(text, "-", "")
    uuid = pc.match_substring_regex(plain, "^[0-9a-f]{20,32}$")
    return pc.if_else(uuid, plain, text)


def repeats(shown: RawLog, names: Sequence[str], times: Collection[str], shared: int) -> ConfigError | None:
    """Error for columns that would name an impression, but for one value or for rows that are written twice.

    Args:
        shown: impressions.
        names: columns that several impressions share.
        times: columns of times.
        shared: impressions that share them, on average.
    """
    keys = together(shown.table, names)
    counts = pc.value_counts(keys.drop_null())
    if not len(counts):
        return None
    most = pc.max(counts.field("counts")).as_py()
    if len(counts) - 1 >= UNIQUE * (len(keys) - keys.null_count - most) > 0:
        value = counts.field("values")[pc.index(counts.field("counts"), most).as_py()].as_py()
        return ConfigError(
            f"{_words(names)} names an impression, but {most:,} of {len(keys):,} rows of {shown.sample.name} "
            f"have {_value(value)}: leave these rows out, or give each its own."
        )
    differ = []
    for name in shown.table.column_names:
        column = shown.table.column(name)
        if name not in names and (pa.types.is_list(column.type) or _differs(keys, column)):
            differ.append(name)
    if set(differ) <= set(times):
        how = f"differ in {_words(differ)} alone" if differ else "are equal"
        return ConfigError(
            f"{shared:,} rows of {shown.sample.name} share each {_words(names)} and {how}: is each "
            "impression written several times? Keep the first of each."
        )
    return None


def _differs(keys: pa.ChunkedArray, column: pa.ChunkedArray) -> bool:
    """True if rows of one key have several values of a column."""
    both = pa.table({"key": keys, "value": column}).group_by("key").aggregate([("value", "count_distinct")])
    return bool((pc.max(both.column("value_count_distinct")).as_py() or 0) > 1)


def _words(names: Sequence[str]) -> str:
    return " and ".join(names)


def _value(text: str) -> str:
    return repr(shortened(text.replace(SEPARATOR, ",")))
