"""Rows of impressions with clicks, as a shop exports them."""

from __future__ import annotations

import gzip
from collections.abc import Sequence
from pathlib import Path
from typing import Any

import numpy as np

ROWS = 600
START_S = 1_764_000_000  # 2025-11-24, 16:00 UTC


def shop_rows() -> list[dict[str, Any]]:
    """Rows as a shop might export them, in order of time; nothing but the clicks of category 3 is likely."""
    rng = np.random.default_rng(5)
    rows = []
    for i in range(ROWS):
        ad = int(rng.integers(20))
        clicked = int(rng.random() < (0.5 if ad % 4 == 3 else 0.05))
        rows.append(
            {
                "impression": f"i{i:08d}",
                "seen_at": START_S + 60 * i,
                "user_id": 1000 + int(rng.integers(40)),
                "ad_id": ad,
                "category": f"c{ad % 4}",
                "price": round(2.5 * ad + 1, 2),
                "age": int(rng.integers(18, 80)) if i % 9 else None,
                "tags": "|".join(rng.choice(["new", "sale", "big", "red"], 2, replace=False)),
                "query": " ".join(rng.choice(["red", "blue", "old", "shoe", "hat", "coat"], 4)),
                "country": "de",
                "nothing": None,
                "clicked": clicked,
                "clicked_at": START_S + 60 * i + 5 if clicked else None,
            }
        )
    return rows


def write_csv(path: Path, rows: Sequence[dict[str, Any]], separator: str = ",") -> Path:
    lines = [separator.join(rows[0])]
    lines += [separator.join("" if v is None else str(v) for v in row.values()) for row in rows]
    text = "\n".join(lines) + "\n"
    path.write_bytes(gzip.compress(text.encode()) if path.suffix == ".gz" else text.encode())
    return path
