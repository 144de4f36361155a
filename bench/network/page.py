"""Section and picture of docs/scaling.md, of bench/results/network.json: `python -m bench.network.page`."""

from __future__ import annotations

import json
import re
from typing import Any

from bench.network.predict import Line
from bench.scaling_page import scale
from bench.sections import RESULTS, ROOT, extra_tables, fill

PAGE = ROOT / "docs" / "scaling.md"
PICTURE = ROOT / "docs" / "network.svg"
RESULT = RESULTS / "network.json"
SPEED = re.compile(r"(.+) at (?:([\d.]+) Gbit/s|no limit)")
COLOURS = {
    "ours, partial": "#1b6ca8",
    "ours, vectors": "#d1495b",
    "ours, rows": "#3a7d44",
    "ours, auto": "#000000",
    "ours, auto, bf16": "#8a8a8a",
    "TorchRec DMP table-wise": "#e08e0b",
    "TorchRec DMP row-wise": "#7a4b94",
    "mesh, synchronous": "#e08e0b",
}
UNLIMITED = 40.0
"""Place of "no limit" on the axis, Gbit/s."""
WIDTH, HEIGHT = 270, 220

Speeds = dict[str, dict[float | None, float]]
"""contestant → Gbit/s (None: no limit) → samples a second."""


def panels(result: dict[str, Any]) -> dict[str, tuple[Speeds, dict[str, Line]]]:
    """Workload → measured speeds, and each contestant's prediction with samples in place of steps."""
    found: dict[str, tuple[Speeds, dict[str, Line]]] = {}
    sent: dict[tuple[str, str], float] = {}
    for row in result["rows"]:
        if row["figure"].endswith(": busiest wire"):
            sent[row["workload"], row["figure"].removesuffix(": busiest wire")] = 1e6 * row["ours"]
    for row in result["rows"]:
        match = SPEED.fullmatch(row["figure"])
        if match and match[1] in COLOURS:
            speeds, predicted = found.setdefault(row["workload"], ({}, {}))
            gbit = float(match[2]) if match[2] else None
            speeds.setdefault(match[1], {})[gbit] = row["ours"]
            if gbit is None:
                batch = int(re.findall(r"batch (\d+)", row["workload"])[0])
                own = sent[row["workload"], match[1]]
                predicted[match[1]] = Line(1 / row["ours"], own / batch)
    return found


def section(result: dict[str, Any]) -> str:
    """Tables of the result."""
    machine = result["hardware"]
    head = f"Commit `{result['commit']}`, {machine['cores']} cores of {machine['processor']}."
    return "\n".join([head, *extra_tables(result)]) + "\n"


def page(text: str, result: dict[str, Any]) -> str:
    """The page's text with the result's tables."""
    return fill(text, "network", f"\n{section(result)}\n")


def picture(result: dict[str, Any]) -> str:
    """Samples a second against bandwidth: dots measured, lines predicted."""
    shown = panels(result)
    legend = [name for name in COLOURS if any(name in speeds for speeds, _ in shown.values())]
    names = {COLOURS[name]: " / ".join(n for n in legend if COLOURS[n] == COLOURS[name]) for name in legend}
    height = HEIGHT + 40 + 16 * len(names)
    parts = [
        f'<svg xmlns="http://www.w3.org/2000/svg" width="{len(shown) * WIDTH}" height="{height}" '
        'font-family="sans-serif" font-size="11">',
        '<rect width="100%" height="100%" fill="white"/>',
    ]
    for i, (workload, (speeds, predicted)) in enumerate(shown.items()):
        parts.append(f'<g transform="translate({i * WIDTH + 55},25)">')
        parts += _panel(re.split(r"[,:]", workload)[0].replace("&", "&amp;"), speeds, predicted)
        parts.append("</g>")
    for i, (colour, name) in enumerate(names.items()):
        y = HEIGHT + 40 + 16 * i
        parts.append(
            f'<circle cx="60" cy="{y - 4}" r="4" fill="{colour}"/><text x="70" y="{y}">{name}</text>'
        )
    return "\n".join([*parts, "</svg>"]) + "\n"


def _panel(title: str, speeds: Speeds, predicted: dict[str, Line]) -> list[str]:
    width, height = WIDTH - 75, HEIGHT - 65
    gbits = sorted({gbit for own in speeds.values() for gbit in own if gbit is not None})
    x = scale([*gbits, UNLIMITED], 0, width)
    most = 1.05 * max(rate for own in speeds.values() for rate in own.values())
    step = 10 ** (len(str(int(most))) - 1)
    lines = [
        f'<text x="{width / 2}" y="-8" text-anchor="middle">{title}, samples/s</text>',
        f'<path d="M0,0V{height}H{width}" fill="none" stroke="#888"/>',
        f'<text x="{width / 2}" y="{height + 30}" text-anchor="middle">Gbit/s</text>',
    ]
    for gbit in (*gbits, UNLIMITED):
        name = "no limit" if gbit == UNLIMITED else f"{gbit:g}"
        lines.append(f'<text x="{x(gbit):.1f}" y="{height + 14}" text-anchor="middle">{name}</text>')
    for value in range(0, int(most) + 1, step * (2 if most > 5 * step else 1)):
        y = height * (1 - value / most)
        lines.append(f'<text x="-4" y="{y + 4:.1f}" text-anchor="end">{value:,}</text>')
    for name, own in speeds.items():
        colour, line = COLOURS[name], predicted[name]
        curve = [gbits[0] * (gbits[-1] / gbits[0]) ** (i / 40) for i in range(41)]
        path = "L".join(f"{x(gbit):.1f},{height * (1 - 1 / line.seconds(gbit) / most):.1f}" for gbit in curve)
        lines.append(f'<path d="M{path}" fill="none" stroke="{colour}"/>')
        for limit, rate in own.items():
            at = x(limit or UNLIMITED)
            lines.append(
                f'<circle cx="{at:.1f}" cy="{height * (1 - rate / most):.1f}" r="3" fill="{colour}"/>'
            )
    return lines


def main() -> None:
    """Write the section and the picture."""
    measured = json.loads(RESULT.read_text())
    PAGE.write_text(page(PAGE.read_text(), measured))
    PICTURE.write_text(picture(measured))


if __name__ == "__main__":
    main()
