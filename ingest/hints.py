"""Hints: probable mistakes in usable data, reported once as a warning and in the run's report.

Unusable rows are another matter (`ingest.dead_letters.usable`): the rows here were read and learned.
"""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from typing import Any

from livectr.ingest.pipeline import Pipeline

RUNNING_ROWS, END_ROWS = 10_000, 100
"""Fewest rows for a hint: while more rows are read, and at the end."""
LEAST_FOUND = 0.5
"""Share of look-ups with a row below which the ids of log and table seem not to agree."""
SOME_UNMATCHED, MOST_UNMATCHED = 0.05, 0.5
"""Shares of clicks without an impression: doubtful, and so many that join columns seem not to agree."""
MOST_AUC = 0.97
"""Area under the ROC curve from which a feature seems to tell the label."""
MOST_DUPLICATES = 0.2
"""Share of impressions with a repeated key above which the key seems not to identify an impression."""


def leak_hint(auc: float | None, examples: int) -> str:
    """Sentence about an AUC that no click log gives; "" for any other."""
    if auc is None or auc < MOST_AUC or examples < END_ROWS:
        return ""
    return (
        f"AUC {auc:.3f} is seldom true: is a feature known only after the click? `livectr check` doubts "
        "columns that tell the label"
    )


def hints(
    pipeline: Pipeline, counts: Mapping[str, Any], *, final: bool, fresh: bool = True
) -> Iterator[tuple[str, str]]:
    """Find probable mistakes.

    Args:
        pipeline: that is trained.
        counts: counters of this process, by the names of `ingest.join.stats.SourceStats`.
        final: no more records are read.
        fresh: reading began at the start of the log.

    Returns:
        (kind, sentence) of each hint.
    """
    log = pipeline.log
    shown, clicks = log.impressions, log.clicks
    least = END_ROWS if final else RUNNING_ROWS
    rows = counts["events"][shown.topic]
    if final and fresh and rows == 0:
        yield f"{shown.topic} empty", f"{shown.topic}: the log holds no usable row, so nothing was learned"
    if clicks is not None and counts["events"][clicks.topic] == 0 and min(rows, counts["examples"]) >= least:
        yield (
            f"{clicks.topic} empty",
            f"{clicks.topic} has no rows, while {shown.topic} has {rows:,}: every label is 0. "
            f"Are clicks written to topic {clicks.topic}?",
        )
    elif counts["examples"] >= least and counts["clicked"] == 0:
        wrong = f"label column `{log.label}`" if log.label is not None else f"join on {', '.join(log.on)}"
        yield "labels", f"none of {counts['examples']:,} examples has label 1: is the {wrong} right?"
    if clicks is not None:
        yield from _join_hints(pipeline, counts, least, final=final)
    for lookup in pipeline.joined:
        topic = lookup.table.topic
        matched, missing = (counts["lookups"].get(topic, {}).get(name, 0) for name in ("found", "missing"))
        if matched + missing >= least and matched < LEAST_FOUND * (matched + missing):
            yield (
                f"{topic} found",
                f"table {topic} has a row for {matched:,} of {matched + missing:,} look-ups "
                f"({matched / (matched + missing):.0%}), the others are read as null: are "
                f"{shown.topic}.{lookup.on} and {topic}.{lookup.table.key} the same ids, written alike?",
            )


def _join_hints(
    pipeline: Pipeline, counts: Mapping[str, Any], least: int, *, final: bool
) -> Iterator[tuple[str, str]]:
    log = pipeline.log
    assert log.clicks is not None
    on, shown = ", ".join(log.on), log.impressions.topic
    rows, clicks = counts["events"][shown], counts["events"][log.clicks.topic]
    lonely = counts["unmatched_clicks"] + counts["waiting_clicks"]
    if clicks >= least and lonely > (SOME_UNMATCHED if final else MOST_UNMATCHED) * clicks:
        yield (
            "unmatched",
            f"{lonely:,} of {clicks:,} {log.clicks.topic} ({lonely / clicks:.0%}) have no row of {shown} "
            f"with their {on}: are these the same ids, is window={log.window_ms} ms long enough, and do the "
            "clocks agree? `livectr check` looks closer",
        )
    duplicates = counts["duplicates"].get(shown, 0)
    if rows >= least and duplicates > MOST_DUPLICATES * rows:
        yield (
            "duplicates",
            f"{duplicates:,} of {rows:,} {shown} repeat the {on} of an earlier row and were left out: was "
            f"the log written twice, or does {on} not name one impression?",
        )
