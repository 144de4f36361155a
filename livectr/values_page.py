"""The table of docs/values.md, made from the code: `python -m livectr.values_page`."""

from __future__ import annotations

import json
import math
import re
from pathlib import Path
from typing import Any

from livectr.system.values import UnfitError, meaning

ROOT = Path(__file__).resolve().parent.parent
PAGE = ROOT / "docs" / "values.md"
BETWEEN = re.compile(r"(<!-- values -->\n).*(<!-- end of values -->)", re.DOTALL)

DTYPES = ("int64", "float64", "bool", "string", "list<int64>", "list<string>")
VALUES: tuple[Any, ...] = (
    None,
    math.nan,
    math.inf,
    0,
    7,
    2**53 + 1,
    2**63,
    17.0,
    17.5,
    2.0**53 + 2,
    1e400,
    True,
    "",
    "17",
    "007",
    "a\ud800",
    [],
    [1, 2],
    [1.0, 2.0],
    [1, None],
    ["a", "b"],
)
REFUSED = "–"


def page(text: str) -> str:
    """The page's text with today's table."""
    return BETWEEN.sub(lambda match: f"{match[1]}\n{table()}\n\n{match[2]}", text)


def table() -> str:
    """Markdown table: a row for each value, a column for each type."""
    rows = [("value", *(f"`{dtype}`" for dtype in DTYPES)), ("---",) * (1 + len(DTYPES))]
    for value in dict.fromkeys(map(_written, VALUES)):
        original = next(one for one in VALUES if _written(one) == value)
        rows.append((f"`{value}`", *(_verdict(original, dtype) for dtype in DTYPES)))
    return "\n".join(f"| {' | '.join(row)} |" for row in rows)


def _verdict(value: Any, dtype: str) -> str:
    try:
        found = meaning(value, dtype)
    except UnfitError:
        return REFUSED
    return "null" if found is None else f"`{_written(found)}`"


def _written(value: Any) -> str:
    if isinstance(value, float) and value == math.inf:
        return "1e400"
    return json.dumps(value)


if __name__ == "__main__":
    PAGE.write_text(page(PAGE.read_text()))
