"""Hints: probable mistakes in usable data, reported once as a warning and in the run's report.

Unusable rows are another matter (`ingest.dead_letters.usable`): the rows here were read and learned.
"""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from typing import Any

from livectr.ingest.join.apart import CLICKED, SHOWN, Apart
from livectr.ingest.pipeline import Pipeline
from livectr.system.durations import duration_text

RUNNING_ROWS, END_ROWS = 10_000, 100
"""Fewest rows for a hint: while more rows are read, and at the end."""
LEAST_FOUND = 0.5
"""Share of look-ups with a row below which the ids of log and table seem not to agree."""
SOME_UNMATCHED, MOST_UNMATCHED = 0.05, 0.5
"""Shares of clicks without an impression: doubtful, and so many that join columns seem not to agree."""
MOST_APART = 0.01
"""Share of clicks in another partition than their impression above which topics are keyed wrongly."""
LEAST_SPREAD, LEAST_USERS = 0.1, 20
"""Share of users in several partitions of a topic from which it is not keyed by them, and fewest users that
show it where no click is lost."""
LEAST_CLICKS = 10
"""Clicks from which none that labels an impression is no chance."""
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


def not_finite(numbers: int) -> str:
    """Sentence about numbers of dense features that became 0; "" for none."""
    if not numbers:
        return ""
    return (
        f"{numbers:,} numbers of dense features were infinite, none, or beyond float32, and learned as 0: "
        "guard the division or the logarithm, or clip the column: ops.log1p, ops.clip, or fill="
    )


def short_log(waiting: Mapping[str, int], examples: int) -> str:
    """Sentence about a log of which nothing is learned, since all of it waits for clicks; "" for any other.

    Args:
        waiting: `trainer.report.Report.waiting`.
        examples: that were learned.
    """
    if not waiting or examples:
        return ""
    return (
        f"nothing was learned: the log ends before window={duration_text(waiting['window_ms'])} of an "
        "impression has passed. Give more of the log, or leave at_end=keep out"
    )


