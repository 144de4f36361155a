"""Findings about a sample: right, doubtful or wrong, each with a sentence that says what to change."""

from __future__ import annotations

import math
import time
from collections.abc import Iterator
from dataclasses import dataclass

import numpy as np
import pyarrow as pa

from livectr.check.sample import Sample
from livectr.guess.columns import shortened
from livectr.guess.leaks import first_rows, tells
from livectr.ingest.addresses import log_folder
from livectr.ingest.dead_letters.letters import Reason
from livectr.ingest.hints import (
    LEAST_FOUND,
    MOST_APART,
    MOST_DUPLICATES,
    MOST_UNMATCHED,
    SOME_UNMATCHED,
    apart_cause,
    apart_words,
    split_histories,
)
from livectr.ingest.language.event_times import LIKELY
from livectr.ingest.language.roots import needs_counts, needs_statistics, roots_of
from livectr.ingest.pipeline import Pipeline
from livectr.ingest.sources.files import unread, unread_words
from livectr.kernels.stream.join import KEPT_AHEAD
from livectr.logs.times import shown

RIGHT, DOUBTFUL, WRONG = "✓", "!", "✗"
MOST_UNUSABLE = 0.01
"""Share of unusable rows of a topic from which they are a mistake."""
MOST_LATE = 0.01
MORE = 1.5
"""Sampling rate of rows with a click by that of others from which it is likely another rate."""
MOST_FOUND = 0.9
HOUR_MS = 3_600_000
ZONE_MS = 890_000
"""Difference of two clocks from which it is likely one of time zones: they differ by 15 minutes or more."""
UNLIKELY = 10.0
"""Labels of the other kind that an hour should have: with so many, none has a chance of 1 in 20,000."""
"""Share of look-ups with a row below which a table is doubtful."""
SURE_ROWS = 10_000
"""Rows without a click from which the label is a mistake; with fewer, clicks may be rare."""
ROW_ID = 0.98
LEAST_WORTHY = 0.5
"""Share of rows with a worth below which it is doubtful."""
FEW = 100
"""Rows below which shares say little."""


@dataclass(frozen=True)
class Finding:
    """Result of one check.

    Args:
        mark: RIGHT, DOUBTFUL or WRONG.
        what: that was checked.
        found: numbers of the sample.
        advice: sentence that says what to change; "" where nothing is.
    """

    mark: str
    what: str
    found: str
    advice: str = ""


def findings(pipeline: Pipeline, sample: Sample, now_ms: int | None = None) -> list[Finding]:
    """All findings, in the order of the data path.

    Args:
        pipeline: that was read for.
        sample: of its log.
        now_ms: present time; None: of the clock.
    """
    now_ms = time.time_ns() // 1_000_000 if now_ms is None else now_ms
    found = [*_rows(pipeline, sample), *_letters(sample)]
    if not len(sample):
        return found
    found += [
        *_columns(sample),
        *_leaks(sample),
        *_times(pipeline, sample, now_ms),
        *_labels(pipeline, sample),
        *_labels_by_hour(pipeline, sample),
        *_targets(pipeline, sample),
        *_worths(sample),
        *_position(pipeline),
    ]
    found += [
        *_joins(pipeline, sample),
        *_more_labels(pipeline, sample),
        *_lookups(pipeline, sample),
        *_histories(pipeline, sample),
    ]
    return [*found, *_fields(pipeline, sample), *_numbers(pipeline, sample)]


def unread_files(pipeline: Pipeline, source: str) -> list[Finding]:
    """Finding of each topic whose folder holds files that are not read.

    Args:
        pipeline: that names the topics.
        source: file:DIR, or another source, which has no folders.
    """
    if not source.startswith("file:"):
        return []
    found = []
    for topic in (
        *(stream.topic for stream in pipeline.streams),
        *(table.topic for table in pipeline.tables),
    ):
        folder = log_folder(source) / topic
        if names := unread(folder) if folder.is_dir() else []:
            words = unread_words(folder, names)
            found.append(Finding(DOUBTFUL, f"files of {topic}", f"{len(names):,} not read", words))
    return found


