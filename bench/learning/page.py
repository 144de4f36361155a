"""Tables and pictures of docs/first-hour.md, of learning.json: `python -m bench.learning.page`."""

from __future__ import annotations

import json
from collections.abc import Iterator, Mapping, Sequence
from pathlib import Path
from typing import Any

from bench.sections import RESULTS, ROOT, fill, line
from livectr.analysis.plots import curve

PAGE = ROOT / "docs" / "first-hour.md"
RESULT = RESULTS / "learning.json"
DRAWN = (
    "DeepFM",
    "LR",
    "Vowpal Wabbit",
    "Vowpal Wabbit, pairs",
    "river, FTRL",
    "Bayes",
    "TorchRec, row-wise AdaGrad",
    "FuxiCTR, DeepFM",
    "LightGBM, refit",
)
"""Learners in a picture; a table has all, but one line for Vowpal Wabbit's settings."""
VOWPAL = "Vowpal Wabbit"


def tables(result: Mapping[str, Any]) -> Iterator[tuple[str, list[list[str]]]]:
    """Name of each log, and its lines: learner, then AUC until each number of examples."""
    for table in result["tables"]:
        yield table["title"].removeprefix("AUC, "), table["lines"]


def text(result: Mapping[str, Any]) -> str:
    """A picture and a table for each log."""
    machine = result["hardware"]
    parts = [f"Commit `{result['commit']}`, {machine['cores']} cores of {machine['processor']}.", ""]
    notes = (table.get("note") for table in result["tables"])
    for (name, (header, *every)), note in zip(tables(result), notes, strict=True):
        lines = shortened(every)
        parts += [f"![AUC by examples, {name}](first-hour-{name}.svg)", ""]
        parts += [line([name, *header[1:]]), "|---|" + "---:|" * (len(header) - 1), *map(line, lines), ""]
        parts += [note, ""] if note else []
    return "\n".join(parts)


def shortened(lines: Sequence[list[str]]) -> list[list[str]]:
    """Lines with one for all settings of Vowpal Wabbit: the best at each number of examples."""
    settings = [values for learner, *values in lines if learner.startswith(VOWPAL)]
    if not settings:
        return [*lines]
    best = [f"{VOWPAL}, best of {len(settings)}", *map(max, zip(*settings, strict=True))]
    first = next(i for i, (learner, *_) in enumerate(lines) if learner.startswith(VOWPAL))
    rest = [line for line in lines[first:] if not line[0].startswith(VOWPAL)]
    return [*lines[:first], best, *rest]


def page(now: str, result: Mapping[str, Any]) -> str:
    """The page's text with the tables of the result."""
    return fill(now, "results", f"\n{text(result)}\n")


def draw(folder: Path, result: Mapping[str, Any]) -> list[Path]:
    """Learning curve of each log; returns the files."""
    files = []
    for name, (header, *lines) in tables(result):
        examples = [int(count.replace(",", "")) for count in header[1:]]
        aucs = {learner: [float(value) for value in values] for learner, *values in lines}
        series = {learner: (examples, aucs[learner]) for learner in DRAWN if learner in aucs}
        files.append(folder / f"first-hour-{name}.svg")
        curve(files[-1], f"AUC until so many examples: {name}", series, "examples", "AUC", log=True)
    return files


if __name__ == "__main__":
    measured = json.loads(RESULT.read_text())
    PAGE.write_text(page(PAGE.read_text(), measured))
    draw(PAGE.parent, measured)
