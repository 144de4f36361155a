"""Report of a training run, for a person: what was learned, how well, how fresh, and what was lost."""

from __future__ import annotations

import math
from collections.abc import Iterator, Mapping
from typing import Any

from rich.table import Table

from livectr.console import make_console
from livectr.system.durations import duration_text
from livectr.trainer.report import Report

MOST_TABLES = 12
"""Embedding tables that have a line; of more, the largest."""
MEASURES = {"auc": "AUC", "gauc": "GAUC", "logloss": "log loss", "calibration": "calibration"}


def show_trained(report: Report) -> None:
    """Print the tables of a report on standard output."""
    console = make_console()
    facts = Table(title="what was learned", title_justify="left", show_header=False)
    facts.add_column("what")
    facts.add_column("found", overflow="fold")
    for name, text in facts_of(report):
        facts.add_row(name, text.replace("[", "\\["))
    console.print(facts)
    if report.auc is not None:
        console.print(_quality(report))
    console.print(_tables(report))
    for hint in report.hints:
        console.print(f"! {hint}", highlight=False, markup=False, soft_wrap=True)


def facts_of(report: Report) -> Iterator[tuple[str, str]]:
    """(name, text) of each line of the first table."""
    shown = report.stream.get("clicked")
    clicks = f", {shown:,} with a click" if shown is not None else ""
    yield "examples", f"{report.examples_trained:,} in {report.steps:,} steps{clicks}"
    ranks = "1 rank" if report.world == 1 else f"{report.world} ranks"
    speed = f"{report.seconds:,.1f} s, {report.examples_per_second:,.0f} examples a second on {ranks}"
    yield "time", speed + ("" if report.complete else "; stopped before the end of the log")
    yield "rows", _rows(report)
    if report.waiting.get("impressions"):
        yield "waiting", _waiting(report.waiting)
    if report.dead_letters:
        yield "set aside", _set_aside(report)
    if clicks := _clicks(report):
        yield "clicks", clicks
    for label, counts in report.stream.get("labels", {}).items():
        if words := _label(counts):
            yield label, words
    yield "versions", _versions(report)
    yield "freshness", _freshness(report.freshness)


def _rows(report: Report) -> str:
    text = f"{report.events - report.refused:,} used, " + (
        f"{report.dead_letters:,}" if report.dead_letters else "none"
    )
    text += " set aside"
    repeated = sum(report.stream.get("duplicates", {}).values())
    text += f"; {repeated:,} of those used repeat others" if repeated else ""
    for topic, counts in report.stream.get("lookups", {}).items():
        of = counts["found"] + counts["missing"]
        text += f"; {topic}: a row for {counts['found'] / max(1, of):.0%} of {of:,} look-ups"
    return text


def _waiting(waiting: Mapping[str, int]) -> str:
    count, window = f"{waiting['impressions']:,} impressions", duration_text(waiting["window_ms"])
    if waiting["learned"]:
        return (
            f"{count} were learned before their window ({window}) had passed; if the log goes on, the next "
            "run with this checkpoint goes back before them, and learns them with all their clicks"
        )
    return (
        f"{count} wait for their clicks, until the log goes on by {window}: the next run with this "
        "checkpoint learns them"
    )


def _set_aside(report: Report) -> str:
    reasons = sorted(report.dead_letter_reasons.items(), key=lambda pair: (-pair[1], pair[0]))
    each = ", ".join(f"{count:,} {reason}" for reason, count in reasons if count)
    complaints = [
        f"{topic}: {rows['commonest']}"
        for topic, rows in report.rows.items()
        if rows.get("unusable") and rows.get("commonest")
    ]
    return "; ".join([each, *complaints, *([report.dead_letter_place] if report.dead_letter_place else [])])


def _clicks(report: Report) -> str:
    """Account of the clicks of a label join, without repeats; "" without any."""
    stream = report.stream
    found = {
        "label an impression": stream.get("matched_clicks", 0),
        "came too late": stream.get("late_clicks", 0),
        "have no impression": stream.get("unmatched_clicks", 0) + stream.get("waiting_clicks", 0),
        "wait for the next run": 0 if report.waiting.get("learned") else report.waiting.get("clicks", 0),
    }
    return _shares(found)


