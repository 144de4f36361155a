"""Tables whose new rows begin at zero: fields that joined a model which had learned without them.

A new row is noise, uniform in ±init_scale, for a model that is new altogether. In a model that has learned,
the rows of a new field begin at zero: a product with zero leaves every logit what it was.
"""

from __future__ import annotations

from collections.abc import Iterable, Mapping

from livectr.kernels.table.table import DynamicTable

FromZero = tuple[str, str]
"""(role, table): values of the role's segments are 0 in a new row of the table."""


def start_at_zero(tables: Mapping[str, DynamicTable], pairs: Iterable[FromZero]) -> None:
    """Lets new rows begin at zero.

    Args:
        tables: name → table, some of those that `pairs` names or others.
        pairs: (role, table).
    """
    for role, table in pairs:
        if table in tables:
            tables[table].start_at_zero(f"{role}.")
