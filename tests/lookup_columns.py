"""Look-up rows as arrays, by way of the server's table."""

from collections.abc import Sequence

import numpy as np
import pyarrow as pa

from livectr.ingest.language.expr import Expr
from livectr.ingest.language.tables import Table
from livectr.serving.request.lookup_table import LookupRoot, LookupTable
from livectr.store.layout import encode_lookup_row


def lookup_columns(
    table: Table, rows: Sequence[list[object] | None], roots: Sequence[Expr]
) -> dict[str, pa.Array]:
    """Root name → array of the n rows' values; a row that is None gives nulls."""
    held, keys = LookupTable(table), np.arange(len(rows))
    held.put(keys, [None if row is None else encode_lookup_row(row) for row in rows], 0.0)
    slots, _ = held.find(keys)
    return held.columns(slots, [*map(LookupRoot.of, roots)])
