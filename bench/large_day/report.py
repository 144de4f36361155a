"""Rows of the large day."""

from __future__ import annotations

import statistics
from collections.abc import Sequence

from bench.large_day.log import IDS
from bench.large_day.play import TABLES, Day, Sizes
from bench.large_day.watch import Moment, longest_gap, rate, seconds_of
from bench.rows import bounded, row

STALL_GOAL_MS = 50.0
"""Longest wait of training for a checkpoint, with TABLES full."""
RESTORE_GOAL_S = 20.0
"""Longest time until 10 million rows are read again."""
DELTA_GOAL = 2.0
"""All rows, to those of the first version after a restart."""
CHECKPOINT, VERSION = "livectr_checkpoint_seconds", "livectr_publish_copy_seconds"
WRITTEN, SERVED = "livectr_checkpoint_write_seconds", "livectr_publish_seconds"


def report(day: Day, sizes: Sizes, *, quick: bool) -> dict[str, object]:
    """Result of the benchmark. Goals are those of the full size."""

    def goal(number: float) -> float | None:
        return None if quick else number

    last = day.afternoon[-1]
    millions = last.all_rows / 1e6
    live = f"{millions:.1f} million rows in {len(TABLES)} tables, {sizes.live:,} visits/s of {IDS} ids"
    full = f"{millions:.1f} million rows in {len(TABLES)} tables, log read as fast as it goes"
    restart = f"{day.restored_rows / 1e6:.1f} million rows, killed with SIGKILL"
    copy = f"{day.copied_rows / 1e6:.1f} million rows, log read as fast as it goes"
    ended, versions = day.evening[-1], _between(day.afternoon, "livectr_published_rows_total")
    rows = [
        *_waits("a checkpoint", CHECKPOINT, day.afternoon, live, goal(STALL_GOAL_MS)),
        *_waits("a version", VERSION, day.afternoon, live, None),
        *_waits("a checkpoint", CHECKPOINT, [*day.evening, *day.copy], full, None),
        _median("a checkpoint, from its begin until it exists", WRITTEN, day.afternoon, live),
        _median("a version, from its begin until it is served", SERVED, day.afternoon, live),
        row("rows of a version", live, "rows", versions / max(1, len(seconds_of(day.afternoon, SERVED)))),
        row("examples until the tables are full", "the morning", "examples/s", rate(day.growth)),
        bounded("restart, until the checkpoint is read", restart, "s", day.restored_s, goal=None),
        bounded(
            "restart, until the checkpoint is read, of 10 million rows",
            restart,
            "s",
            day.restored_s * 1e7 / max(day.restored_rows, 1.0),
            goal=goal(RESTORE_GOAL_S),
        ),
        row("restart, until the first version is served", restart, "s", day.first_s),
        row(
            "rows of the first version after the restart",
            restart,
            "rows",
            max(1.0, day.first.published_rows),  # none, where Redis had all that the checkpoint has
            peer_name="all rows",
            peer=day.first.all_rows,
            better="less",
            goal=goal(DELTA_GOAL),
        ),
        row("new Redis, until it holds a whole version", copy, "s", day.empty_s),
        row("copy for a new Redis", copy, "rows/s", day.copied_rows / _copy_s(day)),
        row(
            "training beside the copy",
            copy,
            "examples/s",
            rate(day.copy),
            peer_name="before Redis ended",
            peer=rate(day.evening),
        ),
        row("training waits for the copy", copy, "ms", 1e3 * max(seconds_of(day.copy, VERSION), default=0.0)),
        row(
            "longest time without an example, beside the copy",
            copy,
            "ms",
            1e3 * longest_gap(day.copy),
            peer_name="before Redis ended",
            peer=1e3 * longest_gap(day.evening),
            better="less",
        ),
        row(
            "most memory of the trainer, beside the copy",
            copy,
            "MiB",
            max(moment.resident_mib for moment in day.copy),
            peer_name="before Redis ended",
            peer=ended.resident_mib,
            better="less",
        ),
        row("most memory of the trainer", "the morning and the afternoon", "MiB", day.trainer_mib[0]),
        row("most memory of the trainer", "the restart and the evening", "MiB", day.trainer_mib[1]),
        row("most memory of Redis", "the morning and the afternoon", "MiB", day.redis_mib[0]),
        row("most memory of Redis", "the new one", "MiB", day.redis_mib[1]),
        row("a row in the trainer", live, "bytes", _sum(last, "livectr_table_bytes") / last.all_rows),
        row("a row in Redis", copy, "bytes", day.redis_mib[1] * 2**20 / day.copied_rows),
    ]
    return {"rows": rows, "settings": {"rows": sizes.rows, "live": sizes.live, "evening": sizes.evening}}


def _waits(
    what: str, histogram: str, course: Sequence[Moment], workload: str, goal: float | None
) -> list[dict[str, object]]:
    """Median and longest wait of training."""
    waited = [1e3 * s for s in seconds_of(course, histogram)]
    count = f"{workload}; {len(waited)} in a row"
    return [
        row(f"training waits for {what}, median", count, "ms", statistics.median(waited or [0.0])),
        bounded(f"training waits for {what}, longest", count, "ms", max(waited, default=0.0), goal=goal),
    ]


def _median(figure: str, histogram: str, course: Sequence[Moment], workload: str) -> dict[str, object]:
    return row(figure, workload, "s", statistics.median(seconds_of(course, histogram) or [0.0]))


def _copy_s(day: Day) -> float:
    """Seconds of the copy, from its begin until it was served."""
    return seconds_of(day.copy, SERVED)[-1]


def _between(course: Sequence[Moment], counter: str) -> float:
    """Growth of a counter."""
    return course[-1].value(counter) - course[0].value(counter)


def _sum(moment: Moment, name: str) -> float:
    return sum(v for (sample, _), v in moment.samples.items() if sample == name)