def _rows(pipeline: Pipeline, sample: Sample) -> Iterator[Finding]:
    for stream in pipeline.streams:
        read = sample.topics.get(stream.topic)
        rows, unusable = (read.rows, read.unusable) if read is not None else (0, 0)
        what = f"rows of {stream.topic}"
        if not rows:
            yield Finding(
                WRONG, what, "none", f"the log holds no row of {stream.topic}; write to it, or name another."
            )
        elif rows == unusable:
            yield Finding(WRONG, what, f"{rows:,}, none usable", "see the dead letters below.")
        else:
            yield Finding(RIGHT, what, f"{rows:,}" + (f", {unusable:,} unusable" if unusable else ""))
    if sample.failed:
        advice = (
            "their features could not be computed; the lists of a row are too long, or a text is too large."
        )
        yield Finding(WRONG, "features", f"{sample.failed:,} of {len(sample):,} rows failed", advice)
    if not len(sample):
        advice = (
            "no example came out of the log: mend the dead letters, or the stream's where=, which drops rows."
        )
        yield Finding(WRONG, "examples", "none", advice)


def _letters(sample: Sample) -> Iterator[Finding]:
    for reason, count in sorted(sample.letters.counts.items()):
        letter = sample.letters.first[reason]
        read = None if Reason(reason).of_example else sample.topics.get(letter.topic)
        share = count / max(1, read.rows if read is not None else len(sample))
        at = f"{letter.topic} partition {letter.place[1]}"
        at += f", offset {letter.offset}" if letter.offset >= 0 else ""
        found = f"{_count(count, 'row')} ({share:.2%}), such as {at}"
        found += f": {shortened(letter.value)}" if letter.value else ""
        detail = letter.detail if letter.detail[-1:] in ".?" else letter.detail + "."
        wrong = share > MOST_UNUSABLE or reason == Reason.BAD_FILE.value
        yield Finding(WRONG if wrong else DOUBTFUL, f"dead letters, {reason}", found, detail)
    if not sample.letters.counts:
        yield Finding(RIGHT, "dead letters", "none")


def _columns(sample: Sample) -> Iterator[Finding]:
    for name in sample.columns.column_names:
        column = sample.columns.column(name)
        missing = column.null_count / len(sample)
        some = column.drop_null()
        example = f", such as {shortened(some[0].as_py())}" if len(some) else ""
        found = f"{column.type}, {missing:.1%} null{example}" if missing else f"{column.type}{example}"
        if missing == 1:
            short = name.split(".")[-1]
            advice = f"every value is null: is the column written as {short!r}, and of a row that exists?"
            yield Finding(WRONG, f"column {name}", found, advice)
        elif missing > 0.5:
            advice = (
                "most values are null; null is read as 0 or an empty text, unless fill= says another value."
            )
            yield Finding(DOUBTFUL, f"column {name}", found, advice)
        else:
            yield Finding(RIGHT, f"column {name}", found)


def _leaks(sample: Sample) -> Iterator[Finding]:
    columns = [*sample.columns.columns, pa.array(sample.time_ms)]  # else rows of few columns seem equal
    firsts = first_rows(columns, sample.columns.num_rows)
    repeated, rows = int(np.count_nonzero(~firsts)), len(firsts)
    if repeated > MOST_DUPLICATES * rows:
        found = f"{repeated:,} of {rows:,} examples repeat an earlier one in every column"
        yield Finding(DOUBTFUL, "repeated rows", found, "was the log written twice?")
    once, label = sample.columns.filter(pa.array(firsts)), sample.label[firsts]
    for name in once.column_names:
        if words := tells(once.column(name), label > 0):
            advice = "is it known before the click? A request will not have it: leave it out of the features."
            yield Finding(DOUBTFUL, f"column {name}", words, advice)


