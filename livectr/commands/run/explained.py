"""Explanations of `livectr query rank --explain`: contributions as bars, largest first."""

from __future__ import annotations

from typing import Any

BAR = 16
"""Characters of the longest bar."""


def explained(answer: Any) -> list[dict[str, Any]]:
    """Explanations of a RankResponse, JSON-able.

    Returns:
        Of each candidate: its index, logit, heads of a hedge with weight and logit, scale and shift if it is
        calibrated, contributions by feature, largest first, the names of missing fields (no key), and of cold
        fields (no key with a trained row) and partly cold fields the number of cold keys and of keys. `cold`
        is None if Redis could not tell.
    """
    parts = answer.explanations
    names, fields = list(parts.features), list(parts.features)[: parts.fields]
    found = []
    for one in parts.candidates:
        pairs = sorted(zip(names, one.contributions, strict=True), key=lambda pair: -abs(pair[1]))
        counts = list(zip(fields, one.cold_keys, one.keys, strict=False))
        found.append(
            {
                "index": one.index,
                "logit": one.logit,
                **(
                    {
                        "heads": {
                            name: {"weight": weight, "logit": logit}
                            for name, weight, logit in zip(
                                parts.heads, parts.weights, one.head_logits, strict=True
                            )
                        }
                    }
                    if parts.heads
                    else {}
                ),
                **({"scale": one.scale, "shift": one.shift} if one.HasField("scale") else {}),
                "contributions": dict(pairs),
                "missing": [name for name, keys in zip(fields, one.keys, strict=True) if not keys],
                "cold": {n: [cold, keys] for n, cold, keys in counts if cold} if one.cold_keys else None,
            }
        )
    return found


def show(explanation: dict[str, Any], candidate: str) -> None:
    """Print the explanation of a candidate.

    Args:
        explanation: one of `explained`.
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
