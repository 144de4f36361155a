"""Rows of `livectr bench images`, part by part."""

from __future__ import annotations

from bench.images import request, scaling, step_time, sweep, table_2


def result(quick: bool) -> dict[str, object]:
    """All rows, and the tables in the shape of the paper's."""
    rows, tables = table_2.result(quick)
    for part in (step_time, scaling, request, sweep):
        rows += part.rows(quick)
    return {"rows": rows, "tables": tables}
