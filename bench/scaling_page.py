"""The table and picture of docs/scaling.md, of bench/results/scaling.json: `python -m bench.scaling_page`."""

from __future__ import annotations

import json
import math
import re
from collections.abc import Sequence
from typing import Any

from bench.scaling import AXES, BASE
from bench.sections import RESULTS, ROOT, fill

PAGE = ROOT / "docs" / "scaling.md"
PICTURE = ROOT / "docs" / "scaling.svg"
RESULT = RESULTS / "scaling.json"
WAYS = {"partial": "#1b6ca8", "vectors": "#d1495b", "rows": "#3a7d44"}
NAMES = {"n": "ranks N", "b": "batch B", "f": "fields F", "k": "vector length K"}
SENT, STEP = "sent for the model", "step"

Key = tuple[str, int, int, int, int]
"""(figure, N, B, F, K)."""


def read(result: dict[str, Any]) -> dict[Key, dict[str, Any]]:
    """Rows by figure and point."""
    found = {}
    for row in result["rows"]:
        n, b, f, k = map(int, re.findall(r"\d+", row["workload"]))
        found[(row["figure"], n, b, f, k)] = row
    return found


def points(rows: dict[Key, dict[str, Any]]) -> list[tuple[int, int, int, int]]:
    """(N, B, F, K), ascending."""
    return sorted({key[1:] for key in rows})


def table(result: dict[str, Any]) -> str:
    """One line a point: of each way the bytes (and the formula's), and the step."""
    rows = read(result)
    heads = [f"{way}: kB (formula) | ms" for way in WAYS]
    machine = result["hardware"]
    lines = [
        f"Commit `{result['commit']}`, {machine['cores']} cores of {machine['processor']}.",
        "",
        "| N | B | F | K | " + " | ".join(heads) + " |",
        "|" + "---:|" * (4 + 2 * len(WAYS)),
    ]
    for point in points(rows):
        cells = [str(size) for size in point]
        for way in WAYS:
            sent, step = rows.get((f"{way}: {SENT}", *point)), rows.get((f"{way}: {STEP}", *point))
            cells.append(f"{sent['ours']:,.0f} ({sent['peer']:,.0f})" if sent else "–")
            cells.append(f"{step['ours']:.1f}" if step else "–")
        lines.append("| " + " | ".join(cells) + " |")
    return "\n".join([*lines, "", *_collectives(rows)]) + "\n"


def _collectives(rows: dict[Key, dict[str, Any]]) -> list[str]:
    """The slowest collectives of the base point, waiting for the other rank included."""
    base = (BASE.n, BASE.b, BASE.f, BASE.k)
    lines = [f"Where {BASE} waits longest, milliseconds a step by collective:", ""]
    for way in WAYS:
        prefix = f"{way}: in "
        spent = {key[0].removeprefix(prefix): row for key, row in rows.items() if key[0].startswith(prefix)
                 and key[1:] == base}  # fmt: skip
        times = ", ".join(f"`{collective}` {row['ours']:.1f}" for collective, row in spent.items())
        lines.append(f"- {way}: {times}")
    return lines


def page(text: str, result: dict[str, Any]) -> str:
    """The page's text with today's table."""
    return fill(text, "results", f"\n{table(result)}\n")


def picture(result: dict[str, Any]) -> str:
    """Bytes for the model against each size, both axes logarithmic: dots measured, lines by the formula."""
    rows = read(result)
    base = {"n": BASE.n, "b": BASE.b, "f": BASE.f, "k": BASE.k}
    width, height = 230, 200
    parts = [
        f'<svg xmlns="http://www.w3.org/2000/svg" width="{len(AXES) * width}" height="{height + 50}" '
        'font-family="sans-serif" font-size="11">',
        '<rect width="100%" height="100%" fill="white"/>',
    ]
    for i, axis in enumerate(AXES):
        parts.append(f'<g transform="translate({i * width + 45},20)">')
        parts += _panel(rows, axis, base, width - 65, height - 40)
        parts.append("</g>")
    for i, (way, colour) in enumerate(WAYS.items()):
        parts.append(f'<circle cx="{60 + 90 * i}" cy="{height + 38}" r="4" fill="{colour}"/>')
        parts.append(f'<text x="{70 + 90 * i}" y="{height + 42}">{way}</text>')
    return "\n".join([*parts, "</svg>"]) + "\n"


def _panel(
    rows: dict[Key, dict[str, Any]], axis: str, base: dict[str, int], width: int, height: int
) -> list[str]:
    series: dict[str, list[tuple[int, float, float]]] = {way: [] for way in WAYS}
    for point in points(rows):
        sizes = dict(zip(base, point, strict=True))
        if all(sizes[other] == base[other] for other in base if other != axis):
            for way, dots in series.items():
                if found := rows.get((f"{way}: {SENT}", *point)):
                    dots.append((sizes[axis], found["ours"], found["peer"]))
    dots = [dot for one in series.values() for dot in one]
    if not dots:
        return []
    x = scale([dot[0] for dot in dots], 0, width)
    y = scale([1, 10_000, *(value for dot in dots for value in dot[1:])], height, 0)
    lines = [f'<text x="{width / 2}" y="{height + 30}" text-anchor="middle">{NAMES[axis]}</text>']
    lines.append(f'<path d="M0,0V{height}H{width}" fill="none" stroke="#888"/>')
    for size in sorted({dot[0] for dot in dots}):
        lines.append(f'<text x="{x(size):.1f}" y="{height + 14}" text-anchor="middle">{size}</text>')
    for power in range(5):
        lines.append(f'<text x="-4" y="{y(10**power) + 4:.1f}" text-anchor="end">{10**power:,} kB</text>')
    for way, line in series.items():
        colour = WAYS[way]
        path = "L".join(f"{x(size):.1f},{y(formula):.1f}" for size, _, formula in line)
        lines.append(f'<path d="M{path}" fill="none" stroke="{colour}"/>' if path else "")
        lines += [
            f'<circle cx="{x(size):.1f}" cy="{y(ours):.1f}" r="3.5" fill="{colour}"/>'
            for size, ours, _ in line
        ]
    return lines


class Log:
    """Values to positions, by their logarithms."""

    def __init__(self, low: float, high: float, start: float, end: float) -> None:
        self.low, self.start = math.log(low), start
        self.factor = (end - start) / ((math.log(high) - self.low) or 1.0)

    def __call__(self, value: float) -> float:
        return self.start + (math.log(value) - self.low) * self.factor


def scale(values: Sequence[float], start: float, end: float) -> Log:
    """Logarithmic axis over all values, from one position to another."""
    return Log(min(values), max(values), start, end)


if __name__ == "__main__":
    measured = json.loads(RESULT.read_text())
    PAGE.write_text(page(PAGE.read_text(), measured))
    PICTURE.write_text(picture(measured))
