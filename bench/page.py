"""Tables of docs/benchmarks.md, made from bench/results/*.json: `python -m bench.page`."""

import json
import re
from collections.abc import Sequence
from pathlib import Path
from typing import Any

from bench import makes

ROOT = Path(__file__).resolve().parent.parent
PAGE = ROOT / "docs" / "benchmarks.md"
RESULTS = ROOT / "bench" / "results"
OWN_PAGE = {"network", "scaling", "serving-profile"}
BETWEEN = re.compile(r"(<!-- results -->\n).*(<!-- end of results -->)", re.DOTALL)
MAKES = re.compile(r"(<!-- makes -->\n).*(<!-- end of makes -->)", re.DOTALL)


def tables() -> str:
    """Markdown section for each result."""
    results = (path for path in sorted(RESULTS.glob("*.json")) if path.stem not in OWN_PAGE)
    return "\n".join(section(json.loads(path.read_text())) for path in results)


def page(text: str) -> str:
    """Text of the page with the tables of the current results."""
    by_make = "\n".join(makes.lines(RESULTS))
    text = MAKES.sub(lambda match: f"{match[1]}\n{by_make}\n\n{match[2]}", text)
    return BETWEEN.sub(lambda match: f"{match[1]}\n{tables()}\n{match[2]}", text)


def section(result: dict[str, Any]) -> str:
    machine = result["hardware"]
    where = f"{machine['cores']} cores of {machine['processor']}, torch {machine['torch']}"
    gpu = f", {machine['gpu']}" if machine["gpu"] else ""
    bf16 = f", bf16 is {machine['bf16']}" if "bf16" in machine else ""
    lines = [
        f"### {result['name']}",
        "",
        f"Commit `{result['commit']}`, {where}{bf16}{gpu}.",
        "",
        "| figure | workload | ours | peer | ratio | goal | met |",
        "|---|---|---:|---|---:|---:|---|",
    ]
    for row in result["rows"]:
        peer = "–" if row["peer"] is None else f"{_number(row['peer'])} ({row['peer_name']})"
        met = {True: "yes", False: "**no**", None: "–"}[row["met"]]
        ours = f"{_number(row['ours'])} {row['unit']}"
        cells = [row["figure"], row["workload"], ours, peer, _number(row["ratio"]), _number(row["goal"]), met]
        lines.append(_line(cells))
    return "\n".join([*lines, *extra_tables(result)]) + "\n"


def extra_tables(result: dict[str, Any]) -> list[str]:
    """Markdown lines of a result's `tables`."""
    lines = []
    for table in result.get("tables", ()):
        header, *rest = table["lines"]
        lines += ["", f"{table['title']}:", "", _line(header), "|---" * len(header) + "|", *map(_line, rest)]
        if note := table.get("note"):
            lines += ["", note]
    return lines


def _line(cells: Sequence[str]) -> str:
    return "| " + " | ".join(cells) + " |"


def _number(value: float | None) -> str:
    if value is None:
        return "–"
    return f"{value:,.0f}" if abs(value) >= 1000 else f"{value:.3g}"


if __name__ == "__main__":
    PAGE.write_text(page(PAGE.read_text()))
