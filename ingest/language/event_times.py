"""Event times: their declaration, and their unit.

Numbers are converted to milliseconds, and a probable wrong unit is detected.

Without a declared unit, times are milliseconds. Then a number is rejected that lies in 2000 to 2100 as
seconds, micro- or nanoseconds: as milliseconds it would be in 1970 or thousands of years ahead. Small
numbers, such as the times of simulated logs that count from 0, are accepted. A declared unit is not checked.
"""

from __future__ import annotations

from dataclasses import dataclass, field
from typing import TypeAlias

import numpy as np
import numpy.typing as npt
import pyarrow as pa

from livectr.system.durations import duration_ms
from livectr.system.errors import ConfigError

UNITS = ("ms", "s", "us", "ns")
_YEAR_2000_S, _YEAR_2100_S = 946_684_800, 4_102_444_800
_PER_SECOND = {"s": 1, "us": 10**6, "ns": 10**9}
LIKELY = {unit: (_YEAR_2000_S * per, min(_YEAR_2100_S * per, 2**63 - 1)) for unit, per in _PER_SECOND.items()}
"""Unit → range of numbers that are probably times in it and not in milliseconds, both ends included."""
_MILLISECONDS_BELOW = LIKELY["us"][0]
_MOST_S = (2**63 - 1) // 1000
EARLIEST_MS, LATEST_MS = -62_135_596_800_000, 253_402_300_799_999
"""Milliseconds of the years 1 to 9999, both ends included; other numbers are no event times."""

Mask: TypeAlias = npt.NDArray[np.bool_]

MAX_AHEAD_MS = 60_000


@dataclass(frozen=True)
class EventTime:
    """Event time of a stream: its column, its unit in the log, and bounds on wrong clocks and disorder.

    Args:
        column: int64 since 1970.
        unit: "ms", "s", "us" or "ns"; features and requests see milliseconds. None: milliseconds, and numbers
            that are probably in another unit are rejected.
        max_ahead: greatest lead of an event time over the broker's time, or over the times of other users; a
            record with a later time becomes a dead letter.
        max_disorder: longest delay with which a record may arrive and still be sorted into its place; the
            watermark lags by it.

    Raises:
        ConfigError: the unit or a duration is wrong.

    Example:
        shows = Stream(
            "shows", key="user_id", time=EventTime("ts", unit="s", max_disorder="5s"),
            columns={"user_id": "int64", "ts": "int64"},
        )
    """

    column: str
    unit: str | None = None
    max_ahead: str | int = MAX_AHEAD_MS
    max_disorder: str | int = 0
    max_ahead_ms: int = field(init=False, repr=False)
    max_disorder_ms: int = field(init=False, repr=False)

    def __post_init__(self) -> None:
        where = f"event time {self.column!r}"
        if self.unit not in (None, *UNITS):
            raise ConfigError(f"{where}: unit is {self.unit!r}; write one of {', '.join(UNITS)}")
        disorder_ms = duration_ms(self.max_disorder, f"{where}: max_disorder") if self.max_disorder else 0
        object.__setattr__(self, "max_ahead_ms", duration_ms(self.max_ahead, f"{where}: max_ahead"))
        object.__setattr__(self, "max_disorder_ms", disorder_ms)


def milliseconds(array: pa.Array, unit: str | None) -> tuple[pa.Array, dict[str, Mask]]:
    """Convert times to milliseconds.

    Args:
        array: int64[n].
        unit: as declared; None: milliseconds, checked.

    Returns:
        Times in ms, int64[n], and probable unit → rows to reject, bool[n]. Seconds whose milliseconds exceed
            int64 become null.
    """
    if unit is None:
        return array, _likely(array)
    if unit == "ms":
        return array, {}
    numbers = array.fill_null(0).to_numpy(zero_copy_only=False)
    missing = np.asarray(array.is_null().to_numpy(zero_copy_only=False))
    if unit == "s":
        missing = missing | (numbers > _MOST_S) | (numbers < -_MOST_S)
        converted = np.where(missing, 0, numbers) * 1000
    else:
        converted = numbers // (_PER_SECOND[unit] // 1000)
    return pa.array(converted, pa.int64(), mask=missing), {}


def likely_unit(time: int) -> str | None:
    """Unit of a number that is probably a time in another unit than milliseconds, or None."""
    return next((unit for unit, (least, most) in LIKELY.items() if least <= time <= most), None)


def _likely(array: pa.Array) -> dict[str, Mask]:
    numbers = (array.fill_null(0) if array.null_count else array).to_numpy(zero_copy_only=False)
    masks: dict[str, Mask] = {}
    if not len(numbers) or (numbers.min() > LIKELY["s"][1] and numbers.max() < _MILLISECONDS_BELOW):
        return masks
    for unit, (least, most) in LIKELY.items():
        mask = (numbers >= least) & (numbers <= most)
        if mask.any():
            masks[unit] = mask
    return masks
