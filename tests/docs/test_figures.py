"""Figures that pages quote are those of bench/results: a new result shows which pages it changes."""

from __future__ import annotations

import json
import re
from pathlib import Path
from typing import Any

import pytest

ROOT = Path(__file__).parents[2]


def rows(name: str) -> list[dict[str, Any]]:
    """Rows of a benchmark's result."""
    found: list[dict[str, Any]] = json.loads((ROOT / "bench" / "results" / f"{name}.json").read_text())[
        "rows"
    ]
    return found


def prose(name: str) -> str:
    """Text of a page, without line breaks."""
    return " ".join((ROOT / "docs" / name).read_text().split())


@pytest.mark.parametrize("way", ["pretrained", '"wait"', '"vanilla"', '"fnw"', '"es_dfm"', "oracle"])
def test_the_table_of_late_labels_is_measured(way: str) -> None:
    page = (ROOT / "docs" / "pipeline.md").read_text()
    table = page[page.index("the ads' mean delays swing") :]
    (line,) = re.findall(rf"^\| `?{way}`?[^|]*\|(.*)\|$", table, re.MULTILINE)
    measured = {row["figure"]: row["ours"] for row in rows("delayed")}
    measured |= {  # the baseline is the peer of the others
        f"{row['figure'].split(',')[0]}, vanilla": row["peer"]
        for row in rows("delayed")
        if row["peer"] is not None
    }
    name = way.strip('"')
    columns = (("AUC", 3), ("log loss", 3), ("calibration", 2), ("R-AUC", 2), ("R-NLL", 2))
    for cell, (measure, digits) in zip(map(str.strip, line.split("|")), columns, strict=True):
        figure = f"{measure}, {name}"
        if cell in ("–", "0", "1"):  # not defined, or an end of the scale
            assert figure not in measured
        else:
            assert cell == f"{measured[figure]:.{digits}f}", figure


def test_what_the_bias_of_vanilla_costs_is_measured() -> None:
    (cost,) = [row["ours"] for row in rows("delayed") if row["figure"] == "AUC that vanilla's bias costs"]
    assert f"That alone costs a model that knows the truth {cost:.3f} of AUC" in prose("pipeline.md")


def test_the_seconds_of_a_resize_are_measured() -> None:
    measured = {row["figure"]: row["ours"] for row in rows("resize")}
    took = [f"{measured[f'SIGTERM to served, {a} → {b} ranks']:.0f}" for a, b in ((1, 3), (3, 2), (2, 1))]
    assert f"took {took[0]}, {took[1]} and {took[2]} s, and no request failed" in prose("deploy.md")
    assert measured["requests that failed or are degraded"] == 0


def test_differences_in_the_first_hour_are_measured() -> None:
    quoted = re.findall(r"0\.\d+ ± 0\.\d+", prose("first-hour.md"))
    measured = " ".join(row["workload"] for row in rows("learning"))
    assert len(quoted) >= 2 and not [one for one in quoted if one not in measured]
