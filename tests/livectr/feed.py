"""Rows of raw impressions and clicks, as two topics hold them."""

from __future__ import annotations

import csv
import json
from collections.abc import Sequence
from pathlib import Path
from typing import Any

import numpy as np

START_MS = 1_767_600_000_000
Row = dict[str, Any]


def feed(count: int, seed: int = 3) -> tuple[list[Row], list[Row]]:
    """Impressions 100 ms apart, and their clicks 1 to 20 s later, both in order of time."""
    rng = np.random.default_rng(seed)
    views, clicks = list[Row](), list[Row]()
    for number in range(count):
        product = int(rng.integers(40))
        seen: Row = {"view_id": f"v{number}", "visitor": int(rng.integers(50)), "at": START_MS + 100 * number}
        context = {"device": {"os": "ios" if number % 3 else "android"}}
        views.append({**seen, "product": product, "slot": number % 5, "context": context})
        if rng.random() < (0.4 if product % 4 == 3 else 0.05):
            clicks.append({**seen, "at": seen["at"] + int(rng.integers(1_000, 20_000))})
    return views, sorted(clicks, key=lambda click: int(click["at"]))


def write_lines(path: Path, rows: Sequence[Row]) -> Path:
    """Write rows as JSON lines."""
    path.write_text("".join(json.dumps(row) + "\n" for row in rows))
    return path


def write_table(path: Path, rows: Sequence[Row]) -> Path:
    """Write rows as CSV."""
    with path.open("w", newline="") as file:
        table = csv.DictWriter(file, list(rows[0]))
        table.writeheader()
        table.writerows(rows)
    return path