def hints(
    pipeline: Pipeline, counts: Mapping[str, Any], apart: Apart, *, final: bool, fresh: bool = True
) -> Iterator[tuple[str, str]]:
    """Find probable mistakes.

    Args:
        pipeline: that is trained.
        counts: counters of this process, by the names of `ingest.join.stats.SourceStats`.
        apart: clicks in another partition than their impression.
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
        wrong = (
            f"label column `{log.label_column}`"
            if log.label_column is not None
            else f"join on {', '.join(log.on)}"
        )
        yield "labels", f"none of {counts['examples']:,} examples has label 1: is the {wrong} right?"
    if clicks is not None:
        yield from _join_hints(pipeline, counts, apart, least, final=final)
    yield from _label_hints(pipeline, counts, least, final=final)
    for lookup in pipeline.joined:
        if lookup.counted is not None:
            continue
        topic = lookup.table.topic
        matched, missing = (counts["lookups"].get(topic, {}).get(name, 0) for name in ("found", "missing"))
        if matched + missing >= least and matched < LEAST_FOUND * (matched + missing):
            yield (
                f"{topic} found",
                f"table {topic} has a row for {matched:,} of {matched + missing:,} look-ups "
                f"({matched / (matched + missing):.0%}), the others are read as null: are "
                f"{shown.topic}.{lookup.on} and {topic}.{lookup.table.key} the same ids, written alike?",
            )


def _label_hints(
    pipeline: Pipeline, counts: Mapping[str, Any], least: int, *, final: bool
) -> Iterator[tuple[str, str]]:
    """Hints about labels beside the click."""
    log = pipeline.log
    for label in log.more_labels:
        found, topic = counts.get("labels", {}).get(label.name, {}), label.stream.topic
        lonely = found.get("unmatched", 0) + found.get("waiting", 0)
        events = lonely + found.get("matched", 0) + found.get("late", 0)
        if events == counts["events"][topic] == 0 and counts["examples"] >= least:
            yield (
                f"{topic} empty",
                f"{topic} has no rows: every label {label.name!r} is 0. Are they written to topic {topic}?",
            )
        if events >= least and lonely > (SOME_UNMATCHED if final else MOST_UNMATCHED) * events:
            on = ", ".join(label.columns(log.on))
            yield (
                f"{topic} unmatched",
                f"{lonely:,} of {events:,} {topic} ({lonely / events:.0%}) have no row of "
                f"{log.impressions.topic} with their {on}: are these the same ids, and is label "
                f"{label.name!r}'s window={label.window_ms} ms long enough?",
            )


def remembered(before: Mapping[str, str], found: Mapping[str, str]) -> dict[str, str]:
    """Hints of a run so far, kind → words, with those that were just found.

    A click whose impression is in another partition has no row until that partition is read: once clicks are
    known to be apart, and no more are without a row, an earlier hint of rows that lack is withdrawn.
    """
    withdrawn = {"unmatched"} if "apart" in found and "unmatched" not in found else set()
    return {kind: words for kind, words in before.items() if kind not in withdrawn} | dict(found)


def _join_hints(
    pipeline: Pipeline, counts: Mapping[str, Any], apart: Apart, least: int, *, final: bool
) -> Iterator[tuple[str, str]]:
    log = pipeline.log
    assert log.clicks is not None
    on, shown = ", ".join(log.on), log.impressions.topic
    rows, clicks = counts["events"][shown], counts["events"][log.clicks.topic]
    lonely = counts["unmatched_clicks"] + counts["waiting_clicks"]
    if apart.share > MOST_APART and (final or apart.clicks >= END_ROWS):
        yield "apart", f"{apart_words(pipeline, apart)}: {apart_cause(pipeline, apart)}"
        lonely -= round(apart.share * clicks)
    elif split := split_histories(pipeline, apart):
        yield "histories", split
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


def apart_words(pipeline: Pipeline, apart: Apart) -> str:
    """Sentence that counts the clicks in another partition than their impression, without its end."""
    assert pipeline.log.clicks is not None
    of = "" if apart.whole else " that were looked at"
    return (
        f"{apart.apart:,} of {apart.clicks:,} {pipeline.log.clicks.topic}{of} ({apart.share:.0%}) are in "
        "another partition than their impression, so they label nothing"
    )


def no_click_labels(pipeline: Pipeline, counts: Mapping[str, Any]) -> str:
    """Sentence about a whole log's clicks if none labels an impression; "" if some do, or they are few.

    Args:
        pipeline: that was trained.
        counts: counters of the run, by the names of `ingest.join.stats.SourceStats`.
    """
    shown, clicked = pipeline.log.impressions, pipeline.log.clicks
    if clicked is None or counts["events"][shown.topic] == 0:
        return ""
    lonely = counts["unmatched_clicks"] + counts["waiting_clicks"]
    late, on = counts["late_clicks"], ", ".join(pipeline.log.on)
    if counts["matched_clicks"] or counts["late_positives"] or lonely + late < LEAST_CLICKS:
        return ""
    missed = [f"{lonely:,} have no row of {shown.topic} with their {on}"] if lonely else []
    missed += [f"{late:,} come after window={pipeline.log.window_ms} ms"] if late else []
    return (
        f"no row of {clicked.topic} labels an impression: {' and '.join(missed)}, so every label is 0; "
        "`livectr check` looks closer"
    )


def split_histories(pipeline: Pipeline, apart: Apart) -> str:
    """Words on a topic whose users are in several partitions, each with a part of their history; "" for none.

    Args:
        pipeline: that is checked or trained.
        apart: of its topics; few of the clicks are apart.
    """
    enough = max(several for _, several in apart.spread) >= LEAST_USERS
    if not pipeline.history_roots or not enough or not (words := _not_keyed(pipeline, apart)):
        return ""
    return f"{words}, for a history has only the clicks of its partition"


def _not_keyed(pipeline: Pipeline, apart: Apart) -> str:
    """Words on a topic that is not keyed as declared, and what to change; "" for none."""
    log = pipeline.log
    assert log.clicks is not None
    for stream, of in ((log.impressions, SHOWN), (log.clicks, CLICKED)):
        spread, several = apart.spread[of]
        if spread > LEAST_SPREAD * several:
            return (
                f"{stream.topic} is not keyed by {stream.key}: {spread:,} of {several:,} with several rows "
                f"are in several partitions; write it again with {stream.key} as the message key"
            )
    return ""


def apart_cause(pipeline: Pipeline, apart: Apart) -> str:
    """Words on why clicks are in another partition than their impression, and what to change."""
    log = pipeline.log
    assert log.clicks is not None
    shown, clicked = log.impressions, log.clicks
    if 2 * apart.other_user > apart.apart:
        return (
            f"{clicked.topic}.{clicked.key} is not the {shown.key} of the impression; write it alike in both "
            f"topics, or declare another column as the key of both, such as {log.on[0]}, and write both with "
            "it as the message key"
        )
    if words := _not_keyed(pipeline, apart):
        return words
    if apart.partitions[SHOWN] != apart.partitions[CLICKED]:
        return (
            f"{shown.topic} has rows in {apart.partitions[SHOWN]} partitions, {clicked.topic} in "
            f"{apart.partitions[CLICKED]}; write one of them again with as many partitions as the other"
        )
    return (
        "their message keys are written otherwise (0017 is not 17), or by another partitioner; write both "
        f"topics with the same key, {shown.key}, and the same partitioner"
    )
