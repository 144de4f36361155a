"""The tables of docs/dicm.md, of bench/results/dicm/ablation.json: `python -m bench.dicm_page`."""

from __future__ import annotations

import json
from statistics import fmean

from bench.ablation.ablate import write_tables
from bench.ablation.tables import tables_of
from bench.sections import RESULTS, ROOT, fill

PAGE = ROOT / "docs" / "dicm.md"
FOLDER = RESULTS / "dicm"


def page(text: str) -> str:
    """The page's text with the folder's tables and figures."""
    report = json.loads((FOLDER / "ablation.json").read_text())
    names = [table.name for table in tables_of(report["grids"])]
    names += ["figure6"] * ("table6" in names)
    machine = report["hardware"]
    seconds = fmean(report["seconds"].values())
    shown = [
        (FOLDER / "tables.md").read_text(),
        f"Commit `{report['commit']}`: {len(report['seconds'])} trainings of {seconds:.0f} s on "
        f"{machine['cores']} cores of {machine['processor']}.\n",
        *(f"![{name}](../{(FOLDER / f'{name}.svg').relative_to(ROOT)})" for name in names),
    ]
    body = "\n".join(shown)
    return fill(text, "results", f"\n{body}\n\n")


def main() -> None:
    """Write tables and figures again, and the page."""
    write_tables(json.loads((FOLDER / "ablation.json").read_text()), FOLDER)
    PAGE.write_text(page(PAGE.read_text()))


if __name__ == "__main__":
    main()
