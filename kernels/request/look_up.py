"""Snapshots of a version and outcomes of their compiled calls: Python interface of `request/look_up.hpp`."""

from __future__ import annotations

import ctypes
import weakref
from collections.abc import Callable
from typing import Final

DONE: Final = 0
MISSING_ROWS: Final = 1
"""A key has no row in memory."""
MISSING_ITEMS: Final = 2
"""An item has no partial result, or no vector, in memory."""
SUPERSEDED: Final = 3
"""The rows are of another version."""
LATE: Final = 4
"""The deadline passed while the call waited for a writer of the rows."""
NO_FEATURES: Final = 5
"""The call for features has an outcome of its own."""
MISSING_CONTENT: Final = 6
"""An id has no content vector in memory."""
TOO_MANY_PAIRS: Final = 7
"""A list that all rows share has too many vectors for so many rows."""
EXPIRED: Final = 8
"""The deadline passed while lists were pooled."""
_NO_MEMORY: Final = 9


class CompiledSnapshot:
    """State of a version for compiled calls, as requests with the same shared fields read it.

    Immutable and thread-safe. It keeps its parts alive. A request holds it while it is answered, so that a
    swap waits for nobody.

    Args:
        handle: of the compiled state; null: there was no memory.
        delete: frees it.
        run: makes a call.
        parts: that the state refers to.

    Attributes:
        handle: as given.
    """

    def __init__(
        self,
        handle: int | None,
        delete: Callable[[int], None],
        run: Callable[[int, object], int],
        *parts: object,
    ) -> None:
        if not handle:
            raise MemoryError("no memory for a snapshot")
        self.handle, self._run, self._parts = handle, run, parts
        weakref.finalize(self, delete, handle)

    def answer(self, words: ctypes.Structure) -> int:
        """Answer a call, as far as memory has what it needs.

        Args:
            words: arguments and results.

        Returns:
            An outcome.

        Raises:
            MemoryError: no memory.
            ValueError: features that do not fit.
        """
        outcome = self._run(self.handle, ctypes.byref(words))
        return outcome if outcome < _NO_MEMORY else checked(outcome)


def checked(outcome: int) -> int:
    """Outcome of a call that a caller may handle; raises as `CompiledSnapshot.answer`."""
    if outcome >= _NO_MEMORY:
        if outcome == _NO_MEMORY:
            raise MemoryError("no memory for the answer to a request")
        raise ValueError("features that do not fit the snapshot")
    return outcome
