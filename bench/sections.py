"""Markdown of a result: bench/results/NAME.json as a section with its tables."""

import re
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Any

from bench.makes import make_of
from bench.numbers import number

ROOT = Path(__file__).resolve().parent.parent
RESULTS = ROOT / "bench" / "results"


def section(result: dict[str, Any]) -> str:
    """Section under the result's make of CPU: a line for each row, then its further tables."""
    lines = [f"## {make_of(result)}", "", origin(result), "", *row_lines(result["rows"])]
    return "\n".join([*lines, *extra_tables(result)]) + "\n"


def row_lines(rows: Sequence[Mapping[str, Any]]) -> list[str]:
    """Markdown lines of a table of rows."""
    lines = [
        "| figure | workload | ours | peer | ratio | goal | met |",
        "|---|---|---:|---|---:|---:|---|",
    ]
    for row in rows:
        peer = "–" if row["peer"] is None else f"{number(row['peer'])} ({row['peer_name']})"
        met = {True: "yes", False: "**no**", None: "–"}[row["met"]]
        ours = f"{number(row['ours'])} {row['unit']}"
        cells = [row["figure"], row["workload"], ours, peer, number(row["ratio"]), number(row["goal"]), met]
        lines.append(line(cells))
    return lines


def origin(result: dict[str, Any]) -> str:
    """Commit and machine of a result."""
    machine = result["hardware"]
    where = f"{machine['cores']} cores of {machine['processor']}, torch {machine['torch']}"
    gpu = f", {machine['gpu']}" if machine["gpu"] else ""
    bf16 = f", bf16 is {machine['bf16']}" if "bf16" in machine else ""
    return f"Commit `{result['commit']}`, {where}{bf16}{gpu}."


def extra_tables(result: dict[str, Any]) -> list[str]:
    """Markdown lines of a result's `tables`."""
    lines = []
    for table in result.get("tables", ()):
        header, *rest = table["lines"]
        lines += ["", f"{table['title']}:", "", line(header), "|---" * len(header) + "|", *map(line, rest)]
        if note := table.get("note"):
            lines += ["", note]
    return lines


def fill(text: str, marker: str, made: str) -> str:
    """Text of a page with new lines between the two comments of a marker.

    Raises:
        ValueError: the page does not have the marker once.
    """
    place = re.compile(rf"(<!-- {marker} -->\n).*(<!-- end of {marker} -->)", re.DOTALL)
    filled, places = place.subn(lambda match: f"{match[1]}{made}{match[2]}", text)
    if places != 1:
        raise ValueError(f"a page has the comments of {marker!r} {places} times")
    return filled


def line(cells: Sequence[str]) -> str:
    """Line of a table."""
    return "| " + " | ".join(cells) + " |"