def _times(pipeline: Pipeline, sample: Sample, now_ms: int) -> Iterator[Finding]:
    stream = pipeline.log.impressions
    if stream.time is None:
        yield Finding(
            DOUBTFUL,
            "time",
            "no time column: rows are in the order of the log",
            "name the stream's time=, so that max_age and histories mean time.",
        )
        return
    least, most = int(sample.time_ms.min()), int(sample.time_ms.max())
    span = f"{shown(least)} to {shown(most)} UTC"
    ahead = int(np.count_nonzero(sample.time_ms > now_ms + stream.max_ahead_ms))
    if ahead:
        found = f"{span}; {ahead:,} of {len(sample):,} rows lie in the future"
        advice = f"is {stream.time} in another unit or time zone? Say EventTime({stream.time!r}, unit=…)."
        yield Finding(WRONG, f"time {stream.time}", found, advice)
    elif most < LIKELY["s"][0] * 1000:
        advice = (
            f'times before 2000 are likely of another unit: say EventTime({stream.time!r}, unit="s"), '
            "unless the log counts from 0."
        )
        yield Finding(DOUBTFUL, f"time {stream.time}", span, advice)
    else:
        yield Finding(RIGHT, f"time {stream.time}", span)
    late = sample.late_ms > stream.max_disorder_ms
    share, longest = float(late.mean()), int(max(0, sample.late_ms.max()))
    found = f"{share:.1%} of rows come behind later rows, by at most {longest / 1000:g} s"
    if share > MOST_LATE and len(sample) >= FEW:
        advice = (
            f"sort the log by time, or say EventTime({stream.time!r}, max_disorder=…) of the usual delay, "
            "so that histories and labels see rows in their order."
        )
        yield Finding(DOUBTFUL, "order of times", found, advice)
    else:
        yield Finding(RIGHT, "order of times", found if longest else "no row comes behind a later row")


def _labels(pipeline: Pipeline, sample: Sample) -> Iterator[Finding]:
    clicks, rows = int(np.count_nonzero(sample.label)), len(sample)
    found = f"{clicks:,} of {rows:,}: a click rate of {clicks / rows:.2%}"
    log = pipeline.log
    of = (
        f"label column {log.label_column!r}"
        if log.label_column is not None
        else f"join on {', '.join(log.on)}"
    )
    if not clicks:
        joined = log.clicks is not None and sample.stats.events.get(log.clicks.topic, 0) >= FEW
        sure = rows >= (FEW if joined else SURE_ROWS)
        more = "" if sure else f" Clicks may be rare: try --rows {SURE_ROWS}."
        yield Finding(
            WRONG if sure else DOUBTFUL, "labels", found, f"no row has a click: is the {of} right?{more}"
        )
    elif sample.rates is not None and sample.rates[0] > MORE * sample.rates[1]:
        found += f", sampling rates of {sample.rates[0]:.2g} with a click and {sample.rates[1]:.2g} without"
        yield Finding(
            DOUBTFUL,
            "labels",
            found,
            "of a row with a click, too, sampling= is the rate at which it would have been kept without one: "
            "write the negatives' rate there.",
        )
    elif clicks == rows:
        yield Finding(WRONG, "labels", found, f"every row has a click: is the {of} right?")
    elif clicks > 0.9 * rows and rows >= FEW:
        yield Finding(
            DOUBTFUL, "labels", found, "so many clicks are unusual: are impressions without one logged?"
        )
    else:
        yield Finding(RIGHT, "labels", found)


