"""Table of an off-policy evaluation."""

from __future__ import annotations

from rich import box
from rich.console import Console
from rich.table import Table

from livectr.analysis.served.estimators import Estimate
from livectr.analysis.served.report import OffPolicyReport

_NAMES = {
    "log": "as it was served",
    "matched": "matched (biased)",
    "ips": "IPS",
    "snips": "SNIPS",
    "dr": "DR",
}


def show_off_policy(report: OffPolicyReport) -> None:
    """Print the counts, the overlap and the estimates."""
    console = Console()
    for line in _lines(report):
        console.print(line, highlight=False, soft_wrap=True, markup=False)
    console.print(_table("clicks of 1,000 requests", report.clicks))
    if report.value:
        console.print(_table("bid × clicks of 1,000 requests", report.value))


def _lines(report: OffPolicyReport) -> list[str]:
    first, last = report.versions
    version = f"v{first}" if first == last else f"v{first}–v{last}"
    places = "place" if report.places == 1 else f"{report.places} places"
    lines = [
        f"{report.requests:,} requests, {report.drawn:,} of them in a drawn order; the first {places} by "
        f"{report.server}, {version}",
        f"effective sample size {report.effective:,.0f}; weights: mean {report.mean_weight:.3f}, largest "
        f"{report.largest:.3g}",
    ]
    lines += [f"{count:,} requests are left out: {reason}" for reason, count in report.left_out.items()]
    if report.degraded:
        lines.append(f"{report.degraded:,} answers of {report.server} may lack rows")
    if report.unsupported:
        lines.append(f"{report.unsupported:.2%} of the requests never are answered so: IPS counts 0 for them")
    if report.clip is not None:
        lines.append(
            f"weights above {report.clip:g} count as {report.clip:g}: {report.clipped:.2%} of the requests. "
            "IPS then is too low"
        )
    return lines


def _table(title: str, rows: list[Estimate]) -> Table:
    table = Table(
        box=box.SIMPLE_HEAD, pad_edge=False, padding=(0, 1, 0, 0), title=title, title_justify="left"
    )
    for name in ("", "mean", "95 %", "against the log", "95 %"):
        table.add_column(name, justify="right" if name else "left", no_wrap=True)
    for row in rows:
        mean, low, high = (f"{1000 * number:,.1f}" for number in (row.mean, row.low, row.high))
        gain = ("", "")
        if row.of not in ("log", "matched"):
            gain = f"{1000 * row.gain:+,.1f}", f"{1000 * row.gain_low:+,.1f} … {1000 * row.gain_high:+,.1f}"
        table.add_row(_NAMES[row.of], mean, f"{low} … {high}", *gain)
    return table
