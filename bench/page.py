"""Pages docs/benchmarks/NAME.md, and their overview docs/benchmarks.md: `python -m bench.page`.

Between comments such as <!-- results --> a page is made from bench/results/*.json, the rest by hand.
"""

from collections.abc import Callable, Mapping, Sequence
from pathlib import Path
from types import MappingProxyType

from bench import makes, overview, scaling_page
from bench.makes import Result
from bench.sections import RESULTS, ROOT, fill, section

OVERVIEW = ROOT / "docs" / "benchmarks.md"
FOLDER = ROOT / "docs" / "benchmarks"


def pages() -> dict[Path, str]:
    """Text of each page with the tables of the current results."""
    found = makes.read(RESULTS)
    texts = {OVERVIEW: overview.page(OVERVIEW.read_text(), found)}
    names = {*found, *(path.stem for path in FOLDER.glob("*.md"))}
    for path in (FOLDER / f"{name}.md" for name in sorted(names)):
        texts[path] = fill(path.read_text(), "results", tables(path.stem, found.get(path.stem, ())))
    return texts


def tables(name: str, results: Sequence[Result]) -> str:
    """Markdown of a benchmark's results: makes of CPU side by side, then each with all rows."""
    if not results:
        return f"\nNever run: no result is kept. `livectr bench {name}` measures it.\n\n"
    shown = SHOWN.get(name, section)
    parts = [shown(result) for result in results]
    side_by_side = makes.lines(results) if len(results) > 1 else []
    if side_by_side:
        parts.insert(0, "\n".join(["## Goals by make of CPU", "", *side_by_side, ""]))
    return "\n" + "\n".join(parts) + "\n"


def _goals(result: Result) -> str:
    """Section of the rows that have a goal alone."""
    return section(
        {**result, "rows": [row for row in result["rows"] if row["goal"] is not None], "tables": []}
    )


def _points(result: Result) -> str:
    """Section of docs/scaling.md's table."""
    return f"## {makes.make_of(result)}\n\n{scaling_page.table(result)}"


SHOWN: Mapping[str, Callable[[Result], str]] = MappingProxyType({"network": _goals, "scaling": _points})
"""Benchmarks of hundreds of rows → their sections."""


if __name__ == "__main__":
    for path, text in pages().items():
        path.write_text(text)
