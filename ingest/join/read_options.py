"""Options of an example source."""

from __future__ import annotations

from dataclasses import dataclass

from livectr.ingest.dead_letters.usable import MIN_USABLE
from livectr.ingest.limits import LIMITS, RecordLimits


@dataclass(frozen=True)
class ReadOptions:
    """Options of an `ExampleSource`.

    Args:
        until_end: read up to the end that the logs have at the start, then release all examples and end.
        until_idle_s: `ExampleSource.quiet` becomes true when nothing has arrived for this long; the caller
            then calls `finish` on every rank. None: never.
        idle_partition_s: in a live log, a topic partition without new records for this long stops blocking
            the others.
        full_tables: keep all rows and columns of look-up tables, as publishing needs them; False: only
            the columns that features read.
        limits: records beyond them become dead letters.
        min_usable: least share of a look-up table's rows that must be usable; see
            `ingest.dead_letters.usable.complaint`.
    """

    until_end: bool
    until_idle_s: float | None = None
    idle_partition_s: float = 2.0
    full_tables: bool = True
    limits: RecordLimits = LIMITS
    min_usable: float = MIN_USABLE
