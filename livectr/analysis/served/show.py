"""Tables of `livectr evaluate --served`."""

from __future__ import annotations

from collections.abc import Sequence

from rich import box
from rich.console import Console
from rich.table import Table

from livectr.analysis.served.report import Counts, ServedReport, VersionQuality
from livectr.analysis.served.skew import INPUTS, FeatureSkew


def show(report: ServedReport) -> None:
    """Print what was joined, the quality by side and version, and the skew by feature."""
    console, counts, skew = Console(), report.counts, report.skew
    for line in _lines(counts):
        _say(console, line)
    if report.sides:
        console.print(_qualities("side", report.sides))
    console.print(_qualities("version", report.versions))
    compared = counts.joined - counts.other_plans
    _say(console, f"Features of {compared:,} impressions: the server's against the trainer's")
    console.print(_skew(skew))
    moved = {row.reads[-1] for row in skew if row.differ}  # the least steady input of each
    reasons = [name for name in INPUTS if name in moved]
    for name in reasons:
        _say(console, f"{name}: {INPUTS[name]}.")
    if not reasons:
        _say(console, "No feature differs.")


def _lines(counts: Counts) -> list[str]:
    lines = [
        f"{counts.requests:,} served requests, {counts.joined:,} impressions of their candidates "
        f"(of {counts.impressions:,} in the log)"
    ]
    for count, text in (
        (counts.other_items, "impressions of served requests show an item that was no candidate"),
        (counts.other_plans, "impressions were served with the features of another pipeline, not compared"),
        (counts.repeated, "records repeat a request id; the last of each counts"),
        (counts.broken, "lines of the served log are no record"),
        (counts.unusable, "rows of the logs could not be used"),
    ):
        if count:
            lines.append(f"{count:,} {text}")
    return lines


def _qualities(title: str, rows: Sequence[VersionQuality]) -> Table:
    table = Table(box=box.SIMPLE_HEAD, pad_edge=False, padding=0)
    for name in (title, "impressions", "AUC", "GAUC", "users\nleft out", "log\nloss", "cali-\nbration"):
        table.add_column(name, justify="left" if name == title else "right", no_wrap=True)
    for row in rows:
        q = row.quality
        table.add_row(
            row.of,
            f"{q.examples:,}",
            _number(q.auc),
            _number(q.gauc),
            f"{q.skipped_users:,}",
            _number(q.logloss),
            _number(q.calibration),
            end_section=row.of == "all",
        )
    return table


def _skew(skew: Sequence[FeatureSkew]) -> Table:
    """Features that differ first, most often first."""
    table = Table(box=box.SIMPLE_HEAD, pad_edge=False, padding=0)
    for name in ("feature", "differ", "share", "largest\ndifference", "reads"):
        table.add_column(name, justify="left" if name in ("feature", "reads") else "right", no_wrap=True)
    for row in sorted(skew, key=lambda row: -row.differ):
        table.add_row(
            row.feature,
            f"{row.differ:,}",
            "–" if row.share != row.share else f"{row.share:.2%}",
            "" if row.largest is None else f"{row.largest:.3g}",
            " ".join(row.reads),
        )
    return table


def _number(value: float) -> str:
    return "–" if value != value else f"{value:.4f}"


def _say(console: Console, text: str) -> None:
    console.print(text, highlight=False, soft_wrap=True, markup=False)
