"""Offsets of lists and strings as Arrow has them: int32, which must not wrap around."""

from __future__ import annotations

from typing import Any

import numpy as np
import numpy.typing as npt

from livectr.kernels.errors import InternalError

MOST = int(np.iinfo(np.int32).max)


def check_offsets(total: int, what: str) -> None:
    """Raises InternalError where so many values, of what the text says, are more than int32 offsets reach."""
    if total > MOST:
        raise InternalError(f"{what}: {total} values, more than the {MOST} that int32 offsets reach")


def offsets_of(lengths: npt.NDArray[Any], what: str) -> npt.NDArray[np.int32]:
    """int32[n + 1] of lists of the given lengths. Raises InternalError, as `check_offsets`."""
    offsets = np.zeros(len(lengths) + 1, np.int64)
    np.cumsum(lengths, out=offsets[1:])
    check_offsets(int(offsets[-1]), what)
    return offsets.astype(np.int32)
