"""Table of docs/benchmarks.md that shows start, step and store on each make of CPU that has results.

A result of another make than NAME.json's lies beside it as NAME-MAKE.json. Goals differ between makes.
"""

from __future__ import annotations

import json
import re
from collections.abc import Mapping
from pathlib import Path
from typing import Any

BENCHMARKS = ("start", "peers", "tables", "mesh", "images", "network", "publish", "tiers", "scaling")
_OWN = re.compile(r", (products in [^,;]+|\d+ threads)|; median .*")
"""Parts of a workload that depend on the machine."""

Row = Mapping[str, Any]
Key = tuple[str, str, str, str | None]
"""Benchmark, figure, workload and peer."""


def lines(results: Path) -> list[str]:
    """Markdown of every figure that has a goal on some make."""
    makes, rows = dict[str, None](), dict[Key, dict[str, Row]]()
    for name in BENCHMARKS:
        for path in sorted(results.glob(f"{name}*.json"), key=lambda path: path.stem):
            result = json.loads(path.read_text())
            if result["name"].partition(",")[0] != name:
                continue
            make = result["hardware"]["processor"]
            makes[make] = None
            for row in result["rows"]:
                key = (
                    name,
                    row["figure"],
                    _OWN.sub("", row["workload"]).replace("behaviours", "behaviors"),
                    row["peer_name"],
                )
                rows.setdefault(key, {})[make] = row
    head = ["benchmark", "figure", "workload", "beside", *makes]
    made = [f"| {' | '.join(head)} |", "|---|---|---|---" + "|---:" * len(makes) + "|"]
    for (name, figure, workload, peer), found in rows.items():
        if any(row["goal"] is not None for row in found.values()):
            cells = [_cell(found[make]) if make in found else "–" for make in makes]
            made.append(f"| {' | '.join([f'`{name}`', figure, workload, peer or '–', *cells])} |")
    return made


def _cell(row: Row) -> str:
    """Ratio to the peer, or the figure, with the goal."""
    shown = f"{_number(row['ours'])} {row['unit']}" if row["ratio"] is None else f"{_number(row['ratio'])} ×"
    if row["goal"] is None:
        return shown
    text = f"{shown} of {_number(row['goal'])}"
    return text if row["met"] else f"**{text}**"


def _number(value: float) -> str:
    return f"{value:,.0f}" if abs(value) >= 1000 else f"{value:.3g}"
