"""Values for nulls."""

from __future__ import annotations

from dataclasses import replace

from livectr.ingest.language import dtypes
from livectr.ingest.language.expr import ColumnRef, Expr, column
from livectr.system.errors import ConfigError


def fill_null(x: Expr, value: int | float | bool | str) -> Expr:
    """Replace nulls of a column, also of a look-up without a match.

    Without it a null number is 0, a null string "", a null bool false and a null list empty. Only columns
    have nulls; operators never make them.

    Args:
        x: column that is no list.
        value: of the column's type.

    Example: `fill_null(users.age, 30)`.
    """
    ref = x.params[0] if isinstance(x, Expr) and x.op == "column" else None
    if not isinstance(ref, ColumnRef) or dtypes.is_list(x.dtype):
        given = f"{x} is {x.dtype}" if isinstance(x, Expr) else repr(x)
        raise ConfigError(f"fill_null needs a column that is no list and not computed, but {given}")
    return column(replace(ref, fill=dtypes.check_value(value, x.dtype, f"fill_null({x})")), x.dtype)