def _labels_by_hour(pipeline: Pipeline, sample: Sample) -> Iterator[Finding]:
    """Hours in which every label is the same, where chance would give others."""
    if pipeline.log.impressions.time is None or not len(sample):
        return
    hours, at = np.unique(sample.time_ms // HOUR_MS, return_inverse=True)
    rows, clicks = np.bincount(at), np.bincount(at, weights=sample.label)
    rate = clicks.sum() / rows.sum()
    for what, same, usual in (
        ("no row has a click", clicks == 0, rows * rate),
        ("every row has a click", clicks == rows, rows * (1 - rate)),
    ):
        odd = same & (usual >= UNLIKELY)
        if odd.any() and not odd.all():
            first = int(np.argmax(odd))
            found = (
                f"{what} in {np.count_nonzero(odd):,} of {len(hours):,} hours, such as "
                f"{shown(int(hours[first]) * HOUR_MS)} UTC with {rows[first]:,} rows"
            )
            advice = "were clicks, or impressions without one, lost in these hours?"
            yield Finding(DOUBTFUL, "labels by hour", found, advice)


def _targets(pipeline: Pipeline, sample: Sample) -> Iterator[Finding]:
    rows, clicked = len(sample.clicked), sample.clicked
    for target in pipeline.targets:
        if target.label is None:
            continue  # of a stream: see _more_labels
        came = sample.targets[target.name]
        count, alone = int(np.count_nonzero(came)), int(np.count_nonzero(came & ~clicked))
        what, found = f"target {target.name}", f"{count:,} of {rows:,} rows: {count / max(1, rows):.2%}"
        if not count:
            sure = rows >= SURE_ROWS or np.count_nonzero(clicked) >= FEW
            advice = f"no row has it: is {target.label} the right column?"
            advice += "" if sure else f" It may be rare: try --rows {SURE_ROWS}."
            yield Finding(WRONG if sure else DOUBTFUL, what, found, advice)
        elif count == rows and rows >= FEW:
            yield Finding(WRONG, what, found, f"every row has it: is {target.label} the right column?")
        elif np.array_equal(came, clicked) and count >= FEW:
            found += ", the same rows as the click"
            yield Finding(DOUBTFUL, what, found, "is it another label than the click, or the same column?")
        elif target.after is not None and alone:
            found += f", {alone:,} of them without a click"
            advice = (
                "after='click' says that it comes only after a click: leave after= out if it also comes by "
                "itself, else look for the clicks that are missing."
            )
            yield Finding(DOUBTFUL, what, found, advice)
        else:
            yield Finding(RIGHT, what, found)


def _worths(sample: Sample) -> Iterator[Finding]:
    for label, worth in sample.worths.items():
        rows, some = len(worth), int(np.count_nonzero(worth))
        found = f"{some:,} of {rows:,} rows have one"
        if some:
            found += f", half of these at most {np.median(worth[worth > 0]):g}"
        mark, advice = RIGHT, ""
        if rows and some < LEAST_WORTHY * rows:
            mark = WRONG if not some else DOUBTFUL
            advice = (
                "a null, a negative number and a missing look-up row are worth nothing: is the column right, "
                "and does the table have these rows?"
            )
        yield Finding(mark, f"worth of {label}", found, advice)


def _position(pipeline: Pipeline) -> Iterator[Finding]:
    if pipeline.shown is None:
        return
    own = {root.name for root in roots_of(pipeline.shown.expr)}
    features = {**pipeline.plan.sparse, **pipeline.plan.dense}
    reading = [name for name, expr in features.items() if own & {root.name for root in roots_of(expr)}]
    if reading:
        found = f"{pipeline.shown.expr} is read by {', '.join(reading)}, too"
        advice = (
            "a place is known once items are ranked, so that a request has none, and a model that has the "
            "feature explains clicks by it: leave the feature out."
        )
        yield Finding(DOUBTFUL, "position", found, advice)


def _joins(pipeline: Pipeline, sample: Sample) -> Iterator[Finding]:
    log, stats = pipeline.log, sample.stats
    shown_topic = log.impressions.topic
    repeated, rows = stats.duplicates.get(shown_topic, 0), stats.events.get(shown_topic, 0)
    if repeated:
        found = f"{repeated:,} of {rows:,} rows repeat an earlier one and count once"
        doubtful = repeated > MOST_DUPLICATES * rows
        advice = "was the log written twice, or do these columns not name one impression?" if doubtful else ""
        yield Finding(DOUBTFUL if doubtful else RIGHT, f"repeated {shown_topic}", found, advice)
    if log.clicks is None:
        return
    clicks, ahead = stats.events.get(log.clicks.topic, 0), len(sample.ahead_ms)
    unmatched = stats.unmatched_clicks + stats.waiting_clicks
    if (apart := sample.apart).share > MOST_APART:
        yield Finding(WRONG, "partitions", apart_words(pipeline, apart), apart_cause(pipeline, apart) + ".")
        unmatched = max(0, unmatched - round(apart.share * clicks))
    elif split := split_histories(pipeline, apart):
        yield Finding(WRONG, "partitions", "users are in several partitions", split + ".")
    found = f"{unmatched:,} of {clicks:,} {log.clicks.topic} have no impression"
    found += " in any partition" if apart.share > MOST_APART else ""
    if ahead:
        half, most = np.percentile(sample.ahead_ms, (50, 99))
        found += f"; clicks are before theirs, by {half:,.0f} ms (p50) and {most:,.0f} ms (p99)"
    if sample.late_clicks:
        found += f"; {sample.late_clicks:,} come after the window of {log.window_ms / 1000:g} s"
    if stats.behind_clicks:
        found += f"; {stats.behind_clicks:,} are before theirs, but inside clock_slack: they label it"
    if sample.early:
        found += "; impressions left before their window"
    lost = max(unmatched, sample.late_clicks)  # a forgotten impression's click is both
    if lost <= SOME_UNMATCHED * clicks or clicks < FEW:
        yield Finding(RIGHT, "label join", found)
        return
    advice = (
        f"are {', '.join(log.on)} the same ids in both topics, are both clocks in one time zone, "
        "and is the window long enough?"
    )
    if 2 * ahead > min(unmatched, KEPT_AHEAD):
        cure = "write both in UTC" if half >= ZONE_MS else "set it right"
        advice = (
            f"the clock that writes {log.clicks.topic} is behind: {cure}, or give label_join "
            f'clock_slack="{math.ceil(most / 1000)}s".'
        )
    yield Finding(WRONG if lost > MOST_UNMATCHED * clicks else DOUBTFUL, "label join", found, advice)


def _more_labels(pipeline: Pipeline, sample: Sample) -> Iterator[Finding]:
    """Labels beside the click."""
    for label in pipeline.log.more_labels:
        counts, topic = sample.stats.labels.get(label.name, {}), label.stream.topic
        lonely, late = counts.get("unmatched", 0) + counts.get("waiting", 0), counts.get("late", 0)
        matched = counts.get("matched", 0)
        events = matched + late + lonely
        window = f"{label.window_ms / 1000:g} s"
        found = f"{matched:,} of {events:,} {topic} label a row; {late:,} come after the window of {window}"
        found += f"; {lonely:,} have no impression"
        on = ", ".join(label.columns(pipeline.log.on))
        if sample.early:  # an impression whose window is open may still get its label
            yield Finding(RIGHT, f"label {label.name}", f"{found}; rows left before their window")
        elif not events and len(sample) >= FEW:
            advice = f"no row has this label: are events written to {topic}?"
            yield Finding(DOUBTFUL, f"label {label.name}", found, advice)
        elif lonely + late > SOME_UNMATCHED * events and events >= FEW:
            advice = f"are {on} the same ids in both topics, and is the window long enough?"
            lost = lonely + late > MOST_UNMATCHED * events
            yield Finding(WRONG if lost else DOUBTFUL, f"label {label.name}", found, advice)
        else:
            yield Finding(RIGHT, f"label {label.name}", found)


def _lookups(pipeline: Pipeline, sample: Sample) -> Iterator[Finding]:
    for lookup in pipeline.joined:
        if lookup.counted is not None:
            continue
        topic = lookup.table.topic
        counts = sample.stats.lookups.get(topic, {})
        hits, misses = counts.get("found", 0), counts.get("missing", 0)
        share, held = hits / max(1, hits + misses), sample.tables.get(topic, 0)
        found = f"{hits:,} of {hits + misses:,} rows have one of its {held:,} rows ({share:.0%})"
        ids = f"{pipeline.log.impressions.topic}.{lookup.on} and {topic}.{lookup.table.key}"
        if not sample.tables.get(topic):
            yield Finding(
                WRONG, f"table {topic}", found, f"the table is empty: write its rows to topic {topic}."
            )
        elif share < LEAST_FOUND:
            yield Finding(WRONG, f"table {topic}", found, f"are {ids} the same ids, written alike?")
        elif share < MOST_FOUND:
            yield Finding(
                DOUBTFUL, f"table {topic}", found, "the others are read as null: is the table whole?"
            )
        else:
            yield Finding(RIGHT, f"table {topic}", found)


def _histories(pipeline: Pipeline, sample: Sample) -> Iterator[Finding]:
    for root in pipeline.history_roots:
        column = sample.columns.column(root.name)
        lengths = np.array([len(one) if one is not None else 0 for one in column.to_pylist()])
        empty = np.mean(lengths == 0)
        found = f"{lengths.mean():.2g} long on average, at most {lengths.max()}; {empty:.0%} empty"
        if lengths.max() == 0 and len(sample) >= FEW:
            advice = (
                "no user has a click before: look at more --rows, at within=, and at the keys of both topics."
            )
            yield Finding(DOUBTFUL, f"history {root.name}", found, advice)
        else:
            yield Finding(RIGHT, f"history {root.name}", found)


def _fields(pipeline: Pipeline, sample: Sample) -> Iterator[Finding]:
    rows, stream = len(sample), pipeline.log.impressions
    for name, expr in pipeline.plan.sparse.items():
        keys, offsets = sample.keys[name]
        empty = np.diff(offsets) == 0
        nulls = [np.asarray(sample.columns.column(root.name).is_null().to_numpy()) for root in roots_of(expr)]
        if nulls:
            empty |= np.logical_and.reduce(nulls)
        different = len(np.unique(keys))
        share = float(empty.mean())
        found = _count(different, "different key") + (f", {share:.1%} of rows have none" if share else "")
        timed = {root.name for root in roots_of(expr)} == {f"{stream.topic}.{stream.time}"}
        if share == 1:
            yield Finding(WRONG, f"field {name}", found, "no row has a key: look at its columns above.")
        elif different <= 1 and not timed and not needs_counts(expr):  # an hour may be all of the sample
            advice = "every row has the same key, which teaches nothing."
            yield Finding(DOUBTFUL, f"field {name}", found, advice)
        elif different > ROW_ID * rows and rows >= FEW and len(keys) <= rows:
            advice = "nearly every row has a key of its own, never seen again: leave it out, or bucketize."
            yield Finding(DOUBTFUL, f"field {name}", found, advice)
        else:
            yield Finding(RIGHT, f"field {name}", found)


def _numbers(pipeline: Pipeline, sample: Sample) -> Iterator[Finding]:
    if sample.replaced:
        advice = "guard the division or the logarithm: ops.log1p, ops.clip, or fill=."
        yield Finding(
            DOUBTFUL,
            "dense features",
            f"{sample.replaced:,} numbers were infinite or none, read as 0",
            advice,
        )
    learned = {
        name
        for feature, expr in pipeline.plan.dense.items()
        if needs_statistics(expr) or needs_counts(expr)
        for name in pipeline.plan.dense_names
        if name == feature or name.startswith(f"{feature}[")
    }
    for name, values in zip(pipeline.plan.dense_names, sample.dense.T, strict=True):
        if name in learned:
            yield Finding(RIGHT, f"dense {name}", "follows statistics or counters, which training begins")
            continue
        least, mean, most = float(values.min()), float(values.mean()), float(values.max())
        yield Finding(RIGHT, f"dense {name}", f"{least:.4g} to {most:.4g}, mean {mean:.4g}")


def _count(number: int, of: str) -> str:
    return f"{number:,} {of}" + ("" if number == 1 else "s")
