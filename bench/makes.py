"""Results of each benchmark by make of CPU, and the table that compares makes.

A result of another make than NAME.json's lies beside it as NAME-MAKE.json. Goals differ between makes.
"""

from __future__ import annotations

import json
import re
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Any

from bench.numbers import number

MAKES = ("Zen 5", "Zen 4", "Zen 3", "Intel Xeon")
"""Columns of tables, from left to right; a make that is not among them comes after."""
_ZEN = {
    ("family 26", "model 2"): "Zen 5",
    ("family 25", "model 17"): "Zen 4",
    ("family 25", "model 1"): "Zen 3",
}
_OWN = re.compile(r", (products in [^,;]+|\d+ threads)|; median .*")
"""Parts of a workload that depend on the machine."""

Result = dict[str, Any]
Row = Mapping[str, Any]
Key = tuple[str, str, str]
"""Figure, workload and peer; no peer: empty."""


def make_of(result: Result) -> str:
    """Short name of the make of CPU that a result was measured on."""
    name, *details = result["hardware"]["processor"].split(", ")
    if zen := _ZEN.get(tuple(details[:2])):
        return zen
    return "Intel Xeon" if "Xeon" in name else ", ".join([name, *details[:2]])


def read(folder: Path) -> dict[str, list[Result]]:
    """Results with rows of each benchmark, in the order of `MAKES`."""
    found: dict[str, list[Result]] = {}
    for path in sorted(folder.glob("*.json")):
        result = json.loads(path.read_text())
        if "rows" in result:
            found.setdefault(result["name"].partition(",")[0], []).append(result)
    return {name: sorted(found[name], key=lambda result: _place(make_of(result))) for name in sorted(found)}


def columns(results: Sequence[Result]) -> list[str]:
    """Makes that have a result, in the order of `MAKES`."""
    return sorted({make_of(result) for result in results}, key=_place)


def compared(results: Sequence[Result]) -> dict[Key, dict[str, Row]]:
    """Rows of a benchmark by what they measure, then by make."""
    rows: dict[Key, dict[str, Row]] = {}
    for result in results:
        for row in result["rows"]:
            workload = _OWN.sub("", row["workload"]).replace("behaviours", "behaviors")
            rows.setdefault((row["figure"], workload, row["peer_name"] or ""), {})[make_of(result)] = row
    return rows


def lines(results: Sequence[Result]) -> list[str]:
    """Table of every figure of a benchmark that has a goal on some make; empty where none has."""
    makes = columns(results)
    head = ["figure", "workload", "beside", *makes]
    made = [f"| {' | '.join(head)} |", "|---|---|---" + "|---:" * len(makes) + "|"]
    for (figure, workload, peer), found in compared(results).items():
        if any(row["goal"] is not None for row in found.values()):
            made.append(f"| {' | '.join([figure, workload, peer or '–', *cells(found, makes)])} |")
    return made if len(made) > 2 else []


def cells(found: Mapping[str, Row], makes: Sequence[str]) -> list[str]:
    """Cell of each make: the ratio to the peer, or the figure, with the goal; bold where it is missed."""
    return [cell(found[make]) if make in found else "–" for make in makes]


def cell(row: Row) -> str:
    """Ratio to the peer, or the figure, with the goal; bold where it is missed."""
    shown = f"{number(row['ours'])} {row['unit']}" if row["ratio"] is None else f"{number(row['ratio'])} ×"
    text = shown if row["goal"] is None else f"{shown} (goal {number(row['goal'])})"
    return f"**{text}**" if row["met"] is False else text


def _place(make: str) -> tuple[int, str]:
    return MAKES.index(make) if make in MAKES else len(MAKES), make
