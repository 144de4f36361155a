"""Unit of event times: numbers are converted to milliseconds, and a probable wrong unit is detected.

Without a declared unit, times are milliseconds. Then a number is rejected that lies in 2000 to 2100 as
seconds, micro- or nanoseconds: as milliseconds it would be in 1970 or thousands of years ahead. Small
numbers, such as the times of simulated logs that count from 0, are accepted. A declared unit is not checked.
"""

from __future__ import annotations

from typing import TypeAlias

import numpy as np
import numpy.typing as npt
import pyarrow as pa

UNITS = ("ms", "s", "us", "ns")
_YEAR_2000_S, _YEAR_2100_S = 946_684_800, 4_102_444_800
_PER_SECOND = {"s": 1, "us": 10**6, "ns": 10**9}
LIKELY = {unit: (_YEAR_2000_S * per, min(_YEAR_2100_S * per, 2**63 - 1)) for unit, per in _PER_SECOND.items()}
"""Unit → range of numbers that are probably times in it and not in milliseconds, both ends included."""
_LEAST_LIKELY, _MILLISECONDS_BELOW = LIKELY["s"][0], LIKELY["us"][0]
_MOST_S = (2**63 - 1) // 1000

Mask: TypeAlias = npt.NDArray[np.bool_]


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


def _likely(array: pa.Array) -> dict[str, Mask]:
    numbers = (array.fill_null(0) if array.null_count else array).to_numpy(zero_copy_only=False)
    found: dict[str, Mask] = {}
    if not len(numbers) or (numbers.min() > LIKELY["s"][1] and numbers.max() < _MILLISECONDS_BELOW):
        return found
    for unit, (least, most) in LIKELY.items():
        mask = (numbers >= least) & (numbers <= most)
        if mask.any():
            found[unit] = mask
    return found