def _label(counts: Mapping[str, int]) -> str:
    """Account of the events of a label beside the click; "" without any."""
    found = {
        "label an impression": counts.get("matched", 0),
        "came too late": counts.get("late", 0),
        "have no impression": counts.get("unmatched", 0) + counts.get("waiting", 0),
    }
    pending = counts.get("pending", 0)
    waits = f"{pending:,} impressions wait for the end of its window" if pending else ""
    return "; ".join(filter(None, [_shares(found), waits]))


def _shares(found: Mapping[str, int]) -> str:
    every = sum(found.values())
    return ", ".join(f"{count:,} ({count / every:.1%}) {what}" for what, count in found.items() if count)


def _versions(report: Report) -> str:
    if not report.published_versions:
        return "none: --publish REDIS publishes, as soon as min_examples are learned"
    newest = f"; the newest is {report.version}" if report.version is not None else ""
    return f"{report.published_versions:,} with {report.published_rows:,} rows{newest}"


def _freshness(freshness: Mapping[str, float]) -> str:
    if not freshness:
        return "not measured: no event of this run's time was published"
    p50, p99 = (f"{freshness[name]:.3g} s" for name in ("p50_s", "p99_s"))
    return f"event to servable p50 {p50}, p99 {p99}, of {freshness['examples']:,} examples"


def _quality(report: Report) -> Table:
    table = Table(title="how well, each example scored before it was learned", title_justify="left")
    table.add_column("model")
    table.add_column("over")
    for name in ("examples", *MEASURES.values()):
        table.add_column(name, justify="right")
    measured = report.examples_trained if report.measured_examples is None else report.measured_examples
    own = {name: getattr(report, name) for name in MEASURES} | {"examples": measured}
    models: dict[str, Mapping[str, Any]] = {"rank": own | {"last_20_percent": report.last_20_percent}}
    models |= {"calibrated": report.calibrated} if report.calibrated else {}
    models |= {f"rank.{name}": of for name, of in report.targets.items()}
    models |= report.heads | report.challengers | report.shadows
    if report.prerank:
        models["prerank"] = report.prerank
    for role, measures in models.items():
        for over, values in (("whole run", measures), ("last fifth", measures.get("last_20_percent", {}))):
            examples = values.get("examples", measured if over == "whole run" else None)
            numbers = [_number(values.get(name)) for name in MEASURES]
            table.add_row(role, over, f"{examples:,}" if examples is not None else "–", *numbers)
    return table


def _tables(report: Report) -> Table:
    table = Table(title="embedding tables", title_justify="left")
    table.add_column("table")
    table.add_column("rows", justify="right")
    table.add_column("memory", justify="right")
    ordered = sorted(report.table_rows, key=lambda name: (-report.table_bytes.get(name, 0), name))
    for name in ordered[:MOST_TABLES]:
        table.add_row(name, f"{report.table_rows[name]:,}", size(report.table_bytes.get(name, 0)))
    if more := ordered[MOST_TABLES:]:
        rows, held = (sum(of.get(name, 0) for name in more) for of in (report.table_rows, report.table_bytes))
        table.add_row(f"{len(more)} more", f"{rows:,}", size(held))
    total = sum(report.table_rows.values()), sum(report.table_bytes.values())
    table.add_section()
    table.add_row("all", f"{total[0]:,}", size(total[1]))
    return table


def size(count: float) -> str:
    """Bytes for a person."""
    units = ("bytes", "KiB", "MiB", "GiB", "TiB")
    step = min(int(math.log(max(count, 1), 1024)), len(units) - 1)
    return f"{count / 1024**step:,.{min(step, 1)}f} {units[step]}"


def _number(value: float | None) -> str:
    return "–" if value is None or math.isnan(value) else f"{value:.4f}"
