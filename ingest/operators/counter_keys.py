"""Columns of impressions that make the keys of counters."""

from __future__ import annotations

from livectr.ingest.language.expr import ColumnRef, Expr, need
from livectr.ingest.language.streams import View
from livectr.system.errors import ConfigError

By = str | Expr | tuple[str | Expr, ...]


def key_columns(log: View, by: By, maker: str) -> tuple[str, ...]:
    """Names of the columns that make a key.

    Args:
        log: labelled impressions with a time.
        by: names of columns of the impressions, or these columns.
        maker: function that the user called, for errors.

    Raises:
        ConfigError: a column cannot be part of a key, or the log has no times.
    """
    stream, names = log.impressions, []
    for part in by if isinstance(by, tuple) else (by,):
        ref = part.params[0] if isinstance(part, Expr) and part.op == "column" else None
        own = isinstance(ref, ColumnRef) and ref.source == stream.topic and not ref.table
        name = ref.column if isinstance(ref, ColumnRef) and own else part
        if not isinstance(name, str):
            raise ConfigError(f"{maker}: by names {name}; it must name columns of {stream.topic}")
        need(maker, stream[name], ("int64", "int32", "bool", "string"), "keys of integers, bools or strings")
        if stream[name].dtype.startswith("list"):
            raise ConfigError(f"{maker}: {stream[name]} is a list; a key has one value for each row")
        if name == log.label_column:
            raise ConfigError(f"{maker}: {stream[name]} is the label; it cannot be a feature")
        names.append(str(name))
    if not names or len(set(names)) < len(names):
        raise ConfigError(f"{maker}: by must name at least one column, each once")
    if stream.time is None:
        raise ConfigError(
            f"{maker}: {stream.topic} has no time; name its column in the Stream, as {maker} are of event "
            "time"
        )
    return tuple(names)
