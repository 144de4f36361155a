"""Best items of a user and their scores in one call: Python interface of `request/funnel.cpp`."""

from __future__ import annotations

import ctypes
import functools

import numpy as np
import numpy.typing as npt

from livectr.kernels.request.look_up import DONE, checked
from livectr.kernels.request.score import ScoreCall, Snapshot
from livectr.kernels.request.select import SelectCall, Selector
from livectr.kernels.runtime.arrays import address
from livectr.kernels.runtime.library import kernel_library

I64 = npt.NDArray[np.int64]


class ItemArray:
    """Memory of a column of items that a call selects, for the calls that rank them.

    Args:
        most: largest number of items.
        narrow: the column is of int32, else of int64.

    Attributes:
        at: address of the Arrow array.
    """

    def __init__(self, most: int, *, narrow: bool) -> None:
        self._words = np.zeros(10 + 2, np.int64)
        self._values = np.empty(most, np.int32) if narrow else None
        self.at = address(self._words)
        self.buffers_at = self.at + 80
        self.values_at = None if self._values is None else address(self._values)


class _Words(ctypes.Structure):
    """`Funnel` of request/funnel.cpp."""

    _fields_ = (
        *((name, ctypes.c_void_p) for name in ("selector", "selection", "snapshot", "scoring")),
        *((name, ctypes.c_void_p) for name in ("column", "buffers", "narrow")),
        *((name, ctypes.c_int64) for name in ("selected", "part")),
    )


class FunnelCall:
    """Call for the best items of a user and their scores. For one thread.

    `first` runs both parts as far as it can; `second` goes on.

    Args:
        selector, select: of the best items.
        snapshot, score: of their scores; the call's features have `column` as their column of candidates.
        column: of the items.
    """

    def __init__(
        self, selector: Selector, select: SelectCall, snapshot: Snapshot, score: ScoreCall, column: ItemArray
    ) -> None:
        self._parts = selector, select, snapshot, score, column
        self._words = _Words(
            *(selector.handle, ctypes.addressof(select.words)),
            *(snapshot.handle, ctypes.addressof(score.words)),
            *(column.at, column.buffers_at, column.values_at),
        )
        self._found: int | None = None

    def first(self, _: object) -> int:
        """Outcome of the selection; DONE: it has its results."""
        outcome = self._run()
        if self._words.part == 0:
            return outcome
        self._found = outcome
        return DONE

    def second(self, _: object) -> int:
        """Outcome of the scores."""
        found, self._found = self._found, None
        return self._run() if found is None else found

    def _run(self) -> int:
        return checked(_library().funnel_answer(ctypes.byref(self._words)))


@functools.cache
def _library() -> ctypes.CDLL:
    library = kernel_library()
    library.funnel_answer.restype, library.funnel_answer.argtypes = ctypes.c_int64, [ctypes.c_void_p]
    return library
