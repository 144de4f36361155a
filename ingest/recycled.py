"""Large arrays that are used again.

A batch's keys are megabytes. Fresh memory for each batch comes from the kernel page by page, zeroed; memory
that was used before costs nothing.
"""

from __future__ import annotations

import sys
import threading

import numpy as np
import numpy.typing as npt

_ALONE = 3
"""References to an array that nobody but `Recycled` holds: its list, the loop's variable, the argument."""


class Recycled:
    """Gives out int64 arrays; one that is no longer referred to, nor a view of it, is given out again."""

    def __init__(self, keep: int = 4) -> None:
        self._keep = keep
        self._held: list[npt.NDArray[np.int64]] = []
        self._lock = threading.Lock()

    def empty(self, count: int) -> npt.NDArray[np.int64]:
        """int64[count], not cleared."""
        with self._lock:
            for array in self._held:
                if sys.getrefcount(array) == _ALONE and count <= len(array) <= 4 * count + 4096:
                    return array[:count]
            fresh = np.empty(count + count // 8, np.int64)
            self._held = [fresh, *self._held[: self._keep - 1]]
            return fresh[:count]
