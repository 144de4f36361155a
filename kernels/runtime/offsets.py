"""Offsets of lists and strings in Arrow's format: int32, which must not wrap around."""

from __future__ import annotations

from typing import Any

import numpy as np
import numpy.typing as npt

from livectr.system.errors import InternalError

MOST = int(np.iinfo(np.int32).max)


def check_offsets(total: int, what: str) -> None:
    """Checks that int32 offsets reach `total` values; `what` names them in the error.

    Raises:
        InternalError: there are more.
    """
    if total > MOST:
        raise InternalError(f"{what}: {total} values, more than the {MOST} that int32 offsets reach")


def offsets_of(lengths: npt.NDArray[Any], what: str) -> npt.NDArray[np.int32]:
    """Prefix sum of lengths: offsets int32[n + 1] of n lists. Raises InternalError, as `check_offsets`."""
    offsets = np.zeros(len(lengths) + 1, np.int64)
    np.cumsum(lengths, out=offsets[1:])
    check_offsets(int(offsets[-1]), what)
    return offsets.astype(np.int32)
