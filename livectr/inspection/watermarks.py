"""Picture of a log's watermarks, a line for each topic partition: `livectr inspect --source`."""

from __future__ import annotations

import time
from collections.abc import Sequence
from datetime import UTC, datetime
from typing import Any, Literal

from rich.box import SIMPLE_HEAD
from rich.table import Table

from livectr.console import make_console
from livectr.ingest.join.state import SourceState
from livectr.ingest.pipeline import Pipeline
from livectr.inspection.event_times import COVERED, PartitionTimes, measure

COLUMNS = (
    *(
        "topic",
        "p",
        "end",
        "waiting",
        "oldest",
        "newest",
        "lag",
        "p50",
        "p99",
        "max",
        "wrong",
        "fit",
        "state",
    ),
)
WIDTH, LEAST_WIDTH = 140, 100
"""Widths of a terminal below which event times fold, date over time of day, and the oldest are left out."""
_STEPS_MS = [
    k * unit for unit in (1, 1_000, 60_000, 3_600_000) for k in (1, 2, 5, 10, 20, 30, 60, 100, 200, 500)
]
_UNITS = (86_400_000, "d"), (3_600_000, "h"), (60_000, "m"), (1_000, "s")


def show_watermarks(pipeline: Pipeline, url: str, state: SourceState | None) -> None:
    """Print the event times of a log, and who holds its watermark back.

    Args:
        pipeline: its event streams are read.
        url: `kafka://…` or `file:…`.
        state: what a trainer has read, by its checkpoint; None: everything waits.

    Raises:
        ConfigError: no stream has a time column, or a topic or folder does not exist.
        ConnectError: no broker answers.
    """
    lines = measure(url, pipeline.streams, state=state)
    now_ms = time.time_ns() // 1_000_000
    console = make_console()
    narrow = console.width < WIDTH
    looks: dict[str, Any] = {"box": SIMPLE_HEAD, "padding": (0, 1, 0, 0), "pad_edge": False} if narrow else {}
    table = Table(title=f"event times of {url}", title_justify="left", **looks)
    names = [name for name in COLUMNS if name != "oldest" or console.width >= LEAST_WIDTH]
    for name in names:
        folds = name == "topic" or (narrow and name in ("oldest", "newest"))
        justify: Literal["left", "right"] = "left" if name in ("topic", "state") else "right"
        table.add_column(
            name,
            justify=justify,
            no_wrap=not folds,
            overflow="fold",
            min_width=8 if name == "newest" else None,
        )
    for line in lines:
        cells = dict(zip(COLUMNS, _cells(line, now_ms), strict=True))
        table.add_row(*(cells[name] for name in names))
    console.print(table)
    console.print(
        "times are UTC; p50, p99, max: how far records are behind the newest before them; "
        f"fit: the max_disorder for {COVERED:.1%} of them",
        highlight=False,
    )
    for sentence in sentences(pipeline, lines):
        console.print(sentence, highlight=False, markup=False, soft_wrap=True)


def _cells(line: PartitionTimes, now_ms: int) -> list[str]:
    """Texts of a line, as COLUMNS."""
    p50, p99, covered, longest = line.delay_ms
    return [
        *(line.topic, str(line.partition), f"{line.end:,}", f"{line.waiting:,}"),
        *(_instant(line.oldest_ms), _instant(line.newest_ms), _lag(line.newest_ms, now_ms)),
        *(duration(p50), duration(p99), duration(longest), f"{line.wrong:,}", duration(suggested(covered))),
        "idle" if line.idle else "holds" if line.holds else "",
    ]


def sentences(pipeline: Pipeline, lines: Sequence[PartitionTimes]) -> list[str]:
    """Advice: who holds the watermark back, and which streams lack max_disorder."""
    told = []
    marks = [line.watermark_ms for line in lines if line.watermark_ms is not None and not line.idle]
    for line in lines:
        if line.holds and line.watermark_ms is not None and line.watermark_ms < max(marks):
            by = duration(max(marks) - line.watermark_ms)
            told.append(f"{line.topic} partition {line.partition} holds the watermark back, by {by}")
        elif line.holds and line.watermark_ms is None:
            told.append(
                f"{line.topic} partition {line.partition} holds the watermark back: nothing of it is read"
            )
    for stream in pipeline.streams:
        wanted = suggested(
            max((line.delay_ms[2] for line in lines if line.topic == stream.topic and line.read), default=0)
        )
        if wanted > stream.max_disorder_ms:
            told.append(
                f'{stream.topic}: EventTime("{stream.time}", max_disorder="{duration(wanted)}") gives '
                f"{COVERED:.1%} of the records their right place; it is {duration(stream.max_disorder_ms)}"
            )
    return told


def suggested(delay_ms: int) -> int:
    """Round a delay up to a duration that people write, in ms."""
    if delay_ms <= 0:
        return 0
    return next((step for step in sorted(_STEPS_MS) if step >= delay_ms), delay_ms)


def duration(ms: int) -> str:
    """Duration as settings write it, in its largest whole unit; above 10 s rounded to seconds."""
    if ms >= 10_000:
        ms = round(ms / 1000) * 1000
    for unit, name in _UNITS:
        if ms >= unit and ms % unit == 0:
            return f"{ms // unit}{name}"
    return f"{ms}ms" if ms else "0s"


def _lag(newest_ms: int | None, now_ms: int) -> str:
    if newest_ms is None:
        return ""
    lag = max(0, now_ms - newest_ms)
    unit = next((unit for unit, _ in _UNITS if lag >= 5 * unit), 1_000)
    return duration(lag // unit * unit)


def _instant(ms: int | None) -> str:
    return "" if ms is None else datetime.fromtimestamp(ms / 1000, UTC).strftime("%m-%d %H:%M:%S")
