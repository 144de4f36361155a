"""Explanations of `livectr query rank --explain`: contributions as bars, largest first."""

from __future__ import annotations

from typing import Any

BAR = 16
"""Characters of the longest bar."""


def show(explanation: dict[str, Any], candidate: str) -> None:
    """Print the explanation of a candidate.

    Args:
        explanation: one of `answers.explained`.
        candidate: its columns, for the caption.
    """
    from rich import box
    from rich.console import Console
    from rich.table import Table

    console = Console()
    contributions, cold = explanation["contributions"], explanation["cold"]
    largest = max(map(abs, contributions.values()), default=0.0)
    table = Table(box=box.SIMPLE_HEAD, pad_edge=False)
    for name in ("feature", "contribution", "", "note"):
        table.add_column(name, justify="right" if name == "contribution" else "left", no_wrap=True)
    for name, value in contributions.items():
        if value:
            table.add_row(name, f"{value:+.4f}", _bar(value, largest), _note(name, explanation))
    words = f"{candidate}: logit {explanation['logit']:.4f}"
    if "scale" in explanation:
        mapped = explanation["scale"] * explanation["logit"] + explanation["shift"]
        words += f", calibrated {mapped:.4f}"
    if "position" in explanation:
        words += f"\n  as at the first {explanation['position']}: of a click on what is seen"
    for name, head in explanation.get("heads", {}).items():
        words += f"\n  head {name}: weight {head['weight']:.4f}, logit {head['logit']:.4f}"
    console.print(words, highlight=False, markup=False)
    console.print(table)
    still = [name for name, value in contributions.items() if not value]
    for words, names in (
        ("without effect", still),
        ("missing (no key)", explanation["missing"]),
        ("cold (no key with a trained row)", [n for n, (c, k) in (cold or {}).items() if c == k]),
    ):
        if names:
            console.print(f"{words}: {', '.join(names)}", highlight=False, markup=False)
    if cold is None:
        console.print("Redis could not tell which keys are cold", highlight=False, markup=False)


def _bar(value: float, largest: float) -> str:
    length = max(1, round(BAR * abs(value) / largest))
    return ("+" if value > 0 else "-") * length


def _note(name: str, explanation: dict[str, Any]) -> str:
    if name in explanation["missing"]:
        return "missing"
    cold, keys = (explanation["cold"] or {}).get(name, (0, 0))
    if not cold:
        return ""
    return "cold" if cold == keys else f"{cold} of {keys} keys cold"
