"""Tables of a plan on standard output, or JSON."""

from __future__ import annotations

import json
from collections.abc import Iterable, Sequence
from dataclasses import asdict

from rich.table import Table

from livectr.console import make_console
from livectr.plan.deployment import Deployment
from livectr.plan.figure import Beyond, Figure
from livectr.plan.points import points
from livectr.system.byte_units import show_bytes


def print_json(plan: Deployment) -> None:
    """Print all figures, the points that they rest on, warnings and notes."""
    parts = plan.parts()
    found = {
        "model": plan.trainer.model.name,
        "parts": {part: [asdict(figure) for figure in figures] for part, figures in parts.items()},
        "points": {name: asdict(points()[name]) for name in used(parts.values())},
        "beyond": [asdict(one) for one in plan.beyond()],
        "notes": plan.notes(),
    }
    print(json.dumps(found, indent=2, ensure_ascii=False))


def show(plan: Deployment) -> None:
    """Print a table for each part, the measured points, and warnings."""
    console, parts = make_console(), plan.parts()
    numbers = {name: number for number, name in enumerate(used(parts.values()), start=1)}
    console.print(f"model  {plan.trainer.model.name}", highlight=False, markup=False)
    for part, figures in parts.items():
        table = Table(title=part, title_justify="left")
        table.add_column("figure")
        table.add_column("value", justify="right", no_wrap=True)
        table.add_column("how", overflow="fold")
        table.add_column("rests on", no_wrap=True)
        for figure in figures:
            table.add_row(figure.name, shown(figure), figure.how, _cited([numbers[n] for n in figure.points]))
        console.print(table)
    console.print(_points(numbers))
    if beyond := plan.beyond():
        console.print(_beyond(beyond))
    for note in plan.notes():
        console.print(f"! {note}", highlight=False, markup=False, soft_wrap=True)


def used(parts: Iterable[Sequence[Figure]]) -> list[str]:
    """Names of the points that figures rest on, each once."""
    return list(dict.fromkeys(n for figures in parts for figure in figures for n in figure.points))


def shown(figure: Figure) -> str:
    """Value with its unit, for a person."""
    value, unit = figure.value, figure.unit
    if isinstance(value, str):
        return value
    if unit in ("bytes", "bytes/s"):
        return show_bytes(round(value)) + ("/s" if unit == "bytes/s" else "")
    if unit == "s":
        for factor, small in ((1e6, "µs"), (1e3, "ms")):
            if value * factor < 1000:
                return f"{value * factor:.3g} {small}"
        return f"{value:,.0f} s" if value >= 100 else f"{value:.3g} s"
    number = f"{value:,.0f}" if value >= 100 or value == int(value) else f"{value:.3g}"
    return f"{number}{unit}" if unit.startswith("/") else f"{number} {unit}".replace(" 1/s", "/s").strip()


def _cited(numbers: Sequence[int]) -> str:
    """Ranges of whole numbers: "1–3, 7" of 1, 2, 3, 7."""
    runs: list[list[int]] = []
    for number in sorted(numbers):
        if runs and number == runs[-1][-1] + 1:
            runs[-1].append(number)
        else:
            runs.append([number])
    return ", ".join(f"{run[0]}–{run[-1]}" if len(run) > 1 else str(run[0]) for run in runs)


def _points(numbers: dict[str, int]) -> Table:
    table = Table(title="measured points", title_justify="left")
    for column in ("#", "value"):
        table.add_column(column, justify="right", no_wrap=True)
    for column in ("figure", "workload"):
        table.add_column(column, overflow="fold")
    for column in ("CPU", "commit", "bench/results"):
        table.add_column(column, overflow="fold")
    for name, number in numbers.items():
        point = points()[name]
        value = f"{point.value:,.0f}" if point.value >= 1000 else f"{point.value:.4g}"
        cpu = f"{point.cores} cores of {point.processor}"
        table.add_row(
            str(number),
            f"{value} {point.unit}",
            point.figure,
            point.workload,
            cpu,
            point.commit[:12],
            point.file,
        )
    return table


def _beyond(found: Sequence[Beyond]) -> Table:
    table = Table(title="! outside of what was measured", title_justify="left")
    table.add_column("size")
    for column in ("plan", "measured", "factor"):
        table.add_column(column, justify="right")
    for one in sorted(found, key=lambda one: -one.factor):
        table.add_row(one.size, _number(one.planned), _number(one.measured), f"{_number(one.factor)}×")
    return table


def _number(value: float) -> str:
    return f"{value:,.0f}" if value >= 100 else f"{value:.3g}"
